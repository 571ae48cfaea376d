"""Attempts of several segments and rewards by turn outside the trainer: what travels to a worker, and what the log and the counts have."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.calls.wire import decode, encode
from grpo_core.cli.environment import print_verdict
from grpo_core.figures.summary import summarize
from grpo_core.protocol.types import Segment
from grpo_core.runs.folder import RunFolder, write_attempts
from grpo_core.runs.lines import read_lines
from grpo_core.runs.saved_rollouts import saved_rollout
from grpo_core.verify.judge.cache import verdict_key

TASK = Task(TaskKey("agents", "train", 3), "?", None)
SAID = (Message("assistant", "so"), Message("user", "and?"), Message("assistant", "done"))
PLAIN = Rollout(SAID, "stop", (1, 2), (5, 6, 7, 8), (-1.0,) * 4, (1, 1, 0, 1), turn_lengths=(2, 1))
AGENT = replace(
    PLAIN,
    turn_lengths=(2, 1, 0, 2),
    later_segments=(
        Segment((1, 2, 5), (9,), (-1.0,), (0,)),
        Segment((1, 2, 5, 6), (7, 8, 9), (-1.0, 0.0, -1.0), (1, 0, 1)),
    ),
    returned={"answer": 3, "tried": [1, None]},
)


def sent(rollout: Rollout) -> Any:
    return json.loads(json.dumps(encode(rollout)))


INVENTED = replace(PLAIN, messages=(Message("assistant", "as I said"), *SAID), returned=0)
"""Of an agent that put words into the mouth of the policy."""


def test_a_worker_gets_the_segments_and_what_was_returned_without_prefixes_and_probabilities() -> (
    None
):
    got = decode(sent(AGENT))
    bare = {"prompt_ids": (), "logprobs": ()}
    later = tuple(replace(segment, **bare) for segment in AGENT.later_segments)
    assert got == replace(AGENT, **bare, later_segments=later)
    assert (got.turns, got.sampled_tokens, len(got.segments)) == (4, 5, 3)
    assert decode(sent(INVENTED)).turns == 2
    plain = {"messages", "finish", "token_ids", "trainable", "positions"}
    assert sent(PLAIN)["rollout"].keys() == plain


@pytest.mark.parametrize(
    "change",
    [
        {"returned": {"answer": 3, "tried": [1, 2]}},
        {"later_segments": AGENT.later_segments[:1]},
        {"turn_lengths": (2, 1, 1, 1)},
        {"token_ids": (5, 6, 7, 9)},
    ],
)
def test_whatever_a_verifier_sees_tells_cached_verdicts_apart(change: dict[str, Any]) -> None:
    key = verdict_key("fingerprint", TASK, AGENT)
    assert key == verdict_key("fingerprint", TASK, replace(AGENT, logprobs=(-2.0,) * 4))
    assert key != verdict_key("fingerprint", TASK, replace(AGENT, **change))
    assert key != verdict_key("other", TASK, AGENT)
    assert key != verdict_key("fingerprint", replace(TASK, prompt="!"), AGENT)
    assert key == verdict_key("fingerprint", replace(TASK, data="hidden"), AGENT)


def logged(tmp_path: Path, *rollouts: Rollout) -> list[dict[str, Any]]:
    """Lines of the log of a run, which are those of `grpo eval` besides step and advantage."""
    group = Group(TASK, rollouts, [Verdict({"x": Reward(1.0)})] * len(rollouts))
    RunFolder(tmp_path).rollouts(1, replace(group, advantages=[0.0] * len(rollouts)))
    write_attempts(tmp_path / "attempts.jsonl", group)
    lines = list(RunFolder(tmp_path).rollout_lines())
    attempts = list(read_lines(tmp_path / "attempts.jsonl"))
    assert attempts == [
        {name: value for name, value in line.items() if name not in ("step", "group", "advantage")}
        for line in lines
    ]
    return lines


def test_the_log_shows_the_segments_and_what_was_returned(tmp_path: Path) -> None:
    plain, agent = logged(tmp_path, PLAIN, AGENT)
    assert plain.keys().isdisjoint({"segments", "returned", "returned_length"})
    assert (plain["tokens"], agent["tokens"]) == (4, 8)
    assert agent["returned"] == AGENT.returned
    names = ("prompt_tokens", "shared_tokens", "tokens", "turns")
    assert [tuple(segment[name] for name in names) for segment in agent["segments"]] == [
        (2, 0, 4, [2, 1, 0]),
        (3, 3, 1, []),
        (4, 6, 3, [2]),  # the policy wrote again what had been said, and went on
    ]


def test_of_a_long_return_the_log_has_the_length(tmp_path: Path) -> None:
    fits, too_long = "x" * 9_998, "x" * 9_999  # with its quotation marks
    returned = (replace(PLAIN, returned=text) for text in (fits, too_long))
    first, second = logged(tmp_path, *returned)
    assert first["returned"] == fits
    assert "returned" not in second
    assert second["returned_length"] == 10_001


def test_a_saved_rollout_has_the_turns_of_all_segments(tmp_path: Path) -> None:
    lines = logged(tmp_path, PLAIN, AGENT, INVENTED)
    assert [rollout and rollout.turns for rollout in map(saved_rollout, lines)] == [2, 4, 2]
    assert saved_rollout(lines[1]).returned == AGENT.returned  # type: ignore[union-attr]
    assert saved_rollout({**lines[0], "returned_length": 99_999}) is None


def test_counts_of_tokens_are_of_all_segments() -> None:
    group = Group(TASK, [PLAIN, AGENT], [Verdict({"x": Reward(1.0)})] * 2)
    summary = summarize([group], environment="agents", level=0.0, samples=2, parts=["x"])
    assert summary.tokens == 3 + 5


# Rewards by turn


def test_the_value_is_the_sum_of_the_turns() -> None:
    assert Reward(turns=(0.1, 0.2, -0.3, 1.0)).value == pytest.approx(1.0)
    assert Reward(turns=(0.1,) * 10).value == 1.0, "the sum is not exactly rounded"
    assert Reward(turns=[True, False]).turns == (True, False)  # type: ignore[arg-type]
    assert Reward(turns=()).value == 0.0
    assert Reward(0.5).turns is None


def test_a_value_that_is_not_the_sum_of_the_turns_is_refused() -> None:
    assert Reward(0.3, turns=(0.1, 0.2)).value == Reward(turns=(0.1, 0.2)).value
    with pytest.raises(
        ValueError, match=r"is 0\.7, but its turns add up to 0\.3; leave out the value"
    ):
        Reward(0.7, turns=(0.1, 0.2))
    with pytest.raises(ValueError, match="add up to"):
        replace(Reward(0.7), turns=(0.1, 0.2))


def test_it_travels_as_json_and_as_a_pickle_and_others_are_written_as_before() -> None:
    verdict = Verdict({"game": Reward(weight=2.0, turns=(0.1, 0.2)), "form": Reward(1.0)})
    text = json.dumps(verdict.to_json())
    assert Verdict.from_json(json.loads(text)) == verdict
    assert decode(json.loads(json.dumps(encode(verdict)))) == verdict
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert json.loads(text)["rewards"]["game"]["turns"] == [0.1, 0.2]
    assert json.loads(text)["rewards"]["form"].keys() == {"value", "weight", "note", "seconds"}


def test_the_turns_of_a_rollout_are_counted_by_its_messages_where_no_token_is_known() -> None:
    said = (Message("assistant", "a"), Message("user", "?"), Message("assistant", ""))
    assert Rollout(said).turns == Rollout(said, turn_lengths=(3, 0)).turns == 2
    assert Rollout(()).turns == 0


def test_a_person_sees_what_each_turn_earned(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(Verdict({"game": Reward(turns=(0.25, 1.0), note="won"), "form": Reward(0.5)}))
    game, form, *_ = capsys.readouterr().out.splitlines()
    assert "by turn: 0.25 1; won" in game
    assert "turn" not in form
