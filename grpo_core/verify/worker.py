"""`python -m grpo_core.verify.worker`: an environment behind a pipe, so that whatever it does can be ended by killing it.

The trainer sends a spec and a config, then task keys and rollouts; tasks are derived again from their keys, so secrets never travel.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.calls.replies import MAX_REPLY_BYTES, make_reply
from grpo_core.calls.wire import decode, encode, prompt_digest, read_frame, write_frame
from grpo_core.plugins.environments import build_environment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.checks import BrokenContractError, check_audit, check_task, check_verdict

_CACHED_TASKS = 64
_DUMP_AT = 0.9  # of the deadline: late enough to be the culprit's stack, early enough to be read before the kill
_PR_SET_PDEATHSIG = 1

Derive = Callable[[TaskKey], Task[Any]]


def main() -> None:
    """Serve until the trainer closes the pipe."""
    die_with_parent(int(sys.argv[1]))
    requests, replies = _private_pipes()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the trainer has gone: so do we
        boot = _read_request(requests)
        try:
            env = build_environment(Spec(**boot["spec"]), boot["overrides"])
        except BaseException as error:  # noqa: BLE001 - an import may do anything; the trainer is told why
            _reply(replies, boot, error=describe(error))
            return
        os.chdir(
            os.environ["TMPDIR"]
        )  # built where the trainer is, so that settings may name files; what it writes goes with the worker
        _reply(replies, boot)
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            try:
                _serve(env, requests, replies, loop)
            finally:
                loop.run_until_complete(env.close())


def _serve(
    env: Environment[Any],
    requests: FileIO,
    replies: FileIO,
    loop: asyncio.AbstractEventLoop,
) -> None:
    @functools.lru_cache(maxsize=_CACHED_TASKS)
    def derive(key: TaskKey) -> Task[Any]:
        return check_task(env.task(key), key)

    while True:
        request = _read_request(requests)
        faulthandler.dump_traceback_later(request["seconds"] * _DUMP_AT)
        value, error = None, None
        try:
            value = _answer(env, derive, request, loop)
        except BrokenContractError as broken:
            error = str(broken)
        except BaseException as raised:  # noqa: BLE001 - sys.exit() is reported, too
            error = describe(raised)
        faulthandler.cancel_dump_traceback_later()
        try:
            _reply(replies, request, value=value, error=error)
        except (TypeError, ValueError) as unsent:
            error = f"{request['op']}() returned what cannot be sent: {unsent}"
            _reply(replies, request, error=error)


def _read_request(requests: FileIO) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(read_frame(requests))
    return request


def _reply(
    replies: FileIO,
    request: Mapping[str, Any],
    *,
    value: Any = None,
    error: str | None = None,
) -> None:
    """Answer a request; if `value` is not JSON, raise TypeError or ValueError and send nothing."""
    body = make_reply(request["id"], memory_mb=resident_mb(), value=value, error=error)
    write_frame(replies, body, limit=MAX_REPLY_BYTES)


def _answer(
    env: Environment[Any],
    derive: Derive,
    request: Mapping[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> Any:
    op = request["op"]
    task = derive(TaskKey(**request["key"]))
    if op == "task":
        return encode(task.prompt)
    if prompt_digest(task) != request["prompt"]:
        raise BrokenContractError(
            "task() gave another prompt for the same key in another process; take all randomness from key.rng()"
        )
    task = replace(task, draw=request["draw"])
    found = getattr(env, op)(task, *map(decode, request["arguments"]))
    if op == "reply":
        found = loop.run_until_complete(found)
    if op == "audit":
        return check_audit(found)
    return encode(check_verdict(found, env) if op == "verify" else found)


def _private_pipes() -> tuple[FileIO, FileIO]:
    """Keep the pipes to ourselves: the environment's prints go to stderr and its stdin is empty."""
    requests, replies = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    os.close(empty)
    return FileIO(requests, "rb"), FileIO(replies, "wb")


def die_with_parent(parent: int) -> None:
    """End this process with its parent, the trainer or the reaper.

    On Linux the kernel does it, even after kill -9 and even while we hold the GIL; elsewhere the
    end of the pipe does.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(
            OSError
        ):  # when memory runs out, the kernel should take the verifier, not the trainer
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)


def resident_mb() -> float:
    """From /proc: the peak of getrusage() begins at the trainer's own size."""
    try:
        return (
            int(Path("/proc/self/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 2**20
        )
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
