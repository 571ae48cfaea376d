"""How the tests of verifiers have answers judged, in this process and in one that is killed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import workers_below

from grpo_core import Environment, Rollout, TaskKey, Verdict
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
from grpo_core.verify.judge.cache import VerdictCache
from grpo_core.verify.judge.judging import VerifyStats

TRAINER = """
import asyncio, importlib, sys
_, folder, module, name, *orders = sys.argv
sys.path.insert(0, folder)
from grpo_core import Rollout, TaskKey
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
async def main():
    env = getattr(importlib.import_module(module), name)()
    verifier = Verifier(env, settings=VerifyConfig(workers=1, timeout_seconds=600))
    tasks = await verifier.tasks([TaskKey("hostile", "train", 0)])
    print("ready", flush=True)
    await verifier.verify(tasks, [[Rollout.of(order) for order in orders]])
asyncio.run(main())
"""


def keys(count: int) -> list[TaskKey]:
    return [TaskKey("hostile", "train", index) for index in range(count)]


def judge(
    env: Environment[Any],
    answers_PG: Sequence[Sequence[str | Rollout]],
    *,
    cache: VerdictCache | None = None,
    weights: Mapping[str, float] | None = None,
    **settings: Any,
) -> tuple[list[list[Verdict]], VerifyStats]:
    """Judge attempts at several tasks; no worker is left afterwards."""
    chosen = VerifyConfig(**{"workers": 2, "retries": 0, **settings})

    async def run() -> tuple[list[list[Verdict]], VerifyStats]:
        async with Verifier(env, settings=chosen, cache=cache, weights=weights) as verifier:
            tasks = await verifier.tasks(keys(len(answers_PG)))
            rollouts = [
                [a if isinstance(a, Rollout) else Rollout.of(a) for a in answers]
                for answers in answers_PG
            ]
            return await verifier.verify(tasks, rollouts), verifier.stats

    found = asyncio.run(run())
    assert workers_below(os.getpid()) == []
    return found


def trainer(env: type[Environment[Any]], *orders: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that says "ready" and judges such answers, with its temporary files in `folder`."""
    command = [sys.executable, "-c", TRAINER, str(Path(__file__).parent)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [*command, env.__module__, env.__name__, *orders],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)},
    )
