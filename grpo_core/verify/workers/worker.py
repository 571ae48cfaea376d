"""Run an environment in a worker process: `python -m grpo_core.verify.workers.worker`.

The process talks to the trainer through pipes, so that any call can be ended by killing it. The
trainer sends a spec and a config, then task keys and rollouts. The worker derives the tasks from
their keys, so that secret data is never sent.
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
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.calls.reaper import children_of
from grpo_core.calls.streams import flush_streams, prepare_streams
from grpo_core.calls.wire import (
    MAX_REPLY_BYTES,
    decode,
    encode,
    make_reply,
    read_frame,
    write_frame,
)
from grpo_core.plugins.environments import build_environment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.episodes.episode_worker import EpisodeServer, HostCalls, sender
from grpo_core.verify.judge.checks import (
    BrokenContractError,
    awaited,
    check_audit,
    check_reply,
    check_task,
    check_verdict,
)
from grpo_core.verify.judge.derive import task_with_prompt
from grpo_core.verify.judge.raised import CPU_LIMIT, ended_by_cpu_limit, kind_of, limit_cpu
from grpo_core.verify.workers.borrowed import borrowed_services

_CACHED_TASKS = 64
_DUMP_FRACTION = 0.9
"""Share of the timeout after which the stack is printed: late enough to show the code that causes
the timeout, and early enough for the trainer to read it before it kills the worker."""
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that this process gets when its parent dies."""


def main() -> None:
    """Serve requests until the trainer closes the pipe."""
    die_with_parent(int(sys.argv[1]))
    requests, replies = _take_pipes()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the trainer has ended
        boot = json.loads(read_frame(requests.read))
        send = sender(replies)
        calls = HostCalls(send)
        prepare_streams(shared=bool(boot.get("episodes")))
        services = borrowed_services(boot.get("services", {}), calls.call)
        try:
            env = build_environment(
                Spec(**boot["spec"]), boot["overrides"], lend=lambda *_: services
            )
        except BaseException as error:  # noqa: BLE001 - an import may raise anything
            _send_reply(replies, boot, error=describe(error))
            return
        # The environment was built in the trainer's folder, since settings may name files. From
        # here on its files are written to the worker's temporary folder, which is removed.
        os.chdir(os.environ["TMPDIR"])
        _send_reply(replies, boot)
        if boot.get("episodes"):
            asyncio.run(
                _serve_episodes(EpisodeServer(env, calls, send, resident_mb), env, requests)
            )
            return
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
    """Answer requests until the pipe is closed, which raises EOFError or BrokenPipeError."""

    @functools.lru_cache(maxsize=_CACHED_TASKS)
    def derive_task(key: TaskKey) -> Task[Any]:
        return check_task(env.task(key), key)

    while True:
        request = json.loads(read_frame(requests.read))

        def answer(request: Mapping[str, Any] = request) -> None:
            faulthandler.dump_traceback_later(request["seconds"] * _DUMP_FRACTION)
            others = {"among_others": True} if _has_others() else {}
            value, error, kind = None, None, ""
            try:
                value = _run_method(env, derive_task, request, loop)
            except BaseException as raised:  # noqa: BLE001 - sys.exit() is reported, too
                error = str(raised) if isinstance(raised, BrokenContractError) else describe(raised)
                kind = kind_of(raised) if request["op"] == "verify" else ""
            faulthandler.cancel_dump_traceback_later()
            try:
                _send_reply(replies, request, value=value, error=error, kind=kind, **others)
            except (TypeError, ValueError) as sending_error:
                error = f"{request['op']}() returned what cannot be sent: {sending_error}"
                _send_reply(replies, request, error=error)

        if "cpu_seconds" in request:
            _answer_in_copy(answer, request, replies)
        else:
            answer()


def _answer_in_copy(
    answer: Callable[[], None], request: Mapping[str, Any], replies: FileIO
) -> None:
    """Answer a request in a copy of this process, whose CPU time the kernel limits.

    A process that answers all its requests so stays as it was when it had built the environment.

    Args:
        answer: answers the request.
        request: the request; its limit is rounded up to whole seconds.
        replies: where a failure is reported if the copy ends without an answer.
    """
    if not hasattr(os, "fork"):
        _send_reply(replies, request, error="this system cannot copy a process")
        return
    copy = os.fork()
    if copy == 0:
        try:
            limit_cpu(request["cpu_seconds"])
            answer()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(copy, 0)
    if ended_by_cpu_limit(status):
        _send_reply(replies, request, error="it does not end", kind=CPU_LIMIT)
    elif status != 0:
        _send_reply(replies, request, error=f"the copy of the worker ended with status {status}")


async def _serve_episodes(server: EpisodeServer, env: Environment[Any], requests: FileIO) -> None:
    """Serve episodes until the pipe is closed, and close the environment."""
    try:
        await server.serve(requests)
    finally:
        await env.close()


def _send_reply(
    replies: FileIO,
    request: Mapping[str, Any],
    *,
    value: Any = None,
    error: str | None = None,
    kind: str = "",
    **further: Any,
) -> None:
    """Answer a request; if `value` is not JSON, raise TypeError or ValueError and send nothing.

    What was printed is on its way before the answer is.
    """
    flush_streams()
    memory_mb = resident_mb()
    body = make_reply(
        request["id"], memory_mb=memory_mb, value=value, error=error, kind=kind, **further
    )
    write_frame(replies.write, body, limit=MAX_REPLY_BYTES)


def _run_method(
    env: Environment[Any],
    derive_task: Callable[[TaskKey], Task[Any]],
    request: Mapping[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> Any:
    """Return the checked result of the environment's method that a request names, as JSON values.

    Raises:
        BrokenContractError: the environment breaks the protocol.
    """
    op = request["op"]
    task = derive_task(TaskKey(**request["key"]))
    if op == "task":
        return encode(task.prompt)
    task = replace(task_with_prompt(env, task, request["prompt"]), draw=request["draw"])
    result = getattr(env, op)(task, *map(decode, request["arguments"]))
    if op == "reply":
        return encode(check_reply(loop.run_until_complete(awaited(result, op))))
    if op == "audit":
        return check_audit(result)
    return encode(check_verdict(result, env) if op == "verify" else result)


def _take_pipes() -> tuple[FileIO, FileIO]:
    """Return the pipes for requests and replies, and hide them from the environment.

    What the environment prints goes to stderr, and its stdin is empty.
    """
    requests, replies = os.dup(0), os.dup(1)
    empty_input = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty_input, 0)
    os.dup2(2, 1)
    os.close(empty_input)
    return FileIO(requests, "rb"), FileIO(replies, "wb")


def _has_others() -> bool:
    """Return whether threads or processes are running besides the one that answers requests.

    Children of the parent are processes that a child of this one has left behind.
    """
    if threading.active_count() > 1:
        return True
    if sys.platform != "linux":
        return False
    own, parent = os.getpid(), os.getppid()
    children = {*children_of(own), *children_of(parent)} - {own}
    return not all(map(_has_ended, children))


def _has_ended(process: int) -> bool:
    """Return whether a process is gone, or only waits for its parent to notice that it ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def die_with_parent(parent: int) -> None:
    """Make this process end when its parent, the trainer or the reaper, ends.

    On Linux the kernel ends it, even after kill -9 of the parent and even while this process holds
    the GIL. On other systems it ends when the pipe is closed.

    Args:
        parent: process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # When memory runs out, the kernel should kill the verifier and not the trainer.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)


def resident_mb() -> float:
    """Return the resident memory of this process in MB; 0 if it is not known.

    It is read from /proc, since the peak that getrusage() returns starts at the trainer's size.
    """
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
