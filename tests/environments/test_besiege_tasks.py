"""The three tasks on machines: what is asked, what is paid, what the simulator says, pictures, and answers that are no machines."""

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from grpo_core import ConfigError, Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.cli.app import app
from grpo_core.config.settings import VerifyConfig
from grpo_core.testing import assert_environment
from grpo_core.verify.engine import Verifier
from grpo_env_besiege.cold_start import compact
from grpo_env_besiege.env import BesiegeConfig, Car, Catapult, Delivery, Order
from grpo_env_besiege.levels import LEVELS, Level
from grpo_env_besiege.machines import (
    HEAVY_CAR,
    PAPER_CAR,
    PAPER_CATAPULT,
    ROTOR_CATAPULT,
    SLED,
    tree,
)

from ..commandline import words

KINDS = {"car": Car, "catapult": Catapult, "delivery": Delivery}
CAR, SLED_ANSWER = compact(PAPER_CAR), compact(SLED)


def ask(env: Environment[Order], *, index: int = 0, level: float = 0.0) -> Task[Order]:
    return env.task(TaskKey("besiege", "train", index, 0, level))


def judged(env: Environment[Order], text: str, *, level: float = 0.0) -> Verdict:
    return env.verify(ask(env, level=level), Rollout.of(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("car", marks=pytest.mark.heavy), "catapult"])
def test_it_keeps_the_promises_of_an_environment(name: str) -> None:
    assert_environment(KINDS[name](), tasks=4)


# What is asked


def test_the_prompt_has_the_rules_the_blocks_of_its_level_an_example_and_the_form() -> None:
    words = ["left-handed", "overlap", "```json", "Construction Idea", "<cot>", "parent_a"]
    words += ["17 long", "60 blocks"]
    for level in LEVELS.values():
        task = ask(KINDS[level.family](), level=level.difficulty)
        assert task.data.level == level.name
        system, user = task.prompt
        assert isinstance(system, Message)
        assert [word for word in words if word not in system.content] == []
        assert all(f"type {block}," in system.content for block in level.allowed)
        assert f"{level.seconds:g} seconds" in user.content
    assert [ask(Car(), level=level).data.level for level in (0.0, 0.2, 0.25, 0.6, 1.0)] == [
        "car/road", "car/road", "car/quarter-cylinder", "car/quarter-pipe", "car/curves",
    ]  # fmt: skip


def test_the_example_of_the_prompt_is_a_machine_that_drives() -> None:
    system, _ = ask(Car()).prompt
    example, _, form = system.content.partition("For example")[2].partition("Answer in this form")
    assert judged(Car(), example).total > 20
    assert judged(Car(), example + form).total == 0  # a prompt that is repeated is no answer


def test_a_short_prompt_is_a_line() -> None:
    assert ask(Catapult(BesiegeConfig(prompt="short", budget=False)), level=0.5).prompt == (
        Message("user", "catapult wind 60:"),
    )


def test_each_task_sets_a_limit_of_blocks_and_held_out_limits_are_others() -> None:
    env = Car()
    trained, held_out = (
        {env.task(TaskKey("besiege", split, i)).data.most for i in range(200)}
        for split in ("train", "eval")
    )  # type: ignore[arg-type]
    assert trained | held_out == set(range(8, 31))
    assert not trained & held_out
    tasks = (ask(env, index=index) for index in range(200))
    task = next(task for task in tasks if task.data.most == 8)
    assert "at most 8 blocks" in task.prompt[-1].content  # type: ignore[union-attr]
    verdict = env.verify(task, Rollout.of(compact(HEAVY_CAR)))
    assert (verdict.total, verdict.rewards["spatial"].value) == (0.0, 0.0)
    assert "10 blocks; at most 8 are asked for" in verdict.rewards["performance"].note


# What is paid


def test_a_machine_is_paid_by_what_it_does_and_its_parts_are_logged() -> None:
    verdict = judged(Car(), f"I think so.\n```json\n{CAR}\n```")
    paid = verdict.rewards["performance"].value
    logged = {name: (part.value, part.weight) for name, part in verdict.rewards.items()}
    del logged["performance"]
    assert logged == dict.fromkeys(("file", "structure", "spatial"), (1.0, 0.0))
    assert verdict.total == paid == verdict.metrics["performance"] > 25
    assert verdict.passed
    assert json.loads(verdict.answer or "") == json.loads(CAR)
    assert judged(Car(), SLED_ANSWER).total < 1
    thrown = judged(Catapult(), compact(ROTOR_CATAPULT))
    height, distance = thrown.metrics["height"], thrown.metrics["distance"]
    assert height > 1
    assert distance > 5
    assert thrown.total == pytest.approx(height * distance, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "parts", "why"),
    [
        ("no machine", (0, 0, 0), "looked for JSON"),
        ('[{"id": "0"}]', (1, 0, 0), "its keys are"),
        (compact(tree((15, 0, 9))), (1, 0, 0), "point 9"),
        (compact(tree((15, 0, 0), (15, 0, 0))), (1, 1, 0), "overlaps"),
        (compact(tree((30, 0, 0))), (1, 1, 0), "not allowed in car/road"),
    ],
)
def test_what_is_no_valid_machine_gets_nothing_and_hears_why(
    text: str, parts: tuple[int, ...], why: str
) -> None:
    verdict = judged(Car(), text)
    assert (verdict.total, verdict.passed) == (0.0, False)
    assert (verdict.error, verdict.answer) == (None, None)
    assert tuple(verdict.rewards[name].value for name in ("file", "structure", "spatial")) == parts
    assert why in verdict.rewards["performance"].note
    assert verdict.metrics == {"invalid": 1.0}


@pytest.mark.parametrize(
    ("scale", "most", "of_raw", "top"),
    [
        ("none", 50.0, lambda raw: raw, 1000.0),
        ("log1p", 50.0, math.log1p, math.log1p(1000)),
        ("clip", 50.0, lambda raw: raw / 50, 1.0),
        ("clip", 20.0, lambda raw: 1.0, 1.0),
    ],
)
def test_scales_keep_the_order_and_the_range_says_what_they_pay_at_most(
    scale: Any, most: float, of_raw: Any, top: float
) -> None:
    raw, env = judged(Car(), CAR).total, Car(BesiegeConfig(scale=scale, most=most))
    assert 25 < raw < 50
    assert judged(env, CAR).total == pytest.approx(of_raw(raw))
    assert env.reward_range[1] == pytest.approx(top)


@pytest.mark.parametrize(
    "settings", [{"turns": 0}, {"most": 0.0}, {"most": math.inf}, {"threshold": math.nan}, {"threshold": -1.0}]
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match=r"env\.turns"):
        Car(BesiegeConfig(**settings))


def test_the_code_formula_pays_the_published_catapult_more_than_the_guarded_one() -> None:
    answer = compact(PAPER_CATAPULT)
    code = judged(Catapult(BesiegeConfig(formula="code")), answer).total
    assert code > judged(Catapult(), answer).total >= 0


def test_an_audit_runs_the_machine_in_another_world() -> None:
    env = Car()
    task = ask(env)
    own, other = judged(env, CAR).total, env.audit(task, Rollout.of(CAR))
    assert own != other == pytest.approx(own, rel=0.4)
    assert env.audit(task, Rollout.of("no machine")) == 0.0


# The cold start


WITH_GOALS = [level for level in LEVELS.values() if level.goal is not None]


@pytest.mark.slow
@pytest.mark.parametrize("level", WITH_GOALS, ids=lambda level: level.name)
def test_whoever_reaches_the_goal_of_a_level_passes_through_the_engine(level: Level) -> None:
    """A machine that only comes near it does not."""
    other = compact(ROTOR_CATAPULT) if level.family == "catapult" else SLED_ANSWER
    name = f"besiege/{level.family}"

    async def through() -> Sequence[Verdict]:
        settings = VerifyConfig(isolation="inline", retries=0)
        async with Verifier(KINDS[level.family](), settings=settings) as verifier:
            keys = [TaskKey(name, "train", index, 0, level.difficulty) for index in range(3)]
            for task in await verifier.tasks(keys):
                if (text := await verifier.reference(task)) is not None:
                    texts = [Rollout.of(text), Rollout.of(other)]
                    return (await verifier.verify([task], [texts]))[0]
        raise AssertionError("no task has a reference")

    won, near = asyncio.run(through())
    assert (won.error, won.total, won.passed) == (None, 1.0, True)
    assert (near.error, near.total <= 0.5, near.passed) == (None, True, False)


@pytest.mark.slow
def test_a_threshold_of_ones_own_counts_on_levels_with_a_goal_too() -> None:
    env = Catapult(BesiegeConfig(threshold=0.4))
    verdict = judged(env, compact(ROTOR_CATAPULT), level=1.0)
    assert 0.4 <= verdict.total <= 0.5
    assert verdict.passed
    assert Catapult(BesiegeConfig(threshold=2.0)).reference(ask(env, level=1.0)) is None


# The simulator's answer


def test_the_simulator_says_what_was_wrong_or_what_the_machine_did() -> None:
    env = Car(BesiegeConfig(turns=2))
    assert env.max_turns == 2

    def told(text: str) -> str:
        (message,) = asyncio.run(env.reply(ask(env), (Message("assistant", text),))) or ()
        return message.content

    assert "cannot be built" in told("no machine")
    assert "m forward" in told(CAR)
    assert "The root was at" in told(CAR)


# Pictures


@pytest.mark.slow
def test_a_machine_is_drawn_and_so_is_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "car.json").write_text(CAR)
    command = words(f"env score besiege/car --answer {tmp_path}/car.json --pictures")
    done = CliRunner().invoke(app, [*command, str(tmp_path / "pictures")])
    assert done.exit_code == 0, done.output
    for name in ("machine.png", "run.png", "run.gif"):
        with Image.open(tmp_path / "pictures" / name) as picture:
            assert min(picture.size) > 200
            assert len(set(picture.convert("L").tobytes())) > 20
    with Image.open(tmp_path / "pictures" / "run.gif") as picture:
        assert picture.n_frames == 26  # type: ignore[attr-defined]
    (tmp_path / "car.json").write_text("no machine")
    none = CliRunner().invoke(app, [*command, str(tmp_path / "none")])
    assert "draws no picture" in none.output
