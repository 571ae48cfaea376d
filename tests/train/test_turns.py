"""Rewards and advantages by turn: against loops in plain Python, by enumeration of a stopping problem, and in a run."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core import ConfigError, Group, Message, Reward, Rollout, Task, TaskKey, Trainer, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import AdvantageConfig
from grpo_core.runs.folder import RunFolder
from grpo_core.train.algorithm.advantages import advantages
from grpo_core.train.algorithm.checked import checked_estimator
from grpo_core.train.algorithm.refill import Refill
from grpo_core.train.algorithm.rewards import Rewards, rewards, shuffled
from grpo_core.train.run.measure import format_group
from grpo_core.train.run.metrics import advantage_metrics

from .arrange import collate
from .runs import logged
from .spelling import PAID, Spelling

TURNS = AdvantageConfig(name="turns")
LOSS = {"aggregation": "sequence_sum"}


class Talking(Spelling):
    """The same in this process."""

    trusted = True


TASK = Task(TaskKey("letters", "train", 0), "?", None)


def dialogue(*lengths: int, after: int = 0, **more: Any) -> Rollout:
    """A dialogue whose turns have these lengths, with `after` tokens of the environment between two."""
    messages, trainable = [], []
    for place, length in enumerate(lengths):
        if place:
            messages.append(Message("user", "and?"))
            trainable += [0] * after
        messages.append(Message("assistant", "x"))
        trainable += [1] * length
    count = len(trainable)
    ids = {"prompt_ids": (1, 2), "token_ids": tuple(range(10, 10 + count))} | more
    return Rollout(
        tuple(messages),
        logprobs=(0.0,) * count,
        trainable=tuple(trainable),
        turn_lengths=lengths,
        **ids,
    )


def judged(*turns: Sequence[float] | None) -> Group[None]:
    """A group of attempts by what their turns earned; None: an attempt that could not be judged."""
    return Group(
        TASK,
        [dialogue(*[1] * len(earned or [0])) for earned in turns],
        [
            Verdict.failed("broken")
            if earned is None
            else Verdict({"game": Reward(turns=tuple(earned))})
            for earned in turns
        ],
    )


def definition(turns: Sequence[Sequence[float] | None]) -> list[list[float]]:
    """The advantage of each turn of each attempt of a group, from the words of the design."""
    found = []
    for i, own in enumerate(turns):
        others = [turns[j] for j in range(len(turns)) if j != i and turns[j] is not None]
        row = []
        for t in range(len(own or [0])):
            if own is None or not others:
                row.append(0.0)
                continue
            later = [sum(other[t:]) for other in others]  # type: ignore[index]
            row.append(sum(own[t:]) - sum(later) / len(later))
        found.append(row)
    return found


# The estimator


def test_random_groups_equal_the_definition() -> None:
    rng = random.Random(1)
    for _ in range(200):
        turns = [
            None
            if rng.random() < 0.2
            else [rng.choice([0.0, 0.5, rng.gauss(0, 1)]) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randint(2, 6))
        ]
        found = advantages(rewards([judged(*turns)]), TURNS)[0]
        for row, expected in zip(found.tolist(), definition(turns), strict=True):
            assert row[: len(expected)] == pytest.approx(expected, abs=1e-12)
            assert not any(row[len(expected) :])


def test_with_one_turn_each_it_is_rloo_to_the_bit() -> None:
    numbers = torch.Generator().manual_seed(0)
    total_PG = torch.randn((5, 7), dtype=torch.float64, generator=numbers)
    scored_PG = torch.rand((5, 7), generator=numbers) < 0.8
    by_total = Rewards.of(total_PG, scored_PG)
    by_verdicts = rewards([judged(*[[value] for value in row]) for row in total_PG.tolist()])
    for found in (by_total, replace(by_verdicts, scored_PG=scored_PG)):
        expected = advantages(found, AdvantageConfig(name="rloo"))
        assert advantages(found, TURNS).squeeze(2).equal(expected)


def test_a_group_is_dead_only_if_all_its_advantages_are_0() -> None:
    """All attempts of the first two groups earn as much; in the second one at different times."""
    groups = [judged([0.1, 0.2], [0.1, 0.2]), judged([0.5, 0.0], [0.0, 0.5]), judged([1.0], [0.0])]
    found = advantages(rewards(groups), TURNS)
    assert found[:2].tolist() == [[[0.0, 0.0], [0.0, 0.0]], [[0.0, -0.5], [0.0, 0.5]]]
    refill = Refill(wanted=2, refills=0)
    refill.add(found)
    assert refill.chosen() == [1, 2]
    (rows,) = collate(
        [group.rollouts for group in groups],
        found,
        torch.ones(3, 2, dtype=torch.bool),
        aggregation="constant",
        max_length=5,
        skip_dead=True,
    )
    assert [row.weight for row in rows] == [1 / 30] * 4


def test_the_clip_bounds_each_turn_and_metrics_count_turns_that_were_had() -> None:
    """By hand: returns from the turns on are (3, 2), (4), (1, 1, 1); at turn 2 the second attempt counts 0."""
    found = rewards([judged([1.0, 2.0], [4.0], [0.0, 0.0, 1.0], None)])
    unclipped = [0.5, 1.5, 0.0, 2.0, 0.0, 0.0, -2.5, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert advantages(found, TURNS)[0].flatten().tolist() == pytest.approx(unclipped)
    clipped = advantages(found, TURNS.model_copy(update={"clip": 1.0}))
    expected = [0.5, 1.0, 0.0, 1.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert clipped[0].flatten().tolist() == pytest.approx(expected)
    values = [0.5, 1.0, 1.0, -1.0, 0.0, 1.0]
    mean = sum(values) / 6
    assert advantage_metrics(clipped, found.counted(clipped)) == pytest.approx(
        {
            "advantage/mean": mean,
            "advantage/std": (sum((value - mean) ** 2 for value in values) / 6) ** 0.5,
        }
    )


def test_an_estimator_of_a_plugin_may_return_an_advantage_for_each_turn() -> None:
    found = rewards([judged([1.0, 2.0], [4.0], None)])
    estimator = checked_estimator(
        lambda rewards, config: rewards.turn_PGT + 1.0, "advantage.name=plugin:mine"
    )
    assert estimator(found, TURNS).tolist() == [[[2.0, 3.0], [5.0, 0.0], [0.0, 0.0]]]
    whitened = advantages(found, TURNS.model_copy(update={"whiten": True}), estimator)
    assert whitened[found.counted(whitened)].sum() == pytest.approx(0.0, abs=1e-12)
    assert whitened[0, 1, 1] == whitened[0, 2, 0] == 0.0


# What a turn earned


def test_parts_without_turns_and_what_the_trainer_adds_belong_to_the_last_turn() -> None:
    by_turn = Verdict(
        {"game": Reward(weight=2.0, turns=(1.0, 0.0, 0.5)), "style": Reward(0.25, weight=4.0)}
    )
    short = Verdict({"game": Reward(weight=2.0, turns=(3.0,)), "style": Reward(0.5, weight=4.0)})
    found = rewards([Group(TASK, [dialogue(1, 1, 1), dialogue(2)], [by_turn, short])])
    assert found.turn_PGT.tolist() == [[[2.0, 0.0, 2.0], [8.0, 0.0, 0.0]]]
    assert found.total_PG.tolist() == [[4.0, 8.0]]
    more = found.plus(torch.tensor([[-1.0, -0.5]]), 2.0)
    assert more.turn_PGT.tolist() == [[[2.0, 0.0, 0.0], [7.0, 0.0, 0.0]]]
    assert more.total_PG.tolist() == [[2.0, 7.0]]
    assert found.turn_PGT[0, 0, 2] == 2.0, "the rewards that were added to have changed"


def test_an_attempt_without_a_turn_has_its_reward_before_the_first_one_and_no_advantage() -> None:
    silent = Group(
        TASK,
        [Rollout(()), dialogue(1, 1)],
        [Verdict({"game": Reward(0.5)}), Verdict({"game": Reward(turns=(1.0, 2.0))})],
    )
    found = rewards([silent]).plus(torch.tensor([[1.0, 0.0]]), 1.0)
    assert found.turn_PGT.tolist() == [[[1.5, 0.0], [1.0, 2.0]]]
    assert advantages(found, TURNS).tolist() == [[[0.0, 0.0], [1.5, 2.0]]]


def test_shuffled_rewards_carry_no_information_at_any_turn() -> None:
    """On average over all orders the advantage of every turn is 0, also where others had ended."""
    group = judged([1.0, 2.0], [4.0], [0.0, 0.0, 1.0])
    found = rewards([group])
    one = shuffled(found, [TASK])
    assert sorted(one.turn_PGT[0].tolist()) == sorted(found.turn_PGT[0].tolist())
    assert one.turn_PGT.sum(2).equal(one.total_PG)
    orders = [list(order) for order in itertools.permutations(range(3))]
    average = sum(
        advantages(replace(found, turn_PGT=found.turn_PGT[:, order]), TURNS) for order in orders
    )
    assert average.abs().max() < 1e-12  # type: ignore[union-attr]


# From turns to tokens


def tokens(rollout: Rollout, *by_turn: float) -> Any:
    advantage = torch.tensor([[by_turn]], dtype=torch.float64)
    scored_PG = torch.ones(1, 1, dtype=torch.bool)
    (rows,) = collate([[rollout]], advantage, scored_PG, aggregation="sequence_sum", max_length=9)
    return rows[0].advantage


def test_tokens_get_the_advantage_of_their_turn() -> None:
    assert tokens(dialogue(2, 1, after=2), 1.0, 2.0) == (1.0, 1.0, 0.0, 0.0, 2.0)
    assert tokens(dialogue(2, 1), 1.0, 2.0) == (1.0, 1.0, 2.0), "turns without a token between"
    assert tokens(dialogue(1, 0, 1, after=1), 1.0, 2.0, 3.0) == (1.0, 0.0, 0.0, 3.0)
    assert tokens(dialogue(0, 1), 1.0, 2.0, 9.0) == (2.0,)
    assert tokens(dialogue(0), 1.0) == ()


def test_a_rollout_that_does_not_say_which_tokens_are_of_which_turn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0 tokens together.*3 .*set Rollout.turn_lengths"):
        tokens(replace(dialogue(2, 1), turn_lengths=()), 1.0, 2.0)


# The gradient on average. A policy over three tokens decides when to stop: "stop" ends the attempt, "next" ends the turn, and "more"
# goes on in it; after three tokens the attempt ends. There are 15 attempts, and 3,375 groups of three.

STOP, NEXT, MORE, LONGEST = 0, 1, 2, 3


def _attempts(prefix: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if prefix and (prefix[-1] == STOP or len(prefix) == LONGEST):
        return [prefix]
    return [text for token in (STOP, NEXT, MORE) for text in _attempts((*prefix, token))]


ATTEMPTS = _attempts()
PREFIXES = sorted({text[:t] for text in ATTEMPTS for t in range(len(text))})
NUMBERS = torch.Generator().manual_seed(5)
LOGITS = torch.randn((len(PREFIXES), 3), dtype=torch.float64, generator=NUMBERS).requires_grad_()
WORTH = {
    text[: t + 1]: 1.0 + torch.randn((), dtype=torch.float64, generator=NUMBERS).item()
    for text in ATTEMPTS
    for t in range(len(text))
}
"""What a turn earns, by all tokens up to its end."""


def turn_ends(text: tuple[int, ...]) -> list[int]:
    """The numbers of tokens at which the turns of an attempt end."""
    return [t for t in range(1, len(text) + 1) if text[t - 1] != MORE or t == len(text)]


def earned_by(text: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(WORTH[text[:end]] for end in turn_ends(text))


def played(text: tuple[int, ...]) -> Rollout:
    ends = turn_ends(text)
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return dialogue(*lengths, prompt_ids=(1,), token_ids=text)


def logprobs_of(text: tuple[int, ...], logprob: Tensor) -> Tensor:
    """Return the log-prob (T,) of each token of an attempt."""
    return torch.stack([logprob[PREFIXES.index(text[:t]), token] for t, token in enumerate(text)])


def true_gradient() -> Tensor:
    """Of the expected reward: each attempt with its probability and what all its turns earn."""
    logprob = LOGITS.log_softmax(-1)
    mean = sum(logprobs_of(text, logprob).sum().exp() * sum(earned_by(text)) for text in ATTEMPTS)
    return torch.autograd.grad(mean, LOGITS)[0]  # type: ignore[arg-type]


def mean_gradient(aggregation: str) -> Tensor:
    """Of the estimator, over all groups of three attempts with their probabilities."""
    members = list(itertools.product(range(len(ATTEMPTS)), repeat=3))
    rollouts = [played(text) for text in ATTEMPTS]
    verdicts = [Verdict({"game": Reward(turns=earned_by(text))}) for text in ATTEMPTS]
    groups = [
        Group(TASK, [rollouts[i] for i in three], [verdicts[i] for i in three]) for three in members
    ]
    found = rewards(groups)
    (rows,) = collate(
        [group.rollouts for group in groups],
        advantages(found, TURNS),
        found.scored_PG,
        aggregation=aggregation,
        max_length=LONGEST,
    )
    logprob = LOGITS.log_softmax(-1)
    tokens_N = [logprobs_of(text, logprob) for text in ATTEMPTS]
    chance_N = [float(tokens.sum().detach().exp()) for tokens in tokens_N]
    weight_N = [torch.zeros(len(text), dtype=torch.float64) for text in ATTEMPTS]
    for place, three in enumerate(members):
        chance = chance_N[three[0]] * chance_N[three[1]] * chance_N[three[2]]
        for i, row in zip(three, rows[3 * place : 3 * place + 3], strict=True):
            # A row's weight is that of a step with all groups; here each group is a step.
            share = chance * row.weight * len(groups)
            weight_N[i] += share * torch.tensor(row.advantage, dtype=torch.float64)
    surrogate = torch.stack([(w * t).sum() for w, t in zip(weight_N, tokens_N, strict=True)]).sum()
    return torch.autograd.grad(surrogate, LOGITS)[0]


@pytest.mark.parametrize(
    ("aggregation", "share"), [("sequence_sum", 1.0), ("constant", 1 / LONGEST)]
)
def test_the_gradient_on_average_is_that_of_the_expected_reward(aggregation, share):
    true = true_gradient()
    assert true.norm() > 0.1
    assert (mean_gradient(aggregation) - share * true).abs().max() < 1e-10


# Settings


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, r"loss\.aggregation=sequence_mean .*\(set it to sequence_sum or constant\)"),
        ({"loss": {"aggregation": "token_mean"}}, r"loss\.aggregation=token_mean"),
        ({"loss": {**LOSS, "mask_truncated": True}}, r"loss\.mask_truncated"),
        ({"loss": {**LOSS, "level": "sequence"}}, r"loss\.level=sequence .*set it to token"),
        ({"loss": {**LOSS, "level": "sequence_mean"}}, r"loss\.level=sequence_mean"),
        ({"loss": {**LOSS, "anchor": "reference"}}, r"loss\.anchor=reference"),
        ({"loss": LOSS, "advantage": {"keep": 4}}, r"advantage\.keep=4"),
        ({"loss": LOSS, "advantage": {"whiten": True}}, r"advantage\.whiten"),
        ({"advantage": {"whiten": True, "keep": 4}}, r"sequence_mean .*keep=4 .*whiten"),
    ],
)
def test_settings_that_would_bias_it_are_refused_in_one_message(more, message):
    asked = {"environment": "letters", **more}
    asked["advantage"] = {"name": "turns", **more.get("advantage", {})}
    with pytest.raises(ConfigError, match=r"advantage\.name=turns .*" + message):
        build_config([asked])
    assert build_config([{**asked, "advantage": {**asked["advantage"], "name": "grpo"}}])


@pytest.mark.parametrize("aggregation", ["sequence_sum", "constant"])
def test_what_does_not_bias_it_is_accepted(aggregation: str) -> None:
    more = {
        "advantage": {"name": "turns", "clip": 1.0, "overlong_buffer": 4},
        "loss": {"aggregation": aggregation},
        "kl": {"placement": "reward", "estimator": "k1", "beta": 0.1},
        "sampling": {"refills": 2},
        "trainer": {"shuffle_rewards": True},
    }
    assert build_config([{"environment": "letters", **more}])


# A run


def by_turn_run(settings: dict[str, Any], folder: Path, **more: Any) -> Trainer:
    common = {
        "eval": {"tasks": 0},
        "checkpoint": {"every": 0},
        "advantage": {"name": "turns"},
        "loss": LOSS,
        "sampling": {"stop": list(PAID)},
    }
    config = build_config([{**settings, **common, **more}])
    trainer = Trainer(config, Talking(), folder=RunFolder(folder))
    trainer.run()
    return trainer


@pytest.mark.slow
def test_a_policy_learns_a_dialogue_that_pays_by_turn_and_nothing_from_shuffled_rewards(
    settings, tmp_path
):
    means = []
    for shuffle in (False, True):
        more = {"steps": 12, "group_size": 8, "trainer": {"shuffle_rewards": shuffle}}
        by_turn_run(settings, tmp_path / str(shuffle), **more)
        means.append(logged(tmp_path / str(shuffle), "reward/mean"))
    early, late = sum(means[0][:3]) / 3, sum(means[0][-3:]) / 3
    assert late > early + 1.0
    assert max(means[1]) < late - 0.5


def test_the_log_of_a_run_has_what_each_turn_earned_and_its_advantage(settings, tmp_path):
    advantage = {"name": "turns", "overlong_buffer": 2, "overlong_weight": 0.0}
    more = {"steps": 2, "advantage": advantage, "log": {"samples_every": 1}}
    lines = list(by_turn_run(settings, tmp_path / "run", **more).folder.rollout_lines())
    assert {len(line["advantage"]) for line in lines} > {1}
    for _, several in itertools.groupby(
        lines, key=lambda line: json.dumps([line["step"], line["key"]])
    ):
        group, earned = list(several), []
        for line in group:
            parts = line["verdict"]["rewards"]
            assert parts["letters"]["value"] == pytest.approx(sum(parts["letters"]["turns"]))
            assert "turns" not in parts["talked"]
            own = list(parts["letters"]["turns"])
            own[-1] += 0.1 * parts["talked"]["value"]
            earned.append(own)
            verdict = Verdict.from_json(line["verdict"])
            assert verdict.rewards["letters"].turns == tuple(parts["letters"]["turns"])
        for line, expected in zip(group, definition(earned), strict=True):
            assert line["advantage"] == pytest.approx(expected, abs=1e-12)
    assert "advantage " in (tmp_path / "run" / "log.txt").read_text()


def test_a_group_for_people_shows_the_advantage_of_each_turn() -> None:
    text = format_group(3, replace(judged([1.0, 2.0], [4.0]), advantages=[[-1.0, 2.0], [1.0]]))
    assert "reward 3.00, advantage -1.00 +2.00" in text
    assert "reward 4.00, advantage +1.00" in text
