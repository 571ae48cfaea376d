"""A session of a sandbox: the awaitable face of a jail in which commands run one by one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from grpo_core import CommandResult, Limits, SandboxError, current_call
from grpo_sandbox.blame import UnavailableError
from grpo_sandbox.inside.commands import FILE, WRITTEN
from grpo_sandbox.inside.frames import pack
from grpo_sandbox.jail import limits_to_json
from grpo_sandbox.outcome import reason
from grpo_sandbox.replay import ProgramFaultError, ReplayedJail, Step, StepReply

TOTAL_WALL_FACTOR = 12
"""If `Limits.total_seconds` is None, all commands of a session may take this many times the wall
time of one command."""
SHELL = ("/bin/sh", "-c")
MAX_FILE_BYTES = 32_000_000
"""The largest file that can be written or read; it has to fit into a request."""
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4000
_OWN_LIMITS = Limits(cpu_seconds=10, wall_seconds=20, memory_mb=512, processes=16, file_mb=64)
"""Limits of this package's own code while it writes and reads files."""
_ERROR_BYTES = 1000
T = TypeVar("T")


class JailSession:
    """A `grpo_core.Session` in a jail.

    Args:
        jail: Its jail.
        limits: Limits of each command.
        executor: Runs what blocks.
        release: Takes back the session's place once it has ended; called in the executor.
    """

    def __init__(
        self,
        jail: ReplayedJail,
        limits: Limits,
        executor: Executor,
        release: Callable[[JailSession], None],
    ) -> None:
        self._jail, self._limits = jail, limits
        self._executor, self._release = executor, release
        self._turn = asyncio.Lock()
        self._end: CommandResult | None = None
        self._closing = threading.Event()
        self._ending = threading.Lock()
        self._ended = False

    async def open(self, files: Mapping[str, str | bytes]) -> None:
        """Take a jail and write the first files; the errors are those of `write`."""
        steps = _write_steps(files)
        await self._ask(self._jail.open)
        await self._write(steps)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - the command is ended inside its jail
        of_policy: bool = False,
    ) -> CommandResult:
        """Run a command; see `grpo_core.Session.exec`."""
        arguments = [*SHELL, command] if isinstance(command, str) else list(command)
        if not arguments:
            raise ValueError("the command is an empty list; pass a program and its arguments")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is {timeout}; it has to be above 0 s")
        isolated = current_call().verifies and not of_policy
        body = pack({"command": arguments, "isolated": isolated}) + input.encode(
            "utf-8", "surrogatepass"
        )
        return await self._ask(lambda cancelled: self._run(body, timeout, cancelled))

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files; see `grpo_core.Session.write`."""
        await self._write(_write_steps(files))

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        """Read a file; see `grpo_core.Session.read`."""
        if not 0 <= limit <= MAX_FILE_BYTES:
            raise ValueError(f"limit is {limit}; it has to be from 0 to {MAX_FILE_BYTES:,} bytes")
        body = pack({"path": _checked_path(path), "limit": limit})
        limits = {**limits_to_json(_OWN_LIMITS), "result_bytes": limit + 1, "output_bytes": 0}
        answer = await self._ask(
            lambda cancelled: self._answer(Step("read", body, limits), cancelled)
        )
        result: bytes = b"" if answer is None else answer.reply["result"]
        return result[1:] if result[:1] == FILE else None

    async def close(self) -> None:
        """End the session; what runs in it is ended."""
        self._closing.set()
        self._jail.interrupt()
        if not self._ended:
            await _finish(asyncio.get_running_loop().run_in_executor(self._executor, self.end))

    def end(self) -> None:
        """End the session in this thread, and release its place; more than once is harmless."""
        self._closing.set()
        self._jail.interrupt()
        with self._ending:
            if not self._ended:
                self._ended = True
                self._release(self)

    async def _write(self, steps: Sequence[Step]) -> None:
        for step in steps:
            await self._ask(partial(self._write_step, step))

    def _write_step(self, step: Step, cancelled: Callable[[], bool]) -> None:
        """Write files; if commands have left no room for them, that ends the session."""
        answer = self._answer(step, cancelled)
        if answer is None or answer.reply["result"] == WRITTEN:
            return
        why = answer.reply["result"].decode("utf-8", "replace")
        if not self._jail.has_run:
            raise ValueError(
                f"the files cannot be written to the session: {why}; use fewer or smaller files, "
                "or a larger folder (sandbox.settings.session_mb)"
            )
        self._end = CommandResult("no_result", error=f"files could not be written: {why}")

    def _run(
        self, body: bytes, timeout: float | None, cancelled: Callable[[], bool]
    ) -> CommandResult:
        total = total_seconds(self._limits)
        left = total - self._jail.spent_seconds
        if self._end is None and left <= 0:
            error = f"not run: its {total:g} s for all commands were used up"
            return CommandResult("timeout_wall", error=error, suspected=True)
        longest = min(self._limits.wall_seconds, left)
        wall = longest if timeout is None else min(timeout, longest)
        limits = replace(self._limits, wall_seconds=wall, result_bytes=_ERROR_BYTES)
        answer = self._answer(Step("exec", body, limits_to_json(limits)), cancelled)
        if answer is None:
            assert self._end is not None
            return self._end
        return command_result(answer, limits)

    def _answer(self, step: Step, cancelled: Callable[[], bool]) -> StepReply | None:
        """Return the answer to a step, or None if the program has ended the session."""
        if self._end is not None:
            return None
        try:
            return self._jail.run(step, cancelled)
        except ProgramFaultError as fault:
            if not self._jail.has_run and step.kind == "write":
                raise SandboxError(f"the files of a session cannot be written: {fault}") from None
            status: Any = fault.status
            error = f"the session has ended: {fault}"[:500]
            self._end = CommandResult(status, error=error, suspected=fault.suspected)
            return None

    async def _ask(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Do `work` in a thread when it is this request's turn, with the caller's clock stopped.

        If the caller is cancelled, the work is ended before this returns.
        """
        cancelled = threading.Event()

        def is_cancelled() -> bool:
            return cancelled.is_set() or self._closing.is_set()

        with current_call().stopped():
            async with self._turn:
                if self._closing.is_set():
                    raise SandboxError("the session is closed")
                future = asyncio.get_running_loop().run_in_executor(
                    self._executor, work, is_cancelled
                )
                try:
                    result = await asyncio.shield(future)
                except asyncio.CancelledError:
                    cancelled.set()
                    self._jail.interrupt()
                    await _finish(future)
                    raise
                except UnavailableError as error:
                    raise SandboxError(str(error)) from None
        suspected = isinstance(result, CommandResult) and result.suspected
        if suspected or self._jail.rebuilt or (self._end is not None and self._end.suspected):
            current_call().keep_out_of_caches()
        return result


def total_seconds(limits: Limits) -> float:
    """Return the wall time of all commands of a session with these limits."""
    own = limits.total_seconds
    return TOTAL_WALL_FACTOR * limits.wall_seconds if own is None else own


def command_result(answer: StepReply, limits: Limits) -> CommandResult:
    """Return how a command ended."""
    reply = answer.reply
    ended = reply["status"] == "ended"
    result: str = reply["result"].decode("utf-8", "replace")
    return CommandResult(
        "ok" if ended else reply["status"],
        exit_code=reply["exit"] >> 8 if ended else None,
        stdout=reply["stdout"].decode("utf-8", "replace"),
        stderr=reply["stderr"].decode("utf-8", "replace"),
        error="" if ended else result or reason(reply, limits),
        cpu_seconds=reply["cpu_seconds"],
        wall_seconds=reply["wall_seconds"],
        suspected=answer.suspected,
    )


async def _finish(future: asyncio.Future[Any]) -> None:
    """Wait for the end of `future`, whatever it is; a cancellation comes only afterwards."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    if not future.cancelled():
        future.exception()
    if cancelled:
        raise asyncio.CancelledError


def _write_steps(files: Mapping[str, str | bytes]) -> list[Step]:
    """Return the steps that write `files`, none of which is too large for a request."""
    limits = {**limits_to_json(_OWN_LIMITS), "result_bytes": _ERROR_BYTES, "output_bytes": 0}
    groups: list[list[tuple[str, bytes]]] = [[]]
    size = 0
    for path, content in files.items():
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(
                f"the file {path!r} has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} fit"
            )
        size += len(data)
        if size > MAX_FILE_BYTES:
            groups.append([])
            size = len(data)
        groups[-1].append((_checked_path(path), data))
    return [
        Step(
            "write",
            b"".join(
                [
                    pack({"files": [(path, len(data)) for path, data in group]}),
                    *(data for _, data in group),
                ]
            ),
            limits,
        )
        for group in groups
        if group
    ]


def _checked_path(path: str) -> str:
    """Return a path without empty parts and "."; see `grpo_core.Session.write`.

    Raises:
        ValueError: It is absolute, empty, leads out of the folder, or cannot be a path.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or not parts or ".." in parts:
        raise ValueError(f"the path {path!r} is not one inside the folder of a session")
    try:
        names = [part.encode("utf-8", "surrogateescape") for part in parts]
    except UnicodeEncodeError:
        raise ValueError(f"the path {path!r} cannot be encoded") from None
    too_long = max(map(len, names)) > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES
    if "\0" in path or too_long or path.endswith("/"):
        raise ValueError(f"the path {path[:100]!r} cannot be the one of a file")
    return "/".join(parts)
