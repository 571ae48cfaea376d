"""Cache verdicts by their content, within a run or, in a file, for later runs.

Equal completions of a task are then judged only once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo_core.calls.wire import encode
from grpo_core.protocol.types import Rollout, Task, Verdict
from grpo_core.runs.store import JsonStore


class VerdictCache:
    """Store verdicts by key, in memory or in a file that several processes may share.

    The cache is only for verdicts that depend on nothing but the environment's fingerprint, the
    task key, the draw and the completion. Only verdicts that are scored and `cacheable` are stored.

    If the file can no longer be read or written, that is logged and the run goes on without the
    cache.
    """

    def __init__(self, path: Path | None = None, *, entries: int) -> None:
        """Open the cache.

        Args:
            path: the file; None: in memory.
            entries: number of verdicts to store, approximately; the oldest are removed first.

        Raises:
            ConfigError: the file cannot be opened.
        """
        self._store = JsonStore(
            path, item="verdict", alternative="set verify.cache=memory", entries=entries
        )
        self._in_progress: dict[str, asyncio.Future[Verdict | None]] = {}

    async def verdict(
        self,
        key: str,
        judge: Callable[[], Awaitable[Verdict]],
        *,
        check: Callable[[Verdict], Verdict],
    ) -> tuple[Verdict, bool]:
        """Return the verdict with this key, from the cache or from `judge`.

        If several callers request the same key at the same time, `judge` is called once and all of
        them get its verdict. If that call fails, each of the others calls `judge` itself, so that
        a temporary failure does not affect several rollouts.

        Args:
            key: see `verdict_key`.
            judge: judges the completion.
            check: returns a cached verdict if the environment can have given it, and raises if
                not: the file may be damaged, or somebody may have changed it. The completion is
                then judged again.

        Returns:
            The verdict, and whether it was cached.
        """
        if (in_progress := self._in_progress.get(key)) is not None:
            shared = await asyncio.shield(in_progress)
            if shared is not None:
                return _without_seconds(shared), True
            return await judge(), False
        cached = self._store.get(key, lambda value: _parse_verdict(value, check))
        if cached is not None:
            return _without_seconds(cached), True
        future = self._in_progress[key] = asyncio.get_running_loop().create_future()
        try:
            verdict = await judge()
            if verdict.scored and verdict.cacheable:
                self._store.put(key, verdict.to_json())
                future.set_result(verdict)
            return verdict, False
        finally:
            del self._in_progress[key]
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Close the file."""
        self._store.close()


def _parse_verdict(value: Any, check: Callable[[Verdict], Verdict]) -> Verdict | None:
    """Return a checked verdict from its JSON value; None if it is not one that is stored."""
    verdict = Verdict.from_json(value)
    return check(verdict) if verdict.scored and verdict.cacheable else None


def _without_seconds(verdict: Verdict) -> Verdict:
    """Return the verdict with the seconds of its rewards set to 0: it was not computed again."""
    return replace(
        verdict,
        rewards={name: replace(part, seconds=0.0) for name, part in verdict.rewards.items()},
    )


def verdict_key(fingerprint: str, task: Task[Any], rollout: Rollout) -> str:
    """Return a digest of the content that a verdict depends on.

    The prompt is part of it, since data may change under the same environment fingerprint.
    """
    content = [fingerprint, asdict(task.key), task.draw, encode(task.prompt), encode(rollout)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
