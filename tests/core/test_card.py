"""`grpo env card`: what an environment is and declares, and what answers get that ignore the task."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config
from grpo_core.verify.card import make_card
from grpo_core.verify.sources import Sources

from .distributions import TOY_ENVIRONMENT, grpo

PARITY = '''
from grpo_core import Environment, Message, Reward, Task, Verdict

class Parity(Environment):
    """Odd or even?

    Everything else is no part of the card.
    """
    parts = {"form": 0.25, "right": 0.75}
    trusted = True
    levels = False

    def size(self, split):
        return 12

    def task(self, key):
        return Task(key, f"Is {key.index} | odd?", "yes" if key.index % 4 == 1 else "no")

    def reference(self, task):
        return task.data

    def verify(self, task, rollout):
        right = rollout.text == task.data
        return Verdict({"form": Reward(rollout.text in ("yes", "no")), "right": Reward(right)}, passed=right, answer=rollout.text)
'''
JUDGED = PARITY.replace("trusted = True", "needs = frozenset({'judge'})").replace(
    "def verify", "async def averify"
)

THRICE = '''
from grpo_core import Environment, Message, Reward, Task, Verdict

class Thrice(Environment):
    """Wants to hear yes three times."""
    max_turns = 3
    trusted = True

    def task(self, key):
        return Task(key, f"{key.index}: really?", None)

    async def reply(self, task, messages):
        return (Message("user", "really?"),)

    def verify(self, task, rollout):
        right = [(m.role, m.content) for m in rollout.messages] == [("assistant", "yes"), ("user", "really?")] * 2 + [("assistant", "yes")]
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text)
'''


@pytest.fixture
def parity(site: Path) -> str:
    """Of its tasks 0 .. 11 every fourth is odd; the right word is worth 1, the other one 0.25."""
    (site / "parity.py").write_text(PARITY)
    return "parity.py:Parity"


def carded(*arguments: str) -> Any:
    result = grpo("env", "card", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def floors(data: Any) -> dict[str, tuple[float | None, float | None, int]]:
    return {
        floor["answer"]: (floor["reward"], floor["pass_rate"], floor["tasks"])
        for floor in data["floors"]
    }


PAGE = "https://toy.example"
SAID = "License-Expression: MIT\nProject-URL: Changelog, https://toy.example/new\n"


@pytest.mark.parametrize(
    ("lines", "licence", "home_page"),
    [
        (f"{SAID}Project-URL: Homepage, {PAGE}\n", "MIT", PAGE),
        ("", None, None),
        (f"License: MIT License\nHome-page: {PAGE}\n", "MIT License", PAGE),
        ("Classifier: License :: OSI Approved :: BSD License\n", "BSD License", None),
    ],
    ids=["today's fields", "missing", "old fields", "a classifier"],
)
def test_the_distribution_is_described_by_its_own_metadata_and_missing_ones_stay_unknown(
    toy: Path, lines: str, licence: str | None, home_page: str | None
) -> None:
    with (next(toy.glob("grpo_env_toy-*.dist-info")) / "METADATA").open("a") as file:
        file.write(lines)
    assert carded("toy", "--tasks", "0")["origin"] == {
        "distribution": "grpo-env-toy",
        "version": "1.0",
        "license": licence,
        "home_page": home_page,
    }
    shown = grpo("env", "card", "toy", "--tasks", "0").stdout
    assert ("no licence stated" in shown) == (licence is None)


def test_a_card_holds_what_the_environment_declares(toy: Path) -> None:
    data = carded("toy", "--tasks", "0", "--set", "env.bonus=0.25")
    expected = {
        "name": "toy",
        "summary": "Adds toy.",
        "about": "Asks for the square of a number.",
        "settings": {"bonus": 0.25},
        "parts": {"exact": 1.0, "bonus": 1.0},
        "reward_range": [0.0, 1.5],
        "floor": 0.0,
        "needs": [],
        "tasks": {"train": 10, "eval": 10},
        "turns": 1,
        "max_new_tokens": 256,
    }
    assert {name: data[name] for name in expected} == expected
    assert data["flags"]["trusted"]
    assert not data["flags"]["stateful"]
    assert data["prompt"][1] == {"role": "user", "content": "What is 0 * 0?"}
    assert carded("toy", "--tasks", "0")["fingerprint"] != data["fingerprint"]


def test_floors_are_measured_on_tasks_that_gave_none_of_the_answers(parity: str) -> None:
    """Tasks 0 .. 5, of which 1 and 5 are odd; the references of 6 .. 11, of which 9 is odd, are tried on them."""
    assert floors(carded(parity)) == {
        "nothing": (0.0, 0.0, 6),
        "white space": (0.0, 0.0, 6),
        "the prompt echoed": (0.0, 0.0, 6),
        "the best constant": (pytest.approx((4 + 2 * 0.25) / 6), pytest.approx(4 / 6), 6),
        "another task's reference": (pytest.approx((3 + 3 * 0.25) / 6), pytest.approx(3 / 6), 6),
        "the reference": (1.0, 1.0, 6),
    }
    # the two references are among the seven common answers
    assert "'no', of 7 tried" in grpo("env", "card", parity).stdout


def test_a_reference_is_no_constant_for_its_own_task(toy: Path) -> None:
    """Every square is right once; tasks 0 .. 4 are tried with the squares of 5 .. 9 and with what is common, of which 0 and 1 fit."""
    found = floors(carded("toy"))
    assert found["another task's reference"] == (0.0, 0.0, 5)
    assert found["the best constant"] == (pytest.approx(1.5 / 5), pytest.approx(1 / 5), 5)


async def test_weights_of_the_run_are_those_of_the_card(parity: str) -> None:
    config = build_config([{"environment": parity, "weights": {"form": 0.0}}])
    async with Sources.of(config, {}) as sources:
        assert (await make_card(next(iter(sources)))).parts == {"form": 0.0, "right": 0.75}


def test_without_its_judge_everything_but_the_floors_is_there(site: Path) -> None:
    (site / "parity.py").write_text(JUDGED)
    data = carded("parity.py:Parity")
    assert (data["needs"], data["floors"], data["origin"]) == (["judge"], [], None)
    assert data["unmeasured"].startswith("Parity needs a judge model, but none is named")


def change_toy(toy: Path, old: str, new: str) -> None:
    (toy / "toy_environment.py").write_text(TOY_ENVIRONMENT.replace(old, new))


def test_a_verifier_that_fails_is_a_reason_and_no_0(toy: Path) -> None:
    change_toy(toy, 'if text == "crash"', "if True")
    data = carded("toy", "--tasks", "2", "--set", "verify.retries=0")
    assert floors(data)["nothing"] == (None, None, 0)
    assert all("the verifier has a bug" in floor["note"] for floor in data["floors"])


def test_an_environment_without_references_is_measured_with_common_answers(toy: Path) -> None:
    change_toy(toy, "def reference", "def unused")
    found = floors(carded("toy"))
    assert found["the reference"] == found["another task's reference"] == (None, None, 0)
    assert found["the best constant"] == (pytest.approx(1.5 / 5), pytest.approx(1 / 5), 5)


def test_tasks_that_cannot_be_made_leave_the_rest_of_the_card(toy: Path) -> None:
    change_toy(toy, "n = key.index", "n = 9 // (9 - key.index)")
    data = carded("toy")
    assert data["floors"] == []
    assert "failed in task()" in data["unmeasured"]
    assert data["fingerprint"]


def test_markdown_keeps_its_tables_and_fences_whole(parity: str) -> None:
    text = grpo("env", "card", parity, "--markdown").stdout
    assert text.startswith("# parity.py:Parity\n")
    assert "| about | Odd or even? |" in text
    assert "Is 0 | odd?" in text  # in its fence
    assert "| the reference | 1.000 | 100% | 6 |" in text
    assert "no part of the card" not in text


def test_a_long_prompt_is_cut_in_its_middle(site: Path) -> None:
    lines = '"the first\\n" + "\\n".join(map(str, range(100))) + "\\n```\\nthe last"'
    (site / "parity.py").write_text(PARITY.replace('f"Is {key.index} | odd?"', lines))
    shown = grpo("env", "card", "parity.py:Parity", "--tasks", "0", "--markdown").stdout
    assert "the first" in shown
    assert "the last" in shown
    assert "lines that `grpo env show parity.py:Parity` prints" in shown
    assert "\n````text\n" in shown
    assert "\n50\n" not in shown
    assert "\n50\n" in carded("parity.py:Parity", "--tasks", "0")["prompt"]


def test_a_dialogue_hears_the_answer_in_every_turn(site: Path) -> None:
    (site / "thrice.py").write_text(THRICE)
    data = carded("thrice.py:Thrice", "--tasks", "2")
    assert data["turns"] == 3
    best = next(floor for floor in data["floors"] if floor["answer"] == "the best constant")
    assert (best["reward"], best["pass_rate"]) == (1.0, 1.0)
    assert best["note"].startswith("'yes'")
