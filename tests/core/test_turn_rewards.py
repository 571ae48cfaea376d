"""A reward by turn: its value is the sum of its turns, on every way it travels."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from grpo_core import Message, Reward, Rollout, Verdict
from grpo_core.calls.wire import decode, encode
from grpo_core.cli.environment import print_verdict


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
