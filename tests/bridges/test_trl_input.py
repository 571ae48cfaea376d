"""The bridge to TRL: wrong input gets one clear message, event loops do not matter, and workers end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core import GrpoError, UserError
from grpo_core.protocol.errors import MissingExtraError
from grpo_trl import dataset, opened, reward_functions, rollout_func

from ..core.processes import is_alive, wait_until

FILE = Path(__file__).parent / "spelling.py"
SPELLING, TALKING = f"{FILE}:Spelling", f"{FILE}:Talking"
HERE = {"verify": {"isolation": "inline"}}
"""Verdicts of this process, which begins sooner than a worker."""
ANSWER = [[{"role": "assistant", "content": "abcd"}]]


def score(environment: str = SPELLING, **changes: Any) -> Any:
    """Score a row of an environment; `changes` replaces keywords of the call, None removes one."""
    with opened(environment, HERE) as env:
        row = dataset(env, "train", 1)[0]
        keywords = {"completions": ANSWER, "task_key": [row["task_key"]], **changes}
        given = {name: value for name, value in keywords.items() if value is not None}
        return reward_functions(env)[0][0](prompts=[row["prompt"]], **given)


def key_of(environment: str, settings: dict[str, Any]) -> dict[str, Any]:
    with opened(environment, settings) as env:
        key: dict[str, Any] = dataset(env, "train", 1)[0]["task_key"]
        return key


def rows(environment: str, count: int | None, split: Any = "train") -> None:
    with opened(environment) as env:
        dataset(env, split, count)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no such environment": (lambda: opened("arithmetik"), "did you mean 'arithmetic'"),
    "no such part": (lambda: opened(SPELLING, {"weights": {"exakt": 1}}), "did you mean 'exact'"),
    "tools without turns": (lambda: opened(f"{FILE}:Single"), "set max_turns to 2 or more"),
    "no key": (lambda: score(task_key=None), "has no column 'task_key'"),
    "not a key": (lambda: score(task_key=[{"number": 1}]), "which is no task's key"),
    "of another environment": (
        lambda: score(task_key=[key_of("arithmetic", {})]),
        "has tasks of 'arithmetic'",
    ),
    "of other settings": (
        lambda: score(task_key=[key_of(SPELLING, {"env": {"shout": True}})]),
        "with the same settings",
    ),
    "no rollout function": (lambda: score(TALKING), "=grpo_trl.rollout_func"),
    "tasks without end": (lambda: rows(SPELLING, None), "say how many"),
    "too many tasks": (lambda: rows(SPELLING, 13, "eval"), "has 12 in its eval split"),
    "a dialogue after raw text": (lambda: rows(f"{FILE}:RawTalking", 1), "make the prompt a chat"),
    "gaps": (lambda: rows(f"{FILE}:Gaps", 1), "gaps for a masked language model"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gets_one_clear_message(case: str) -> None:
    attempt, message = WRONG[case]
    with pytest.raises(UserError, match=message.replace("(", r"\(")) as raised:
        attempt()
    assert "\n" not in str(raised.value)


def test_without_the_package_datasets_the_message_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with opened(SPELLING) as env, pytest.raises(MissingExtraError, match=r"grpo-core\[datasets\]"):
        dataset(env, "train", 1)


def test_the_bridge_is_imported_without_trl_torch_datasets_and_plugins() -> None:
    code = "import sys, grpo_trl; print(*sys.modules)"
    printed = in_a_process(code).stdout.split()
    assert "grpo_trl" in printed
    heavy = {"trl", "torch", "transformers", "datasets", "numpy", "jinja2", "grpo_env_arithmetic"}
    assert heavy & {*printed} == set()


def test_only_environments_with_dialogues_need_a_rollout_function() -> None:
    with opened(SPELLING) as env:
        assert rollout_func(env) is None
    with opened(TALKING) as env:
        assert rollout_func(env) is not None


def test_functions_work_where_an_event_loop_is_running_and_in_any_thread() -> None:
    async def inside() -> Any:
        first = score()
        return first, await asyncio.to_thread(score)

    first, second = asyncio.run(inside())
    assert first == second == score()


def test_an_environment_of_ones_own_is_taken_as_it_is() -> None:
    sys.path.insert(0, str(FILE.parent))
    from spelling import Config, Spelling

    with opened(Spelling(Config(shout=True)), name="loud") as env:
        row = dataset(env, "train", 1)[0]
        word = row["prompt"][0]["content"].removeprefix("Repeat ")
        assert (row["task_key"]["env"], word) == ("loud", word.upper())
        functions, _ = reward_functions(env)
        completions = [[{"role": "assistant", "content": word}]]
        assert functions[1](completions, task_key=[row["task_key"]]) == [1.0]


USES = """
import sys
from grpo_trl import dataset, opened, reward_functions
env = opened(sys.argv[1])
row = dataset(env, "train", 1)[0]
functions, _ = reward_functions(env)
functions[0]([[{"role": "assistant", "content": "a"}]], task_key=[row["task_key"]])
from pathlib import Path
everyone = [p for f in Path("/proc/self/task").glob("*/children") for p in f.read_text().split()]
print(*everyone, flush=True)
"""


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, SPELLING]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


ENDS = {
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "exit": ("", 0),
    "close": ("env.close(); env.close()", 0),
    "exception": ("raise ValueError", 1),
}


@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("end", "status"), ENDS.values(), ids=ENDS)
def test_no_worker_outlives_the_process(end: str, status: int) -> None:
    ended = in_a_process(USES + end)
    assert ended.returncode == status, ended.stderr
    workers = list(map(int, ended.stdout.split()))
    assert workers
    assert wait_until(lambda: not any(map(is_alive, workers)), 20)


def test_after_the_end_the_message_says_that_the_environment_is_closed() -> None:
    with opened(SPELLING) as env:
        pass
    with pytest.raises(GrpoError, match="is closed"):
        env.tasks([])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_refused_and_not_left_waiting() -> None:
    code = (
        "import os, sys\nfrom grpo_trl import opened\nenv = opened(sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    try:\n        env.tasks([])\n    except Exception as error:\n"
        "        print('refused:', error)\n    sys.exit()\n"
        "print(os.waitpid(pid, 0)[1])\n"
    )
    printed = in_a_process(code).stdout
    assert "refused:" in printed
    assert "forked" in printed
    assert printed.endswith("0\n")
