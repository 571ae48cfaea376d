"""Make the same tasks and verdicts in a fresh process, and report the verifier's side effects.

`python -m grpo_core.kit.observer PARENT_PID` is this process, started with another PYTHONHASHSEED.
It reads a request and writes its report, both as JSON. An audit hook records what the verifier does
with the network, with programs and with the policy's text; at the end the process counts what was
left behind. Open files, threads and memory are read from /proc on Linux, and are not known on other
systems.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.calls.wire import prompt_digest
from grpo_core.config.settings import VerifyConfig
from grpo_core.kit.scripts import attempt_rollout, join_turns
from grpo_core.kit.texts import MARKER
from grpo_core.kit.verdicts import verify_directly
from grpo_core.plugins.environments import build_environment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Message, Task, TaskKey
from grpo_core.verify.checks import (
    BrokenContractError,
    check_reference,
    check_task,
    check_verdict,
)
from grpo_core.verify.playing import IsolatedReplies
from grpo_core.verify.worker import die_with_parent, resident_mb

_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
"""Audit events of network use."""
_INTERPRETER = re.compile(r"\w*sh|(?:python|perl|ruby|node|php|lua)[\d.]*")
"""Programs that execute the text behind their option -c or -e."""
_GROWTH_SECONDS = 2.0
_GROWTH_VERDICTS = 400
"""Memory growth is measured over this many verdicts, or as many as fit into the seconds above."""
_REPLY_SECONDS = 5.0
"""The most seconds for a reply in a dialogue."""
_SETTLE_SECONDS = 0.3
"""How long threads and processes get to end before the leftovers are counted."""
_VERDICTS_SECONDS = 40.0
"""No further attempt is judged after this time."""
_MOST = 50
"""The most leftovers of each kind in the report."""


def main() -> None:
    """Read the request from standard input and write the report to standard output."""
    die_with_parent(int(sys.argv[1]))
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the environment prints must not mix with the report
    try:
        env = build_environment(Spec(**request["boot"]["spec"]), request["boot"]["overrides"])
    except Exception as error:  # noqa: BLE001 - an import may raise anything
        report = {"build_error": describe(error)}
    else:
        if not env.trusted:  # as in a worker; a trusted environment keeps the folder of the trainer
            os.chdir(os.environ["TMPDIR"])
        report = asyncio.run(_observe(env, request))
    json.dump(report, output)
    output.close()
    os._exit(0)  # without waiting for threads that were left behind


async def _observe(env: Environment[Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Make the tasks and verdicts of `request`, and return the report."""
    side_effects, created_files = dict[str, str](), dict[str, None]()
    tasks = {}
    for key in (TaskKey(**key) for key in request["keys"]):
        tasks[key.split, key.index, key.level] = check_task(env.task(key), key)
    seconds = min(env.timeout_seconds, _REPLY_SECONDS)
    replies = IsolatedReplies(
        env, settings=VerifyConfig(isolation="inline", timeout_seconds=seconds)
    )
    attempts = [(tasks[tuple(address)], text) for address, text in request["attempts"]]
    before = _open_resources()
    sys.addaudithook(
        lambda event, arguments: _record(side_effects, created_files, event, arguments)
    )
    for address, text in request["calls"]:
        with contextlib.suppress(GrpoError):  # the subject of reply.form
            await replies.reply(tasks[tuple(address)], (Message("assistant", text),))
    tool_effects = dict(side_effects)
    side_effects.clear()
    for address, text in request["executable"]:
        await _verdict(env, replies, tasks[tuple(address)], text)
    verdicts, started = [], time.monotonic()
    for task, text in attempts:
        if time.monotonic() - started > _VERDICTS_SECONDS:
            break
        verdicts.append(await _verdict(env, replies, task, text))
    report = {
        "prompts": [prompt_digest(task) for task in tasks.values()],
        "references": [join_turns(check_reference(env.reference(task))) for task in tasks.values()]
        if request["references"]
        else None,
        "verdicts": verdicts,
        "side_effects": dict(side_effects),
        "tool_effects": tool_effects,
        "growth": await _growth(env, replies, attempts[: len(verdicts)]),
    }
    await asyncio.sleep(_SETTLE_SECONDS)
    return {
        **report,
        "leftovers": _new_resources(before, _open_resources()),
        "files": _existing(created_files),
    }


async def _verdict(
    env: Environment[Any], replies: IsolatedReplies, task: Task[Any], text: str
) -> Any:
    """Return a verdict as `Verdict.to_json` without times, or the error where there is none."""
    try:
        rollout = await attempt_rollout(env, replies, task, text)
        verdict = check_verdict(await verify_directly(env, task, rollout), env).to_json()
    except BrokenContractError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - environments raise what they like
        return describe(error)
    for part in verdict["rewards"].values():
        del part["seconds"]
    return {name: verdict[name] for name in ("rewards", "passed", "answer", "error")}


def _record(
    side_effects: dict[str, str],
    created_files: dict[str, None],
    event: str,
    arguments: tuple[Any, ...],
) -> None:
    """Record an audit event that is a side effect of judging; keep the first of each kind."""
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & os.O_CREAT:
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if not path.startswith(("/dev/", "/proc/")) and "__pycache__" not in path:
            created_files[path] = None
    elif event in _NETWORK and not (
        event == "socket.connect" and isinstance(arguments[1], (str, bytes))
    ):
        # the first argument of these two events is the socket
        has_socket = event in ("socket.connect", "socket.sendto")
        address = arguments[1:] if has_socket else arguments[:2]
        side_effects.setdefault("network", f"{event} {address}"[:200])
    elif event == "exec" and isinstance(arguments[0], CodeType) and _has_marker(arguments[0]):
        side_effects.setdefault(
            "eval", f"code of {arguments[0].co_filename} holds the name {MARKER}"
        )
    elif _starts_program(event, arguments):
        side_effects.setdefault("eval", f"{event} {arguments}"[:200])


def _starts_program(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a shell or an interpreter gets the policy's text as a program.

    A program that gets it as one of its arguments does not execute it.
    """
    if event == "os.system":
        return MARKER in str(arguments)
    if event not in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
        return False
    if not isinstance(arguments[1], list | tuple):
        return MARKER in str(arguments[1])
    words = [os.fsdecode(word) for word in arguments[1] if isinstance(word, str | bytes)]
    return bool(_INTERPRETER.fullmatch(os.path.basename(words[0]))) and any(
        MARKER in word and option.startswith("-") and option.endswith(("c", "e"))
        for option, word in pairwise(words)
    )


def _has_marker(code: CodeType) -> bool:
    """Return whether `code` was made from one of the kit's executable texts."""
    return MARKER in code.co_names or any(MARKER in str(constant) for constant in code.co_consts)


async def _growth(
    env: Environment[Any], replies: IsolatedReplies, attempts: Sequence[tuple[Task[Any], str]]
) -> dict[str, float] | None:
    """Return the number of verdicts and by how many MB they grew the process.

    Up to 20 verdicts are made first as a warm-up. None where memory cannot be read.
    """
    if not resident_mb() or not attempts:
        return None
    for task, text in attempts[:20]:
        await _verdict(env, replies, task, text)
    gc.collect()
    before, started, count = resident_mb(), time.monotonic(), 0
    while count < _GROWTH_VERDICTS and time.monotonic() - started < _GROWTH_SECONDS:
        await _verdict(env, replies, *attempts[count % len(attempts)])
        count += 1
    gc.collect()
    return {"verdicts": count, "mb": resident_mb() - before}


def _open_resources() -> dict[str, list[str]] | None:
    """Return the open files, threads and child processes, or None where /proc is missing."""
    if not Path("/proc/self/fd").is_dir():
        return None
    files = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            files.append(os.readlink(entry.path))
    children = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel has no such file
            children += (task / "children").read_text().split()
    return {
        "processes": [f"{child} {_command(child)}" for child in children],
        "threads": [thread.name for thread in threading.enumerate()],
        "open files": files,
    }


def _existing(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist."""
    return [path for path in paths if os.path.lexists(path)][:_MOST]


def _command(pid: str) -> str:
    """Return the command line of a process."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return "(gone)"


def _new_resources(
    before: Mapping[str, list[str]] | None, after: Mapping[str, list[str]] | None
) -> dict[str, list[str]] | None:
    """Return the resources in `after` that are not in `before`, counting equal ones."""
    if before is None or after is None:
        return None
    return {
        kind: list((Counter(names) - Counter(before[kind])).elements())[:_MOST]
        for kind, names in after.items()
    }


if __name__ == "__main__":
    main()
