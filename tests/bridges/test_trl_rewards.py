"""Two hundred rewards through the bridge to TRL beside those of a run, row by row."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Environment, Message, Rollout, Task, Verdict
from grpo_core.protocol.errors import ConfigError
from grpo_core.train.rollout.tasks import draw_number
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import play
from grpo_trl import dataset, opened, reward_functions, task_keys

from ..sandbox.engines import missing
from ..train.tiny import CHAT_TEMPLATE, tiny_tokenizer
from .routes import assert_equal, call, verdicts_of_a_run

HERE = Path(__file__).parent
SPELLING = f"{HERE / 'spelling.py'}:Spelling"
GUESS = f"{HERE.parents[1] / 'examples' / '04_dialogue.py'}:Guess"
SETTINGS = {"verify": {"max_error_rate": 1.0, "retries": 0}}
GROUP = 8
KINDS = ("right", "wrong", "hostile", "unscorable")


@pytest.mark.slow
def test_rewards_of_workers_that_raise_hang_and_die_are_those_of_a_run() -> None:
    with opened(SPELLING, SETTINGS) as env:
        rows = [row for row in dataset(env, "train", 25) for _ in range(GROUP)]
        rng = random.Random(5)
        texts = []
        for number, row in enumerate(rows):
            word = row["prompt"][0]["content"].removeprefix("Repeat ")
            wrong = "".join(rng.choices("abcdefghxyz", k=rng.randrange(9)))
            hostile = rng.choice([f"{word}\0", f"{word} " * 99, "\ud800", "</s>", word[::-1]])
            texts.append((word, wrong, hostile, f"raise {number}")[number % 4])
        texts[3], texts[7] = "die", "sleep"
        functions, weights = reward_functions(env)
        columns = call(functions, rows, texts, step=6)
    rollouts = [
        Rollout((Message("assistant", text),), token_ids=(1, 2), trainable=(1, 1)) for text in texts
    ]
    keys = task_keys([row["task_key"] for row in rows])
    verdicts = verdicts_of_a_run(SPELLING, SETTINGS, keys, rollouts, draw_number(0, 7))
    assert_kinds(verdicts)
    assert_equal(columns, weights, verdicts)


@pytest.mark.parametrize(
    "environment", ["arithmetic", GUESS, pytest.param("fizzbuzz", marks=pytest.mark.heavy)]
)
def test_rewards_of_right_wrong_and_hostile_attempts_are_those_of_a_run(environment: str) -> None:
    try:
        env = opened(environment, SETTINGS)
    except ConfigError as error:  # there is no sandbox
        missing(str(error))
        raise
    with env:
        rows = [row for row in dataset(env, "train", 25) for _ in range(GROUP)]
        keys = task_keys([row["task_key"] for row in rows])
        rollouts = asyncio.run(attempts(env.env, keys))
        functions, weights = reward_functions(env)
        columns = call(functions, rows, [""] * len(rows), step=6, rollout=rollouts)
    verdicts = verdicts_of_a_run(environment, SETTINGS, keys, rollouts, draw_number(0, 7))
    assert_kinds(verdicts)
    assert_equal(columns, weights, verdicts)


def assert_kinds(verdicts: Sequence[Verdict]) -> None:
    """Check that the rows are of all kinds, so that equal rewards mean something."""
    assert len(verdicts) == 200
    assert [verdict.scored for verdict in verdicts] == [True, True, True, False] * 50
    assert all(verdict.passed for verdict in verdicts[::4])
    assert len({verdict.total for verdict in verdicts if verdict.scored}) >= 2
    assert not any(verdict.passed for verdict in verdicts[2::4])


async def attempts(env: Environment[Any], keys: Sequence[Any]) -> list[Rollout]:
    """Return an attempt at each task: in turn right, another task's answer, a cheat, and one that failed."""
    tasks: list[Task[Any]] = [env.task(key) for key in keys]
    rollouts = []
    async with Verifier(env, closes_env=False) as verifier:
        for number, task in enumerate(tasks):
            kind = KINDS[number % 4]
            if kind == "unscorable":
                rollouts.append(Rollout((), finish="error", error="the engine broke"))
                continue
            other = env.reference(tasks[(number + 40) % len(tasks)])
            cheats = env.cheats(task)
            hostile = cheats[number // 4 % len(cheats)]
            script = {"right": env.reference(task), "wrong": other, "hostile": hostile}[kind]
            assert script is not None
            played = await play(verifier, task, script, max_turns=env.max_turns)
            rollouts.append(played.rollout)
    return rollouts


def test_completions_of_a_task_whose_rewards_differ_by_rounding_get_equal_ones() -> None:
    """TRL compares bits: a group without a signal has to look like one."""
    with opened(f"{HERE / 'chat_envs.py'}:Rounded", SETTINGS) as env:
        rows = [row for row in dataset(env, "train", 2) for _ in range(3)]
        functions, _ = reward_functions(env)
        columns = call(functions, rows, ["a", "b", "a", "a", "b", "c"], step=6)
    assert columns == [[0.3, 0.3, 0.3, 0.3, 0.1 + 0.2, 0.5]]


def test_thoughts_are_no_part_of_a_completion_of_one_turn() -> None:
    """Those that a prompt opens are known where the tokenizer is."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "assistant\n{% endif", "assistant\n<think>\n{% endif"
    )
    with opened("arithmetic", SETTINGS) as env:
        rows = [row for row in dataset(env, "train", 2) for _ in range(4)]
        tasks = env.tasks(task_keys([row["task_key"] for row in rows]))
        rights = [env.env.reference(task) for task in tasks]
        said = ["{}", "<think>{}?</think>{}", "It is {}.</think>{}", "<think>{}"]
        texts = [
            form.replace("{}", str(right)) for form, right in zip(said * 2, rights, strict=True)
        ]
        plain, _ = reward_functions(env)
        assert call(plain, rows, texts)[2] == [1.0, 1.0, 0.0, 0.0] * 2
        opening, _ = reward_functions(env, tokenizer=tokenizer)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        assert call(opening, rows, texts, ids=ids)[2] == [0.0, 1.0, 1.0, 0.0] * 2
