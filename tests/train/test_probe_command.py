"""`grpo env probe` with a model of a few thousand weights: what it says, what it suggests and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from grpo_core.train.actor import Actor

from ..commandline import words
from .short_runs import grpo
from .tiny import save_tiny

CODE = '''
from grpo_core import Environment, Message, Reward, Task, Verdict

class Parity(Environment):
    """The sum of the characters is to be even: every other attempt of any model passes. Only training tasks can be asked."""
    max_new_tokens = 6
    trusted = True
    parts = {"even": 0.5, "short": 0.5}

    def size(self, split):
        return 5 if split == "train" else 0

    def task(self, key):
        assert key.split == "train"
        return Task(key, f"{key.index}:", None)

    def verify(self, task, rollout):
        even = sum(map(ord, rollout.text)) % 2 == 0
        return Verdict({"even": Reward(even), "short": Reward(0.5)}, passed=even, answer=rollout.text if even else None)

class Partial(Parity):
    """Pays something, and is never satisfied."""
    levels = False

    def verify(self, task, rollout):
        return Verdict({"even": Reward(sum(map(ord, rollout.text)) % 7 / 7), "short": Reward(0)}, passed=False, answer=rollout.text)

class Open(Partial):
    open_ended = True

class Tooled(Parity):
    max_turns = 2

    def task(self, key):
        return Task(key, (Message("user", f"{key.index}:"),), None)

    def tools(self):
        def look_up(word: str) -> str:
            """Look a word up."""
            return word
        return [look_up]

class Broken(Parity):
    def verify(self, task, rollout):
        raise RuntimeError("the verifier has a bug")
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the environments and a model."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "toys.py").write_text(CODE)
    save_tiny(folder / "tiny")
    return folder


Probe = Callable[..., Result]


@pytest.fixture(scope="module")
def probe(place: Path) -> Probe:
    """The command on a class of `CODE`."""

    def probed(name: str, arguments: str = "", *, status: int = 0) -> Result:
        few = f"--model {place / 'tiny'} --dtype float32 --tasks 4 --samples 6 {arguments}"
        return grpo("env", "probe", f"{place / 'toys.py'}:{name}", *words(few), status=status)

    return probed


def found_by(done: Result) -> Any:
    return json.loads(done.stdout)


def test_what_sometimes_passes_is_trainable_with_status_0(probe):
    found = found_by(probe("Parity", "--json"))
    shown = found["environment"], found["samples"], found["trainable"]
    assert shown == ("toys.py:Parity", 6, True)
    assert [level["level"] for level in found["levels"]] == [0.0, 0.5, 1.0]
    for level in found["levels"]:
        assert (level["tasks"], level["attempts"], level["unscored"]) == (4, 24, 0.0)
        assert list(level["pass_at"]) == ["1", "2", "4", "6"]
        assert level["pass_rate"] == level["parts"]["even"] == pytest.approx(1 - level["unparsed"])
        assert level["parts"]["short"] == 0.5
        assert level["tokens"]["p99"] <= 6
        assert 0 < level["verify_seconds"]["median"] <= level["verify_seconds"]["p99"]
    assert found["level"] in (0.0, 0.5, 1.0)
    assert found["group_size"] == 4
    assert found["max_new_tokens"] >= 8


def test_people_see_bars_suggestions_and_the_verdict_in_one_sentence(probe):
    """Also where a run would evaluate other environments, which are left out."""
    shown = probe("Parity", """--level 0 --level 1 --set 'eval.also=["arithmetic"]'""").stdout
    labels = ("pass@1", "pass@6", "mixed in passing", "no answer", "cut off", "█", "part even")
    for text in ("level 0", "level 1", *labels, "suggested: level "):
        assert text in shown
    assert "level 0.5" not in shown
    assert "arithmetic" not in shown
    assert shown.splitlines()[-1].startswith("trainable: at level ")


def test_partial_rewards_without_any_success_are_untrainable_with_status_1(probe):
    found = found_by(probe("Partial", "--json", status=1))
    assert (found["trainable"], found["level"], found["group_size"]) == (False, None, None)
    (level,) = found["levels"]
    assert level["mixed_reward"] == 1.0
    reason = "at level 0 only 0.0% of the tasks have an attempt that passes, so there is no success to learn from"
    assert found["reason"] == reason
    *_, conclusion, advice = probe("Partial", status=1).stdout.splitlines()
    assert conclusion == f"untrainable: {reason}"
    assert advice == found["advice"]
    for way in ("--max-new-tokens", "`grpo sft --env ", "denser reward", "larger model"):
        assert way in advice
    refused = probe("Partial", "--level 1", status=2)
    assert "has no levels; remove --level" in refused.output


def test_with_open_ends_the_same_rewards_are_trainable(probe):
    reason = found_by(probe("Open", "--json"))["reason"]
    assert "rewards differ within 100% of the groups" in reason


def test_a_verifier_that_fails_is_a_reason_and_no_0(probe):
    once = "--level 0 --set verify.retries=0"
    found = found_by(probe("Broken", f"{once} --json", status=1))
    (level,) = found["levels"]
    assert (level["unscored"], level["pass_rate"]) == (1.0, None)
    assert "100% of the attempts could not be judged" in found["reason"]
    assert "could not be judged" in probe("Broken", once, status=1).stdout


@pytest.mark.slow
def test_the_tasks_are_those_that_a_run_begins_with_each_once(probe, place, tmp_path, monkeypatch):
    asked = []
    roll_out = Actor.sample_and_verify

    async def seen(self: Actor, tasks: Any, **more: Any) -> Any:
        asked.extend(task.key for task in tasks)
        return await roll_out(self, tasks, **more)

    monkeypatch.setattr(Actor, "sample_and_verify", seen)
    probe("Parity", "--level 0.5 --tasks 9 --seed 3")
    assert [(key.split, key.seed, key.level) for key in asked] == [("train", 3, 0.5)] * 5
    probed = [key.index for key in asked]
    assert sorted(probed) == [0, 1, 2, 3, 4]
    asked.clear()
    env = f"--env {place / 'toys.py'}:Parity --model {place / 'tiny'} --out {tmp_path / 'run'}"
    size = "--steps 1 --prompts-per-step 5 --level 0.5 --seed 3 --set eval.tasks=0"
    grpo("run", *words(f"{env} {size}"))
    assert [key.index for key in asked] == probed


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report(probe):
    found = [found_by(probe("Parity", f"--json --seed {seed}"))["levels"] for seed in (1, 1, 2)]
    for level in (level for levels in found for level in levels):
        del level["verify_seconds"]
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_stop_prints_what_was_sampled(probe, monkeypatch):
    monkeypatch.setattr("grpo_core.train.run.measure.PROBE_CHUNK", 12)
    roll_out = Actor.sample_and_verify

    async def and_stop(self: Actor, *arguments: Any, **more: Any) -> Any:
        self.stop.make()
        return await roll_out(self, *arguments, **more)

    monkeypatch.setattr(Actor, "sample_and_verify", and_stop)
    done = probe("Parity", "--json", status=130)
    (level,) = found_by(done)["levels"]
    assert (level["level"], level["tasks"], level["verify_seconds"]) == (0.0, 2, None)
    assert "stopped before all tasks were done" in done.stderr
    probe("Parity", status=130)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Nothing", "", "defines no 'Nothing'"),
        ("Parity", "--temperature 0", "sampling.temperature is 0: all completions of a group"),
        ("Parity", "--set env.x=1", "env.x is not a setting"),
    ],
)
def test_wrong_input_is_one_line(probe, name, arguments, message):
    said = probe(name, arguments, status=2).output
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_what_a_run_would_warn_of_is_said_once(probe):
    cut_short = "--level 0 --max-new-tokens 2"
    template, cut = found_by(probe("Tooled", f"{cut_short} --json"))["warnings"]
    assert "the model's chat template has no place for tools" in template
    assert cut.startswith("at level 0 ")
    assert "of the attempts are cut off at 2 tokens" in cut
    lines = probe("Tooled", cut_short).stdout.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert warnings == [f"warning: {template}", f"warning: {cut}"]
