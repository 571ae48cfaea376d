"""Child processes that run once: they end at the deadline, with all that they started, and their output is bounded."""

import signal
import sys
import time
from pathlib import Path

import pytest

from grpo_core.calls import child as children
from grpo_core.calls.child import PARENT_PID, Child, Ending

from .processes import is_alive, wait_until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers, which only Linux has")


def ended(
    code: str, *arguments: str, request: bytes = b"", seconds: float = 30.0
) -> tuple[Ending, float]:
    """Run Python code as a child; return its ending, and how many seconds it took."""
    started = time.monotonic()
    with Child([sys.executable, "-c", f"import os, sys\n{code}", *arguments]) as child:
        ending = child.communicate(request, seconds=seconds)
    assert not is_alive(child.pid)
    return ending, time.monotonic() - started


def test_a_child_gets_its_request_and_its_output_comes_back_apart_from_its_errors() -> None:
    request = b"x" * 1_000_000
    ending, _ = ended(
        "sys.stdout.write(sys.stdin.read()); sys.stderr.write('done'); sys.exit(7)", request=request
    )
    assert ending == Ending(7, request, "done")


def test_a_child_knows_its_parent_by_an_argument() -> None:
    ending, _ = ended("print(int(sys.argv[1]) == os.getppid(), sys.argv[2])", PARENT_PID, "{x}")
    assert ending.output == b"True {x}\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [("os._exit(3)", 3), ("import signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV)],
)
def test_how_a_child_ended_is_known_though_it_reads_no_request(code: str, status: int) -> None:
    ending, seconds = ended(code, request=b"x" * 1_000_000)
    assert (ending.status, ending.output, ending.problem) == (status, b"", "")
    assert seconds < 20


def test_a_child_ends_at_its_deadline_and_what_it_wrote_is_kept() -> None:
    ending, seconds = ended("import time; print('so far', flush=True); time.sleep(60)", seconds=1.0)
    assert (ending.status, ending.output) == (None, b"so far\n")
    assert seconds < 10


def test_of_a_flood_of_output_a_bounded_part_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MAX_OUTPUT_BYTES", 100_000)
    code = "for _ in range(200): os.write(1, b'o' * 10_000); os.write(2, b'e' * 10_000)"
    ending, _ = ended(code)
    assert (ending.status, len(ending.output), len(ending.last_words)) == (0, 100_000, 3700)
    assert "100,000 bytes or more" in ending.problem


@LINUX
@pytest.mark.parametrize("ends", [True, False])
def test_a_process_with_a_session_of_its_own_ends_with_the_child_that_started_it(
    ends: bool, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    code = (
        "import pathlib, subprocess, time\n"
        "daemon = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(daemon.pid))\n"
        f"time.sleep({0 if ends else 60})"
    )
    ending, seconds = ended(code, str(note), seconds=30.0 if ends else 2.0)
    assert (ending.status, ending.problem) == (0 if ends else None, "")
    assert wait_until(lambda: not is_alive(int(note.read_text())))
    assert seconds < 20
