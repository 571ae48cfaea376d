"""`grpo env play`: a person, a pipe or a terminal answers as the policy."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..commandline import words
from .distributions import TOY_ENVIRONMENT, grpo

HIGHER = '''
from grpo_core import Environment, Message, Reward, Task, Verdict

class Higher(Environment):
    """The policy looks for 7 in at most three turns."""
    max_turns = 3
    trusted = True
    levels = False

    def task(self, key):
        return Task(key, "Which number?", 7)

    async def reply(self, task, messages):
        if messages[-1].content == "break":
            raise RuntimeError("lost its way")
        return None if messages[-1].content == "7" else (Message("user", "higher" if int(messages[-1].content) < 7 else "lower"),)

    def verify(self, task, rollout):
        return Verdict({"reward": Reward(rollout.text == "7")}, passed=rollout.text == "7", answer=f"{len(rollout.messages)} messages")
'''


@pytest.fixture
def higher(site: Path) -> str:
    (site / "higher.py").write_text(HIGHER)
    return "higher.py:Higher"


def played(
    *lines: str, name: str = "toy", more: tuple[str, ...] = ()
) -> tuple[list[str], list[str]]:
    """What stands on stdout and on stderr after so many lines of input."""
    result = grpo("env", "play", name, *more, stdin="".join(f"{line}\n" for line in lines))
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines(), result.stderr.splitlines()


def test_an_answer_is_shown_with_its_parts_notes_total_and_what_was_extracted(toy: Path) -> None:
    shown, _ = played("9", ".", more=("--index", "3"))
    assert shown[:5] == [
        "toy, train task 3, level 0",
        "[system]",
        "Answer with a number.",
        "[user]",
        "What is 3 * 3?",
    ]
    assert [line.split() for line in shown[5:9]] == [
        ["exact", "1", "x", "1"],
        ["bonus", "0.5", "x", "1", "for", "style"],
        ["total", "1.5", "passed"],
        ["answer", "9"],
    ]
    assert shown[9:] == ["attempts 1, passed 1, mean reward 1.500"]


def test_an_answer_has_as_many_lines_as_it_likes_and_the_end_of_the_input_ends_it(
    toy: Path,
) -> None:
    (toy / "toy_environment.py").write_text(
        TOY_ENVIRONMENT.replace("answer=text", "answer=repr(rollout.text)")
    )
    shown, _ = played("1", "", ":next", ".", ".", "::x", "last")
    assert [line.split(maxsplit=1)[1] for line in shown if line.startswith("answer ")] == [
        repr("1\n\n:next"),
        repr(""),
        repr(":x\nlast"),
    ]
    assert shown[-1] == "attempts 3, passed 0, mean reward 0.000"


def test_next_and_level_ask_other_tasks_and_reference_helps(toy: Path) -> None:
    shown, _ = played(":next", ":reference", ":level 0.5", "1", ".", more=("--split", "eval"))
    assert [line for line in shown if line.startswith("toy")] == [
        "toy, eval task 0, level 0",
        "toy, eval task 1, level 0",
        "toy, eval task 1, level 0.5",
    ]
    assert shown[shown.index("[reference]") + 1] == "1"
    assert shown[-1] == "attempts 1, passed 1, mean reward 1.500"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (":nxt", "':nxt' is not a command; :help lists the commands"),
        (":next 3", "':next 3' is not a command"),
        (":level", "':level' is not a command"),
        (":level hard", "a level is a number from 0 to 1; found 'hard'"),
        (":level 1.5", "a level is a number from 0 to 1; found '1.5'"),
    ],
)
def test_a_command_that_cannot_be_obeyed_is_one_line_and_the_task_stays(
    toy: Path, command: str, message: str
) -> None:
    shown, said = played(command, "0", ".")
    assert len([line for line in said if message in line]) == 1
    assert shown[-1] == "attempts 1, passed 1, mean reward 1.500"


def test_there_is_no_task_after_the_last_and_no_level_where_there_is_one(
    toy: Path, higher: str
) -> None:
    shown, said = played(":next", "81", ".", more=("--index", "9"))
    assert "this was the last of 10 tasks" in said
    assert shown[-1].startswith("attempts 1, passed 1")
    assert "higher.py:Higher has no levels" in played(":level 0.5", name=higher)[1]


def test_help_lists_every_command_and_quit_and_the_end_of_the_input_leave(toy: Path) -> None:
    shown, _ = played(":help")
    assert shown[-1] == played(":quit", "0", ".")[0][-1] == "no attempts"
    for command in (":next", ":level 0.5", ":reference", ":help", ":quit"):
        assert any(line.startswith(command) for line in shown)


def test_an_answer_that_could_not_be_judged_is_said_and_is_no_0(toy: Path) -> None:
    shown, said = played("crash", ".", "0", ".")
    assert not any("noise" in line for line in shown)
    assert "noise of a task" in said
    assert any(
        "the answer could not be judged" in line and "the verifier has a bug" in line
        for line in shown
    )
    assert shown[-1] == "attempts 2, passed 1, mean reward 1.500, 1 could not be judged"


def test_a_dialogue_goes_on_until_the_environment_or_the_turns_end_it(higher: str) -> None:
    turns = ("5", "9", "7", "7", "1", "2", "3")
    shown, _ = played(*(line for turn in turns for line in (turn, ".")), name=higher)
    said = [line.split()[-2:] for line in shown if re.match("higher$|lower$|answer ", line)]
    assert said == [
        *(["higher"], ["lower"], ["5", "messages"]),
        ["1", "messages"],
        *(["higher"], ["higher"], ["5", "messages"]),
    ]
    assert shown[-1] == "attempts 3, passed 2, mean reward 0.667"


def test_a_dialogue_that_breaks_is_not_judged_and_a_new_one_begins(higher: str) -> None:
    shown, said = played("5", ".", "break", ".", "7", ".", name=higher)
    assert any("failed in reply()" in line and "lost its way" in line for line in said)
    assert shown[-1] == "attempts 2, passed 1, mean reward 1.000, 1 could not be judged"
    assert f"{'answer':<20} 1 messages" in shown


def test_a_task_that_cannot_be_made_is_one_line_and_the_last_one_stays(toy: Path) -> None:
    (toy / "toy_environment.py").write_text(
        TOY_ENVIRONMENT.replace("n = key.index", "n = 1 // (1 - key.index) and key.index")
    )
    shown, said = played(":next", "0", ".")
    assert len([line for line in said if "failed in task()" in line]) == 1
    assert shown[-1].startswith("attempts 1, passed 1")
    assert grpo("env", "play", "toy", "--index", "1").exit_code == 1


@contextmanager
def in_terminal(code: str, cwd: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The other end of a terminal in which the command runs, until it is killed."""
    here, there = pty.openpty()
    command = [sys.executable, "-c", code, *words("env play toy --index 3")]
    with subprocess.Popen(command, preexec_fn=lambda: os.login_tty(there), cwd=cwd) as process:
        os.close(there)
        try:
            yield here, process
        finally:
            process.kill()
    os.close(here)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("key", "status"), [(b"\x03", 130), (b"\x04", 0)])
def test_ctrl_d_and_ctrl_c_leave_a_terminal_cleanly(toy: Path, key: bytes, status: int) -> None:
    """Untrusted, so that a worker process has to be ended, too."""
    (toy / "toy_environment.py").write_text(TOY_ENVIRONMENT.replace("trusted = True", ""))
    with in_terminal("from grpo_core.cli import main; main()", toy) as (here, process):
        said = _until(here, b"help lists")
        os.write(here, b"9\n.\n")
        said += _until(here, b"Answer again")
        os.write(here, key)
        said += _until(here, b"attempts 1, passed 1, mean reward 1.500")
        assert process.wait(timeout=30) == status
    assert b"Traceback" not in said


def test_a_ctrl_c_that_does_not_interrupt_the_reading_ends_it_nevertheless(toy: Path) -> None:
    """As one that comes just before the system begins to read; here another thread gets it."""
    with in_terminal(LATE, toy) as (here, process):
        _until(here, b"help lists")
        (toy / "now").touch()
        _until(here, b"no attempts")
        assert process.wait(timeout=30) == 130


LATE = """
import os, signal, threading, time

def press():
    while not os.path.exists("now"):
        time.sleep(0.01)
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=press, daemon=True).start()
from grpo_core.cli import main
main()
"""


def _until(terminal: int, wanted: bytes) -> bytes:
    """What the terminal shows up to `wanted`."""
    shown, deadline = b"", time.monotonic() + 60
    while wanted not in shown:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], (
            f"{wanted!r} did not come; {shown!r} did"
        )
        shown += os.read(terminal, 4096)
    return shown


GAME = '''
from grpo_core import Environment, Episode, Message, Reward, Task, Verdict

class Round(Episode):
    def __init__(self, number):
        self.number, self.asked = number, 0

    async def open(self):
        return (Message("user", "three guesses"),)

    async def reply(self, messages):
        self.asked += 1
        if messages[-1].content == str(self.number):
            return None
        return (Message("user", f"{self.asked} wrong"),)

    async def verdict(self, rollout):
        right = rollout.text == str(self.number)
        return Verdict({"reward": Reward(right)}, passed=right, answer=f"asked {self.asked} times")

class Game(Environment):
    """The policy looks for 7 in at most three turns."""
    max_turns = 3
    replayable = REPLAYABLE
    levels = False

    def task(self, key):
        return Task(key, "Which number?", 7)

    def episode(self, task):
        return Round(task.data)
'''


def test_an_episode_is_played_and_each_attempt_is_a_new_one(site: Path) -> None:
    (site / "game.py").write_text(GAME.replace("REPLAYABLE", "False"))
    out, _ = played("5", ".", "7", ".", "1", ".", "2", ".", "3", ".", name="game.py:Game")
    heard = [line for line in out if re.search("guesses|wrong|asked", line)]
    assert [re.sub(r".*(asked \d times).*", r"\1", line) for line in heard] == [
        *("three guesses", "1 wrong", "asked 2 times"),
        *("three guesses", "1 wrong", "2 wrong", "asked 2 times"),
        "three guesses",
    ]
    assert out[-1] == "attempts 2, passed 1, mean reward 0.500"


OPENED = [("user", "three guesses"), ("assistant", "5")]
RIGHT = ("assistant", "7")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "replayable", "status", "said"),
    [
        ([("user", "1 wrong"), RIGHT], True, 0, '"total": 1.0'),
        ([("user", "1 wrong"), RIGHT], True, 0, "asked 2 times"),
        ([("user", "2 wrong"), RIGHT], True, 1, "replay diverged at message 3"),
        ([("user", "1 wrong")], True, 2, "ends with a message of the role 'user'"),
        ([("user", "1 wrong"), RIGHT], False, 1, "Game is not replayable"),
        ([], True, 0, "asked 1 times"),
    ],
)
def test_a_recorded_dialogue_is_scored_by_playing_it_again(
    more: list[tuple[str, str]], replayable: bool, status: int, said: str, site: Path
) -> None:
    (site / "game.py").write_text(GAME.replace("REPLAYABLE", str(replayable)))
    messages = [{"role": role, "content": content} for role, content in [*OPENED, *more]]
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    answer = lines if more else "7"
    result = grpo("env", "score", "game.py:Game", "--answer", "-", "--json", stdin=answer)
    assert result.exit_code == status, result.output
    assert said in result.output
