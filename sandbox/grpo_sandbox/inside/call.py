"""Runs one call in a child: it reads its own request, gives up all rights, and runs the program.

A program never sees more than one input, and does not decide the verdict: it may only claim a
value, which the verifier judges outside the jail.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import gc
import json
import os
import resource
import sys
from typing import Any, NoReturn

from grpo_sandbox.inside.filter import SystemCallFilter
from grpo_sandbox.inside.frames import FIRST_FREE, read_exactly
from grpo_sandbox.inside.places import OwnNamespaces, OwnUid
from grpo_sandbox.inside.values import MAX_ERROR, NotPlainError, decode, encode
from grpo_sandbox.inside.watch import STARTED

RESULT = 3
"""The descriptor on which a child claims its value."""


def run_call(
    head: dict[str, Any],
    place: OwnUid | OwnNamespaces,
    system_calls: SystemCallFilter | None,
    writers: dict[str, int],
) -> NoReturn:
    """Run the call whose body comes next on the stream of requests, in this process.

    Args:
        head: The size of the body and the limits.
        place: Where the call runs.
        system_calls: A filter to apply in that place, if any.
        writers: The pipes for its result, stdout and stderr.
    """
    body = read_body(head)
    enter_place(head, place, system_calls, writers, stdin=os.open(os.devnull, os.O_RDONLY))
    gc.enable()
    _run(body, head["limits"]["result_bytes"])


def read_body(head: dict[str, Any]) -> bytes:
    """Read the body that follows `head` on the stream of requests; end the child without it."""
    body = read_exactly(head["size"])
    if len(body) != head["size"]:
        os._exit(0)  # nothing is marked as started: the supervisor reports a broken jail
    return body


def enter_place(
    head: dict[str, Any],
    place: OwnUid | OwnNamespaces,
    system_calls: SystemCallFilter | None,
    writers: dict[str, int],
    *,
    stdin: int,
) -> None:
    """Give up all rights and all descriptors but the standard streams and RESULT, for good.

    Afterwards the working folder is the place's, and the child is marked as started.
    """
    os.setsid()
    sources = (stdin, writers["stdout"], writers["stderr"], writers["result"])
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, FIRST_FREE) for descriptor in sources]
    for target, descriptor in enumerate(copies):
        os.dup2(descriptor, target)
    os.closerange(RESULT + 1, FIRST_FREE + 32)  # also the stream of requests
    _limit(head["limits"], place.own_processes)
    place.enter()
    if system_calls is not None:
        system_calls.apply()
    os.chdir(place.folder)
    os.write(RESULT, STARTED)


def _limit(limits: dict[str, Any], own_processes: int) -> None:
    seconds = max(1, round(limits["cpu_seconds"] + 0.499))  # whole seconds, rounded up
    # At the soft limit the kernel sends SIGXCPU, which distinguishes this end from others. A
    # program that ignores that signal is killed a second later.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for name, most in (
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
        (resource.RLIMIT_NPROC, limits["processes"] + own_processes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 1),  # with 0, a program that collects cores would still get one
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(name, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # without memory, the kernel kills the program, not the supervisor


def _run(body: bytes, cap: int) -> NoReturn:
    """Run the program and claim its value. A patch by the program affects only this process."""
    claim: dict[str, Any]
    try:
        request = json.loads(body)
        namespace: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
        exec(compile(request["source"], "<program>", "exec", dont_inherit=True), namespace)
        claim = {"ok": encode(namespace[request["entry"]](*map(decode, request["input"])))}
    except MemoryError:
        claim = {"oom": ""}
    except NotPlainError as error:
        claim = {"bad": error.args[0]}
    except BaseException as error:  # noqa: BLE001 - also SystemExit, which claims nothing
        claim = {"error": _describe(error)}
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    text = json.dumps(claim).encode()
    if len(text) > cap:
        text = json.dumps({"bad": f"the value is larger than {cap:,} bytes"}).encode()
    while text:
        text = text[os.write(RESULT, text) :]
    os._exit(0)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MAX_ERROR]
    except BaseException:  # noqa: BLE001 - its __str__ is the program's
        return "an exception that cannot be described"
