"""The bridge to TRL without TRL: how its trainer calls reward functions, the keys in the rows, and that verdicts are those of a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Message, Rollout, RunStoppedError, TaskKey
from grpo_core.train.rollout.tasks import draw_number
from grpo_trl import OpenEnvironment, dataset, opened, reward_functions, task_keys

from ..train.tokenizer_kinds import KINDS
from .routes import call

HERE = Path(__file__).parent
SPELLING = f"{HERE / 'spelling.py'}:Spelling"
TALKING = f"{HERE / 'spelling.py'}:Talking"
ALL_MAY_FAIL = {"verify": {"max_error_rate": 1.0, "retries": 0}}


@pytest.fixture(scope="module")
def spelling() -> Iterator[OpenEnvironment]:
    with opened(SPELLING, ALL_MAY_FAIL) as env:
        yield env


def rows_of(env: OpenEnvironment, count: int, split: Any = "train") -> list[dict[str, Any]]:
    return list(dataset(env, split, count))


def words_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the right answers."""
    return [row["prompt"][0]["content"].removeprefix("Repeat ") for row in rows]


def test_the_functions_bear_the_names_of_the_parts_and_the_weights_are_theirs(
    spelling: OpenEnvironment,
) -> None:
    functions, weights = reward_functions(spelling)
    assert [function.__name__ for function in functions] == ["letters", "exact"]
    assert weights == [0.25, 0.75]
    with opened(SPELLING, {"weights": {"exact": 2.0}}) as env:
        assert reward_functions(env)[1] == [0.25, 2.0]


def test_a_part_is_its_value_and_none_where_nothing_could_be_judged(
    spelling: OpenEnvironment,
) -> None:
    rows = rows_of(spelling, 4)
    words = words_of(rows)
    letters, exact = call(
        reward_functions(spelling)[0], rows, [words[0], "zz", "raise", words[3] + "zzzz"]
    )
    assert letters == [1.0, 0.0, None, 0.5]
    assert exact == [1.0, 0.0, None, 0.0]


def test_all_parts_share_one_verdict_for_each_completion(tmp_path: Path) -> None:
    log = tmp_path / "verdicts.txt"
    settings = {"env": {"log": str(log)}, "verify": {"cache": "off"}}
    with opened(SPELLING, settings) as env:
        rows, functions = rows_of(env, 3), reward_functions(env)[0]
        call(functions, rows, ["abcd"] * 3)
        assert len(log.read_text().splitlines()) == 3
        call(functions, rows, ["abcd"] * 3)  # each part is asked for again: a new batch
        call(functions[:1], rows[:2], ["abcd"] * 2)
        assert len(log.read_text().splitlines()) == 3 + 3 + 2


def test_the_draw_is_that_of_a_runs_step_and_0_for_held_out_tasks(tmp_path: Path) -> None:
    log = tmp_path / "verdicts.txt"
    settings = {"env": {"log": str(log)}, "seed": 3, "verify": {"workers": 1}}
    with opened(SPELLING, settings) as env:
        functions = reward_functions(env)[0]
        call(functions, rows_of(env, 1), ["a"], step=4)
        call(functions, rows_of(env, 1), ["a"], trainer_state=None)
        call(functions, rows_of(env, 1, "eval"), ["a"], step=4)
    draws = [line.split()[1] for line in log.read_text().splitlines()]
    assert draws == [str(draw_number(3, 5)), "0", "0"]


def test_a_completion_without_an_end_token_is_cut_off_where_end_tokens_are_known(
    spelling: OpenEnvironment,
) -> None:
    (row,) = rows_of(spelling, 1)
    (word,) = words_of([row])
    rows, ids = [row] * 3, [[5, 9], [5, 6], []]
    for end_ids, exact in ((None, [1, 1, 1]), ({9}, [1, 0, 0])):
        functions, _ = reward_functions(spelling, end_ids=end_ids)
        assert call(functions, rows, [word] * 3, ids=ids)[1] == exact


def test_with_a_tokenizer_the_text_of_a_completion_is_that_of_its_tokens(
    spelling: OpenEnvironment,
) -> None:
    """TRL leaves special tokens out of its texts."""
    tokenizer = KINDS["special tags"]()
    rows = rows_of(spelling, 2)
    words = words_of(rows)
    texts = [words[0], f"<answer>{words[1]}"]
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    for given, exact in ((None, [1, 1]), (tokenizer, [1, 0])):
        functions, _ = reward_functions(spelling, end_ids=[tokenizer.eos_token_id], tokenizer=given)
        assert call(functions, rows, words, ids=ids)[1] == exact


def test_rollouts_of_the_rollout_function_are_judged_in_place_of_the_text() -> None:
    with opened(TALKING) as env:
        rows = rows_of(env, 2)
        words = words_of(rows)
        said = (Message("assistant", "?"), Message("user", "0"), Message("assistant", words[0]))
        rollouts = [
            Rollout(said),
            Rollout((Message("assistant", words[1]),), finish="error", error="broken"),
        ]
        columns = call(reward_functions(env)[0], rows, ["all of it"] * 2, rollout=rollouts)
        assert columns == [[1.0, None], [1.0, None]]


def test_metrics_of_a_batch_are_logged_once(spelling: OpenEnvironment) -> None:
    rows = rows_of(spelling, 4)
    words = words_of(rows)
    logged: list[tuple[str, float]] = []
    call(
        reward_functions(spelling)[0],
        rows,
        [words[0], "zz", "raise", "zz"],
        log_metric=lambda name, value: logged.append((name, value)),
    )
    assert logged == [("verdicts/unscored", 0.25), ("verdicts/passed", pytest.approx(1 / 3))]


def test_training_stops_where_too_much_could_not_be_judged() -> None:
    with opened(SPELLING, {"verify": {"retries": 0, "max_error_rate": 0.2}}) as env:
        rows = rows_of(env, 24)
        with pytest.raises(RunStoppedError, match="the dictionary is missing"):
            call(reward_functions(env)[0], rows, ["raise"] * 24)


@pytest.mark.parametrize("environment", ["Spelling", "RawSpelling", "Talking"])
def test_keys_come_back_from_the_rows_of_a_data_set_that_was_written_and_read(
    tmp_path: Path, environment: str
) -> None:
    from datasets import load_from_disk

    settings = {"seed": 2**40, "level": 0.1 + 0.2}
    with opened(f"{HERE / 'spelling.py'}:{environment}", settings) as env:
        dataset(env, "train", 5).save_to_disk(tmp_path / "rows")
        rows = load_from_disk(tmp_path / "rows")
        keys = task_keys(rows["task_key"])
        assert keys == [TaskKey(env.name, "train", i, 2**40, 0.1 + 0.2) for i in range(5)]
        prompts = [
            task.prompt
            if isinstance(task.prompt, str)
            else [(message.role, message.content) for message in task.prompt]
            for task in env.tasks(keys)
        ]
    assert prompts == [
        prompt if isinstance(prompt, str) else [(m["role"], m["content"]) for m in prompt]
        for prompt in rows["prompt"]
    ]


def test_held_out_rows_are_those_of_an_evaluation_and_a_finite_split_may_be_taken_whole(
    spelling: OpenEnvironment,
) -> None:
    keys = task_keys(dataset(spelling, "eval")["task_key"])
    assert keys == [TaskKey(spelling.name, "eval", index) for index in range(12)]
