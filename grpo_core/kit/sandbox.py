"""Programs that settle whether a sandbox can be trusted: limits, isolation, attacks and what they leave behind. For any back end.

Each program is followed by an honest one in the same sandbox, which has to find everything as it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_core.kit.result import CheckResult
from grpo_core.sandbox import Limits, Outcome, Program, Sandbox

LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=128, output_bytes=10_000, result_bytes=10_000, processes=8, file_mb=1)
HONEST = Program("import os\ndef f(x): return x + 1, sorted(os.listdir('.'))", "f", [(1,)], LIMITS)
UNDISTURBED: tuple[int, list[str]] = (2, [])
SECRET = "GRPO_SANDBOX_CHECK_SECRET"
VALUES = (None, True, 1, 2**100, 0.5, "ä", b"\x00", [1, [2]], (1, (2,)), {1, 2}, {"a": (1,), 2: None})


@dataclass(frozen=True, slots=True)
class Check:
    """source: a program; kept: whether its outcome is what a good sandbox gives; wanted: that in words."""

    name: str
    source: str
    kept: Callable[[Outcome], bool]
    wanted: str


def _ends(*statuses: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.status in statuses


def _fails(outcome: Outcome) -> bool:
    return outcome.status not in ("ok", "infra_error")


def _returns(value: object) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.status == "ok" and outcome.value == value


_SOURCES = {
    "CPU time": """
def f(x):
    while True: pass
""",
    "output": """
def f(x):
    while True: print("x" * 1000)
""",
    "folder size": """
def f(x):
    for i in range(100_000): open(str(i), "wb").write(b"x" * 10**6)
""",
    "fork bomb": """
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "processes": """
import os, time
def f(x):
    for made in range(1000):
        try:
            if os.fork() == 0: time.sleep(100)
        except OSError: return made
    return 1000
""",
    "writing elsewhere": """
import os
def f(x):
    found = []
    for folder in ("/", "/tmp", "/etc", "/usr", "/usr/lib", "/dev", "/dev/shm", "/home", "/var/tmp"):
        try: open(os.path.join(folder, "grpo-check"), "w").close()
        except OSError: continue
        if os.path.realpath(folder) != os.getcwd(): found.append(folder)
    return found
""",
    "other processes": """
import os
def f(x):
    try: os.kill(-1, 9)
    except OSError: pass
""",
    "equal to everything": """
class A:
    def __eq__(self, other): return True
def f(x): return A()
""",
    "forged claim": """
import os
def f(x):
    for descriptor in range(3, 64):
        try: os.write(descriptor, bytes(4096))
        except OSError: pass
    os._exit(0)
""",
    "daemon": """
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(1000)
        os._exit(0)
    return x
""",
    "ignored signals": """
import signal, time
def f(x):
    for number in range(1, 64):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    time.sleep(100)
""",
    "memory of several": """
import os
def f(x):
    readers = []
    for _ in range(4):
        reader, writer = os.pipe()
        if os.fork() == 0:
            kept = bytearray(80 << 20)
            os.write(writer, b"x")
            os.read(reader, 2)
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    return sum(len(os.read(reader, 1)) for reader in readers)
""",
    "wall clock": "import time\ndef f(x): time.sleep(100)",
    "memory": "def f(x): return len(bytearray(10**9))",
    "result": "def f(x): return 'x' * 10**6",
    "file size": "def f(x): open('a', 'wb').write(b'x' * 10**7)",
    "network": "import socket\ndef f(x): socket.create_connection(('1.1.1.1', 53), 1)",
    "environment": f"import os\ndef f(x): return os.environ.get({SECRET!r})",
    "supervisor's memory": "def f(x): return open('/proc/1/mem', 'rb').read(1)",
    "root": "import os\ndef f(x): os.setuid(0); open('/proc/1/mem', 'rb').read(1)",
    "leaving": "import os\ndef f(x): os._exit(0)",
    "files that stay": "import os\ndef f(x): os.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a', 0); return x",
    "crash": "import ctypes\ndef f(x): ctypes.string_at(0)",
}
CHECKS: Sequence[Check] = tuple(
    Check(name, _SOURCES[name], kept, wanted)
    for name, kept, wanted in (
        ("CPU time", _ends("timeout_cpu"), "end at the limit of CPU time"),
        ("wall clock", _ends("timeout_wall"), "end at the deadline"),
        ("memory", _ends("oom"), "end with oom"),
        ("output", _ends("output_limit"), "end at the limit of output"),
        ("result", _ends("bad_result"), "have its value refused"),
        ("file size", _fails, "not be able to write it"),
        ("folder size", _fails, "run out of room"),
        ("fork bomb", _fails, "be ended"),
        ("processes", lambda outcome: outcome.status == "ok" and outcome.value <= LIMITS.processes, "get no more than its processes"),
        ("network", _fails, "not reach anything"),
        ("environment", _returns(None), "not see the caller's variables"),
        ("writing elsewhere", _returns([]), "write in its own folder only"),
        ("other processes", _ends("ok", "signal"), "hit nobody but itself"),
        ("supervisor's memory", _fails, "not read it"),
        ("root", _fails, "not become it"),
        ("leaving", _ends("no_result"), "have claimed nothing"),
        ("equal to everything", _ends("bad_result"), "be refused"),
        ("forged claim", _fails, "not be believed"),
        ("daemon", _returns(1), "return, and be cleaned up after"),
        ("files that stay", _returns(1), "return, and be cleaned up after"),
        ("ignored signals", _ends("timeout_wall"), "be ended all the same"),
        ("crash", _ends("signal"), "end with its signal"),
    )
)


async def check_sandbox(sandbox: Sandbox) -> list[CheckResult]:
    """What became of each check. Takes about 20 s."""
    os.environ[SECRET] = "seen"
    try:
        return [
            await _values(sandbox),
            *[await _one(sandbox, check) for check in CHECKS],
            await _several(sandbox),
            await _neighbours(sandbox),
        ]
    finally:
        del os.environ[SECRET]


async def _values(sandbox: Sandbox) -> CheckResult:
    (outcomes,) = await sandbox.run([Program("def f(x): return x", "f", [(value,) for value in VALUES], LIMITS)])
    for value, outcome in zip(VALUES, outcomes, strict=True):
        if outcome.status != "ok" or (type(outcome.value), outcome.value) != (type(value), value):
            return CheckResult("values", "invalid", f"{value!r} came back as {outcome.status} {outcome.value!r} {outcome.error}")
    return CheckResult("values", "valid", f"{len(VALUES)} kinds of values come back with their types")


async def _one(sandbox: Sandbox, check: Check) -> CheckResult:
    (outcome,), (after,) = await sandbox.run([Program(check.source, "f", [(1,)], LIMITS), HONEST])
    shown = f"{outcome.status} {'' if outcome.value is None else repr(outcome.value)[:60]} {outcome.error[:80]}".strip()
    if not check.kept(outcome):
        return CheckResult(check.name, "invalid", f"the program should {check.wanted}; it ended with {shown}")
    if after.status != "ok" or after.value != UNDISTURBED:
        return CheckResult(check.name, "invalid", f"the next program was disturbed: {after.status} {after.value!r} {after.error[:80]}")
    return CheckResult(check.name, "valid", shown)


async def _several(sandbox: Sandbox) -> CheckResult:
    ((outcome,),) = await sandbox.run([Program(_SOURCES["memory of several"], "f", [(1,)], LIMITS)])
    if outcome.status == "ok" and outcome.value == 4:
        text = f"four processes got 80 MB each: the limit of {LIMITS.memory_mb} MB holds for each process, not for all of a program's"
        return CheckResult("memory of several", "not_checked", text)
    return CheckResult(
        "memory of several", "valid", f"four processes did not get 80 MB each: {outcome.status} {outcome.error[:80]}".strip()
    )


async def _neighbours(sandbox: Sandbox) -> CheckResult:
    """Honest programs beside hostile ones."""
    hostile = [Program(check.source, "f", [(1,)], LIMITS) for check in CHECKS]
    rows = await asyncio.gather(*(sandbox.run([program, HONEST, HONEST]) for program in hostile))
    wrong = sum(outcome.value != UNDISTURBED for row in rows for (outcome,) in row[1:])
    if wrong:
        return CheckResult("neighbours", "invalid", f"{wrong} of {2 * len(rows)} honest programs beside hostile ones got another outcome")
    return CheckResult("neighbours", "valid", f"{2 * len(rows)} honest programs beside hostile ones got theirs")
