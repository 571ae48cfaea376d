"""`grpo env probe` with a model of a few thousand weights: what it says, what it suggests and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from grpo_core.cli.app import app
from grpo_core.train.actor import Actor

from ..commandline import words

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

class Easy(Parity):
    def verify(self, task, rollout):
        return Verdict({"even": Reward(1), "short": Reward(len(rollout.text) / 100)}, passed=True, answer="x")

def look_up(word: str) -> str:
    """Look a word up."""
    return word

class Tooled(Parity):
    max_turns = 2

    def task(self, key):
        return Task(key, (Message("user", f"{key.index}:"),), None)

    def tools(self):
        return [look_up]

class Broken(Parity):
    def verify(self, task, rollout):
        raise RuntimeError("the verifier has a bug")
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "toys.py").write_text(CODE)
    return str(tmp_path / "toys.py")


@pytest.fixture
def probe(file: str, tiny_folder: Path) -> Any:
    """The command on a class of `CODE`."""

    def probed(name: str, *arguments: str) -> Result:
        model = ["--model", str(tiny_folder), "--dtype", "float32"]
        return CliRunner().invoke(
            app,
            [
                "env",
                "probe",
                f"{file}:{name}",
                *model,
                "--tasks",
                "4",
                "--samples",
                "6",
                *arguments,
            ],
        )

    return probed


def test_what_sometimes_passes_is_trainable_with_status_0(probe: Any) -> None:
    done = probe("Parity", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["environment"], found["samples"], found["trainable"]) == (
        "toys.py:Parity",
        6,
        True,
    )
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


def test_people_see_bars_suggestions_and_the_verdict_in_one_sentence(probe: Any) -> None:
    shown = probe("Parity", "--level", "0", "--level", "1").stdout
    for text in (
        "level 0",
        "level 1",
        "pass@1",
        "pass@6",
        "mixed in passing",
        "no answer",
        "cut off",
        "█",
    ):
        assert text in shown
    assert "level 0.5" not in shown
    assert "suggested: level " in shown
    assert "part even" in shown
    assert shown.splitlines()[-1].startswith("trainable: at level ")


def test_partial_rewards_without_any_success_are_untrainable_with_status_1(probe: Any) -> None:
    done = probe("Partial", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["trainable"], found["level"], found["group_size"]) == (False, None, None)
    assert found["levels"][0]["mixed_reward"] == 1.0
    assert (
        found["reason"]
        == "at level 0 only 0.0% of the tasks have an attempt that passes, so there is no success to learn from"
    )
    assert probe("Partial").stdout.splitlines()[-1] == f"untrainable: {found['reason']}"


def test_with_open_ends_the_same_rewards_are_trainable(probe: Any) -> None:
    done = probe("Open", "--json")
    assert done.exit_code == 0, done.output
    assert "rewards differ within 100% of the groups" in json.loads(done.stdout)["reason"]


def test_what_always_passes_is_untrainable(probe: Any) -> None:
    done = probe("Easy", "--level", "0.5", "--json")
    assert done.exit_code == 1
    assert (
        "at level 0.5 only 0.0% of the tasks have an attempt that fails"
        in json.loads(done.stdout)["reason"]
    )


def test_a_verifier_that_fails_is_a_reason_and_no_0(probe: Any) -> None:
    done = probe("Broken", "--level", "0", "--set", "verify.retries=0", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["levels"][0]["unscored"], found["levels"][0]["pass_rate"]) == (1.0, None)
    assert "100% of the attempts could not be judged" in found["reason"]
    assert probe("Broken", "--level", "0", "--set", "verify.retries=0").exit_code == 1


def test_environments_that_a_run_only_evaluates_are_left_out(probe: Any) -> None:
    done = probe("Parity", "--level", "0", "--set", 'eval.also=["arithmetic"]')
    assert done.exit_code == 0, done.output


def test_without_levels_one_is_probed(probe: Any) -> None:
    assert len(json.loads(probe("Partial", "--json").stdout)["levels"]) == 1
    refused = probe("Partial", "--level", "1")
    assert refused.exit_code == 2
    assert "has no levels; remove --level" in refused.output


@pytest.mark.slow
def test_the_tasks_are_those_that_a_run_begins_with_each_once(
    probe: Any, file: str, tiny_folder: Path, monkeypatch: Any
) -> None:
    asked = []
    roll_out = Actor.sample_and_verify

    async def seen(self: Actor, tasks: Any, **more: Any) -> Any:
        asked.extend(task.key for task in tasks)
        return await roll_out(self, tasks, **more)

    monkeypatch.setattr(Actor, "sample_and_verify", seen)
    assert probe("Parity", "--level", "0.5", "--tasks", "9", "--seed", "3").exit_code == 0
    assert [(key.split, key.seed, key.level) for key in asked] == [("train", 3, 0.5)] * 5
    probed = [key.index for key in asked]
    assert sorted(probed) == [0, 1, 2, 3, 4]
    asked.clear()
    options = words(f"--model {tiny_folder} --steps 1 --prompts-per-step 5 --level 0.5 --seed 3")
    done = CliRunner().invoke(
        app,
        [
            "run",
            "--env",
            f"{file}:Parity",
            *options,
            "--set",
            "eval.tasks=0",
            "--out",
            str(tiny_folder / "run"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert [key.index for key in asked] == probed


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report(probe: Any) -> None:
    found = [
        json.loads(probe("Parity", "--json", "--seed", seed).stdout)["levels"]
        for seed in ("1", "1", "2")
    ]
    for levels in found:
        for level in levels:
            del level["verify_seconds"]
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_stop_prints_what_was_sampled(probe: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("grpo_core.train.run.measure.PROBE_CHUNK", 12)
    roll_out = Actor.sample_and_verify

    async def and_stop(self: Actor, *arguments: Any, **more: Any) -> Any:
        self.stop.make()
        return await roll_out(self, *arguments, **more)

    monkeypatch.setattr(Actor, "sample_and_verify", and_stop)
    done = probe("Parity", "--json")
    assert done.exit_code == 130
    (level,) = json.loads(done.stdout)["levels"]
    assert (level["level"], level["tasks"], level["verify_seconds"]) == (0.0, 2, None)
    assert "stopped before all tasks were done" in done.stderr
    assert probe("Parity").exit_code == 130


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Nothing", [], "has no attribute 'Nothing'"),
        (
            "Parity",
            ["--temperature", "0"],
            "sampling.temperature is 0: all completions of a group would be equal",
        ),
        ("Parity", ["--set", "env.x=1"], "env.x is not a setting"),
    ],
)
def test_wrong_input_is_one_line(probe: Any, name: str, arguments: list[str], message: str) -> None:
    done = probe(name, *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_what_a_run_would_warn_of_is_said_once(probe: Any) -> None:
    done = probe("Tooled", "--json", "--level", "0", "--max-new-tokens", "2")
    template, cut = json.loads(done.stdout)["warnings"]
    assert "the model's chat template has no place for tools" in template
    assert cut.startswith("at level 0 ")
    assert "of the attempts are cut off at 2 tokens" in cut
    lines = probe("Tooled", "--level", "0", "--max-new-tokens", "2").stdout.splitlines()
    assert [line for line in lines if line.startswith("warning: ")] == [
        f"warning: {template}",
        f"warning: {cut}",
    ]
