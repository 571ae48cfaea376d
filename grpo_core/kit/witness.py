"""`python -m grpo_core.kit.witness`: the same tasks and attempts in a fresh process, whose every deed is written down.

It is started with another PYTHONHASHSEED. An audit hook notes what the verifier does with network, programs and the policy's text; at the
end it counts what was left behind. Linux tells open files, threads and memory through /proc; elsewhere these are not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.kit.texts import MARKER
from grpo_core.kit.verdicts import judged
from grpo_core.plugins.environments import build_environment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.checks import BrokenContractError, check_task, check_verdict
from grpo_core.verify.worker import die_with_parent, resident_mb

_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_ROUNDS_SECONDS = 2.0
_ROUNDS = 400
_SETTLE_SECONDS = 0.3
_VERDICTS_SECONDS = 40.0
_CREATES = os.O_CREAT
_MOST = 50


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the environment prints is no answer
    try:
        env = build_environment(Spec(**request["boot"]["spec"]), request["boot"]["overrides"])
    except Exception as error:  # noqa: BLE001 - an import may raise anything
        json.dump({"unbuilt": describe(error)}, answers)
        answers.close()
        os._exit(0)
    if not env.trusted:  # as workers do; a trusted one stays where the trainer is
        os.chdir(os.environ["TMPDIR"])
    json.dump(asyncio.run(_watched(env, request)), answers)
    answers.close()
    os._exit(0)  # threads that were left behind do not keep it


async def _watched(env: Environment[Any], request: Mapping[str, Any]) -> dict[str, Any]:
    deeds, written = dict[str, str](), dict[str, None]()
    tasks = {}
    for key in (TaskKey(**key) for key in request["keys"]):
        tasks[key.split, key.index, key.level] = check_task(env.task(key), key)
    attempts = [(tasks[tuple(place)], text) for place, text in request["attempts"]]
    before = _held()
    sys.addaudithook(lambda event, arguments: _note(deeds, written, event, arguments))
    executable = [(tasks[tuple(place)], text) for place, text in request["executable"]]
    for task, text in executable:
        await _verdict(env, task, text)
    verdicts, started = [], time.monotonic()
    for task, text in attempts:
        if time.monotonic() - started > _VERDICTS_SECONDS:
            break
        verdicts.append(await _verdict(env, task, text))
    found = {
        "prompts": [digest(task) for task in tasks.values()],
        "references": [env.reference(task) for task in tasks.values()]
        if request["references"]
        else None,
        "verdicts": verdicts,
        "deeds": dict(deeds),
        "growth": await _growth(env, attempts[: len(verdicts)]),
    }
    await asyncio.sleep(_SETTLE_SECONDS)
    return {**found, "left": _left(before, _held()), "files": _there(written)}


async def _verdict(env: Environment[Any], task: Task[Any], text: str) -> Any:
    """As `Verdict.to_json`, without times; a text where there was no verdict."""
    try:
        verdict = check_verdict(await judged(env, task, text), env).to_json()
    except BrokenContractError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - environments raise what they like
        return describe(error)
    for part in verdict["rewards"].values():
        del part["seconds"]
    return {name: verdict[name] for name in ("rewards", "passed", "answer", "error")}


def _note(
    deeds: dict[str, str], written: dict[str, None], event: str, arguments: tuple[Any, ...]
) -> None:
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & _CREATES:
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if not path.startswith(("/dev/", "/proc/")) and "__pycache__" not in path:
            written[path] = None
    elif event in _NETWORK and not (
        event == "socket.connect" and isinstance(arguments[1], (str, bytes))
    ):
        address = (
            arguments[1:] if event in ("socket.connect", "socket.sendto") else arguments[:2]
        )  # the first is the socket there
        deeds.setdefault("network", f"{event} {address}"[:200])
    elif event == "exec" and isinstance(arguments[0], CodeType) and _names(arguments[0]):
        deeds.setdefault("eval", f"code of {arguments[0].co_filename} holds the name {MARKER}")
    elif event in ("os.system", "subprocess.Popen") and MARKER in str(arguments):
        deeds.setdefault("eval", f"{event} {arguments}"[:200])


def _names(code: CodeType) -> bool:
    return MARKER in code.co_names or any(MARKER in str(constant) for constant in code.co_consts)


async def _growth(
    env: Environment[Any], attempts: Sequence[tuple[Task[Any], str]]
) -> dict[str, float] | None:
    """MB that the process grew by over many verdicts, after as many to warm up."""
    if not resident_mb() or not attempts:
        return None
    for task, text in attempts[:20]:
        await _verdict(env, task, text)
    gc.collect()
    before, started, count = resident_mb(), time.monotonic(), 0
    while count < _ROUNDS and time.monotonic() - started < _ROUNDS_SECONDS:
        await _verdict(env, *attempts[count % len(attempts)])
        count += 1
    gc.collect()
    return {"verdicts": count, "mb": resident_mb() - before}


def _held() -> dict[str, list[str]] | None:
    """What the process holds: open files, threads, children."""
    if not Path("/proc/self/fd").is_dir():
        return None
    files = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            files.append(os.readlink(entry.path))
    children = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel does not tell
            children += (task / "children").read_text().split()
    return {
        "open files": files,
        "threads": [thread.name for thread in threading.enumerate()],
        "processes": [f"{child} {_command(child)}" for child in children],
    }


def _there(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.lexists(path)][:_MOST]


def _command(pid: str) -> str:
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


def _left(
    before: Mapping[str, list[str]] | None, after: Mapping[str, list[str]] | None
) -> dict[str, list[str]] | None:
    """What there is more of, beyond one each: a library may open something once, the first time that it is used."""
    if before is None or after is None:
        return None
    more = {kind: list(found) for kind, found in after.items()}
    for kind, found in before.items():
        for each in found:
            if each in more[kind]:
                more[kind].remove(each)
    return {kind: found[:_MOST] for kind, found in more.items()}


def digest(task: Task[Any]) -> str:
    prompt = (
        task.prompt
        if isinstance(task.prompt, str)
        else [(message.role, message.content) for message in task.prompt]
    )
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()


if __name__ == "__main__":
    main()
