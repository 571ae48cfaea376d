"""The arithmetic environment: what it asks, what it pays, and what it never lets through."""

import functools
import itertools
import statistics
import time

import pytest

from grpo_core import ConfigError, Message, Rollout, Task, TaskKey
from grpo_core.plugins.environments import build_environment
from grpo_core.testing import assert_environment
from grpo_env_arithmetic import grpo_environments
from grpo_env_arithmetic.env import Arithmetic, ArithmeticConfig
from grpo_env_arithmetic.expressions import SHAPES, ArithmeticProblem, is_held_out

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ENV = Arithmetic()


def ask(
    index: int = 0, *, split: str = "train", seed: int = 0, level: float = 0.0
) -> Task[ArithmeticProblem]:
    return ENV.task(TaskKey("arithmetic", split, index, seed, level))  # type: ignore[arg-type]


def expressions(split: str, *, count: int, seed: int = 0, level: float = 0.0) -> list[str]:
    return [ask(i, split=split, seed=seed, level=level).data.expression for i in range(count)]


def asked(question: Message) -> str:
    assert isinstance(question.content, str)
    return question.content.removeprefix("Calculate ").removesuffix(".")


@functools.cache
def examples() -> set[str]:
    """Return the expressions of the examples that a prompt shows."""
    return {asked(message) for message in ask().prompt[1:-1:2]}  # type: ignore[arg-type]


def test_it_keeps_the_promises_of_an_environment() -> None:
    assert_environment(Arithmetic())


# What it asks


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_secret_is_the_value_of_the_expression_and_the_prompt_ends_with_it(
    split: str, level: float
) -> None:
    for index in range(20):
        task = ask(index, split=split, level=level)
        assert eval(task.data.expression) == task.data.answer
        assert task.prompt[-1] == Message("user", f"Calculate {task.data.expression}.")
        assert ENV.verify(task, Rollout.of(ENV.reference(task))).answer == str(task.data.answer)


def test_all_prompts_share_everything_but_the_question() -> None:
    keys = itertools.product(("train", "eval"), LEVELS, range(5))
    prompts = [ask(index, split=split, level=level).prompt for split, level, index in keys]
    assert len({prompt[:-1] for prompt in prompts}) == 1
    roles = ["system", *["user", "assistant"] * 8, "user"]
    assert [message.role for message in prompts[0]] == roles  # type: ignore[union-attr]


@pytest.mark.parametrize("shots", [0, 3, 8])
def test_the_number_of_examples_is_a_setting_and_every_example_is_right(shots: int) -> None:
    task = Arithmetic(ArithmeticConfig(shots=shots)).task(TaskKey("arithmetic", "train", 0))  # type: ignore[arg-type]
    examples = task.prompt[1:-1]
    assert len(examples) == 2 * shots
    for question, answer in zip(examples[::2], examples[1::2], strict=True):
        assert answer.content == f"<answer>{eval(asked(question))}</answer>"  # type: ignore[union-attr]


@pytest.mark.slow
def test_examples_are_neither_trained_on_nor_asked() -> None:
    assert len(examples()) == 8
    assert not examples() & set(expressions("train", count=5000))
    assert not examples() & set(expressions("eval", count=ENV.size("eval") or 0))


def test_level_0_adds_and_subtracts_operands_up_to_5() -> None:
    for expression in expressions("train", count=500):
        assert set(expression) <= set("012345+-() ")
        assert len(expression) == len("(1 + 2) - 3")


def test_every_level_is_harder_than_the_one_before() -> None:
    """Harder: more values to tell apart, and no less to read."""
    problems = [[ask(i, level=level).data for i in range(100)] for level in LEVELS]
    lengths = [sum(len(p.expression) for p in some) for some in problems]
    values = [len({p.answer for p in some}) for some in problems]
    assert lengths == sorted(lengths)
    assert values == sorted(set(values))


def test_a_level_between_two_rows_is_the_row_below() -> None:
    assert all("*" not in e for e in expressions("train", count=200, level=0.59))
    assert any("*" in e for e in expressions("train", count=200, level=0.6))


@pytest.mark.parametrize("level", [-0.1, 1.01, float("nan")])
def test_a_level_outside_0_to_1_is_refused(level: float) -> None:
    with pytest.raises(ConfigError, match=r"outside 0\.\.1"):
        ask(level=level)


# Splits


@pytest.mark.slow
def test_train_and_eval_share_no_expression_at_any_level_or_seed() -> None:
    trained, held_out = (
        {
            expression
            for level, seed in itertools.product(LEVELS, range(3))
            for expression in expressions(split, count=400, seed=seed, level=level)
        }
        for split in ("train", "eval")
    )
    assert len(trained) > 4000
    assert len(held_out) > 3000
    assert not trained & held_out


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", [0.0, 0.2])
@pytest.mark.parametrize("seed", [0, 7])
def test_at_least_300_held_out_tasks_are_distinct_at_small_levels(level: float, seed: int) -> None:
    size = ENV.size("eval") or 0
    assert size >= 300
    assert len(set(expressions("eval", count=size, seed=seed, level=level))) == size


def test_training_has_no_end() -> None:
    assert ENV.size("train") is None
    assert ask(10**9).data.answer == eval(ask(10**9).data.expression)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("seed", "level"), [(0, 0.0), (1, 0.0), (0, 1.0)])
@pytest.mark.parametrize("size", [5, 16])
def test_the_answers_of_a_steps_tasks_are_spread_out(seed: int, level: float, size: int) -> None:
    """By chance alone a step's mean answer would vary as 1/size of the variance of answers. Ranks, since products vary wildly."""
    answers = [ask(index, seed=seed, level=level).data.answer for index in range(40 * size)]
    order = sorted(range(len(answers)), key=lambda i: answers[i])
    ranks = dict(zip(order, range(len(order)), strict=True))
    means = [
        statistics.fmean(ranks[i] for i in range(start, start + size))
        for start in range(0, len(answers), size)
    ]
    assert statistics.variance(means) < 0.5 * statistics.variance(ranks.values()) / size


@pytest.mark.slow
def test_spreading_leaves_every_training_task_of_level_0_as_likely_as_before() -> None:
    shape, drawn = SHAPES[0], [ask(index).data for index in range(6000)]
    numbers, signs = range(shape.largest + 1), shape.operators
    parts = itertools.product(numbers, signs, numbers, signs, numbers)
    texts = [f"({a} {p} {b}) {q} {c}" for a, p, b, q, c in parts]
    known = [text for text in texts if not is_held_out(text) and text not in examples()]
    assert {problem.expression for problem in drawn} == set(known)
    truths = [eval(text) for text in known]
    for number in set(truths):
        expected = truths.count(number) / len(truths)
        assert abs(sum(p.answer == number for p in drawn) / len(drawn) - expected) < 0.012


# What it pays


@pytest.mark.parametrize(
    ("away", "reward"), [(0, 1.0), (1, 0.4), (-1, 0.4), (2, 0.2), (-2, 0.2), (1000, 0.2)]
)
def test_a_well_formed_answer_is_paid_by_its_distance(away: int, reward: float) -> None:
    for index in range(20):
        task = ask(index)
        text = f"  First 5.\n<answer>\n {task.data.answer + away} </answer>\n "
        verdict = ENV.verify(task, Rollout.of(text))
        assert verdict.total == pytest.approx(reward)
        assert verdict.passed == (away == 0)


WORTHLESS = {
    "junk": "%$§ lorem ipsum",
    "nul": "<answer>\x001</answer>",
    "surrogate": "<answer>\ud8001</answer>",
    "many digits": f"<answer>{'1' * 10**5}</answer>",
    "superscript": "<answer>²</answer>",
    "wrong order": "</answer>1<answer>",
    "megabyte": "<answer>1</answer>" * 60_000,
    "open tags": "<answer>" * 125_000,
}


@pytest.mark.parametrize("name", WORTHLESS)
def test_a_worthless_answer_gets_the_floor_in_no_time_with_every_part_named(name: str) -> None:
    task, started = ask(), time.process_time()
    verdict = ENV.verify(task, Rollout.of(WORTHLESS[name]))
    assert time.process_time() - started < 0.5
    assert verdict.total == ENV.floor
    assert (verdict.passed, verdict.scored) == (False, True)
    assert verdict.rewards.keys() == ENV.parts.keys()


# As a plugin


def test_the_plugin_offers_the_environment_with_its_settings_checked() -> None:
    (spec,) = grpo_environments()
    assert spec.name == "arithmetic"
    assert spec.summary
    assert isinstance(build_environment(spec, {"shots": 4}), Arithmetic)
    with pytest.raises(ConfigError, match=r"env\.shots"):
        build_environment(spec, {"shots": 9})


def test_the_fingerprint_knows_the_settings() -> None:
    assert ENV.fingerprint() == Arithmetic().fingerprint()
    assert ENV.fingerprint() != Arithmetic(ArithmeticConfig(shots=3)).fingerprint()
