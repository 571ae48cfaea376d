"""Verifiers that attack the worker they run in; the answer says how."""

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict

LONG = 5_000_000
HELPERS: list[str] = []
SLEEP = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"]


def reply_descriptor() -> int:
    """Find where the worker writes its replies, as code of a model could: by trying descriptors."""
    for number in range(3, 64):
        try:
            mode, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
        except OSError:
            continue
        if (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and flags & os.O_ACCMODE != os.O_RDONLY:
            return number
    raise AssertionError("no descriptor of replies")


def request_id() -> str:
    """Read the id of the request from the frames of the worker."""
    frame: Any = sys._getframe()
    while frame is not None:
        request = frame.f_locals.get("request")
        if isinstance(request, dict) and "op" in request:
            return str(request.get("id", ""))
        frame = frame.f_back
    return ""


def genuine(**changes: Any) -> bytes:
    """Return the body of a reply that gives full reward, with changed fields; ... removes one."""
    verdict = Verdict(rewards={"reward": Reward(1.0)}, passed=True, answer="forged").to_json()
    reply = {"id": request_id(), "value": {"verdict": verdict}, "memory_mb": 50.0, **changes}
    return json.dumps({name: value for name, value in reply.items() if value is not ...}).encode()


def with_value(text: bytes) -> bytes:
    """Return the body of a reply whose value is written as `text`."""
    return genuine(value="?").replace(b'"?"', text)


BODIES: dict[str, Callable[[], bytes]] = {
    "a list": lambda: b"[1, 2]",
    "a text": lambda: b'"value"',
    "nothing": lambda: b"",
    "no JSON": lambda: b"{",
    "no UTF-8": lambda: genuine().replace(b"forged", b"\xff\xfe"),
    "deep nesting": lambda: b"[" * 500_000,
    "deep nesting in a reply": lambda: with_value(b"[" * 9000 + b"]" * 9000),
    "NaN": lambda: with_value(b"NaN"),
    "infinite memory": lambda: genuine(memory_mb="?").replace(b'"?"', b"Infinity"),
    "memory beyond any float": lambda: genuine(memory_mb=10**400),
    "memory as a text": lambda: genuine(memory_mb="50"),
    "no memory": lambda: genuine(memory_mb=...),
    "an integer of 5,000 digits": lambda: with_value(b"1" * 5000),
    "a key twice": lambda: genuine().replace(b'"value"', b'"value": 1, "value"'),
    "value and error": lambda: genuine(error="no"),
    "neither value nor error": lambda: genuine(value=...),
    "an error that is no text": lambda: genuine(value=..., error={"text": "no"}),
    "an unknown key": lambda: genuine(op="verify"),
    "no id": lambda: genuine(id=...),
    "another id": lambda: genuine(id="0" * 32),
    "a number as id": lambda: genuine(id=1),
}
"""Replies that are no replies, by what is wrong with them."""

HEADERS = {"the largest header": b"\xff" * 8, "a header of 60 MB": (60_000_000).to_bytes(8, "big")}


def send(data: bytes) -> None:
    """Write all of `data` as if it were a reply."""
    descriptor = reply_descriptor()
    while data:
        data = data[os.write(descriptor, data) :]


def frame_of(body: bytes) -> bytes:
    return len(body).to_bytes(8, "big") + body


def start_daemon(note: Path) -> None:
    """Start a sleeper in a session of its own, without a parent, and note that it was started.

    The path of the note is an argument of the sleeper.
    """
    until_it_runs, held = os.pipe()  # both ends close when another program begins
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            with note.open("a") as file:
                file.write(f"{os.getpid()}\n")
            os.execv(sys.executable, [*SLEEP, str(note)])
        os._exit(0)
    os.waitpid(child, 0)
    os.close(held)
    os.read(until_it_runs, 1)
    os.close(until_it_runs)


def escape_and_trickle(*, seconds: float) -> None:
    """Leave a process behind that sends one byte of a long reply after another."""
    descriptor, reaper = reply_descriptor(), os.getppid()
    if os.fork():
        return
    os.setsid()
    os.kill(reaper, signal.SIGKILL)
    os.write(descriptor, (1_000_000).to_bytes(8, "big"))
    limit = time.monotonic() + seconds
    with contextlib.suppress(BrokenPipeError):
        while time.monotonic() < limit:
            os.write(descriptor, b" ")
            time.sleep(0.1)
    os._exit(0)


CHAIN = """
import os, pathlib, sys, time
limit = time.monotonic() + 30
while os.fork() == 0 and time.monotonic() < limit:
    pathlib.Path(sys.argv[1]).write_text(str(time.monotonic()))
os._exit(0)
"""
"""Each process starts the next one and ends; the last one ends after a while."""


def start_helper() -> str:
    """Start a process once and keep it for further verdicts, as for a tool that starts slowly.

    Returns the last argument of its command line, which no other process has.
    """
    if not HELPERS:
        HELPERS.append(f"helper-of-{Path(os.environ['TMPDIR']).name}")
        subprocess.Popen([*SLEEP, HELPERS[0]], start_new_session=True)
    return HELPERS[0]


SENT: dict[str, Callable[[str], bytes]] = {
    "body": lambda name: frame_of(BODIES[name]()),
    "header": lambda name: HEADERS[name],
    "half": lambda _: frame_of(genuine())[:20],
    "oversized": lambda _: frame_of(b" " * 40_000_000),
    "bytes after": lambda _: frame_of(genuine()) + b"\x00" * 5,
    "for the next": lambda _: frame_of(genuine()) + frame_of(genuine()) * 3,
    "long error reply": lambda _: frame_of(genuine(value=..., error="x" * LONG)),
}
"""What is sent in place of a reply, before the verifier sleeps."""
AFTER_THE_DAEMON: dict[str, Callable[[], object]] = {
    "": lambda: None,
    " and sleep": lambda: time.sleep(600),
    " and die": lambda: os._exit(7),
    " and crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    " and stop the parent": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    ", stop the parent and sleep": lambda: os.kill(os.getppid(), signal.SIGSTOP) or time.sleep(600),
}


def attack(order: str) -> Verdict:
    """Do what `order` says, and give full reward where the attack lets the verdict go on."""
    answer: str | None = None
    match order.split(":", 1):
        case [kind, name] if kind in SENT:
            send(SENT[kind](name))
            time.sleep(600)
        case ["twice", _]:
            send(frame_of(genuine()))
        case ["raise", _]:
            raise ValueError("x" * LONG)
        case ["exit", _]:
            sys.exit("x" * LONG)
        case ["unprintable", _]:
            raise UnprintableError
        case ["parts", _]:
            return Verdict(rewards={"x" * LONG: Reward(1.0)})
        case ["failed", _]:
            return Verdict.failed("\ud800" + "x" * LONG)
        case ["large", _]:
            return Verdict(rewards={"reward": Reward(1.0)}, detail={"text": "x" * 20_000_000})
        case ["environment", _]:
            answer = json.dumps(dict(os.environ))
        case [kind, path] if kind.startswith("daemon"):
            start_daemon(Path(path))
            AFTER_THE_DAEMON[kind.removeprefix("daemon")]()
        case ["die of", number]:
            os.kill(os.getpid(), int(number))
            time.sleep(600)
        case ["escape and trickle", _]:
            escape_and_trickle(seconds=25)
            time.sleep(600)
        case ["chain", path]:
            command = [sys.executable, "-S", "-E", "-c", CHAIN, path]
            subprocess.run(command, start_new_session=True, check=True)
            time.sleep(0.2)
        case ["helper", _]:
            answer = start_helper()
        case ["deep folder", _]:
            for _ in range(1500):
                os.mkdir("x" * 100)
                os.chdir("x" * 100)
        case ["flood", _]:
            while True:
                os.write(2, b"noise" * 20_000)
        case ["pid", _]:
            answer = f"{os.getpid()} {os.environ.get('TMPDIR')}"  # namespaces have equal numbers
        case _:
            raise AssertionError(order)
    return Verdict(rewards={"reward": Reward(1.0)}, passed=True, answer=answer)


class UnprintableError(Exception):
    """Has no text: asking for it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Attacker(Environment[int]):
    timeout_seconds = 3.0

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, f"question {key.index}", key.index)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return attack(rollout.text)


class TrustedAttacker(Attacker):
    trusted = True


class Deaf(Attacker):
    """Never comes to an end of closing in a worker."""

    async def close(self) -> None:
        while "grpo-worker-" in os.environ.get("TMPDIR", ""):
            pass


class LongUnbuildable(Attacker):
    def __init__(self, *arguments: Any) -> None:
        if "LONG_UNBUILDABLE" in os.environ:
            raise OSError("x" * LONG)
        super().__init__(*arguments)
