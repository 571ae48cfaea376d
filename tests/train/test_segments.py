"""Attempts of several segments: loss and gradient against plain loops in float64, trees, metrics, and a run."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core import Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.protocol.types import Group, Segment
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.algorithm.advantages import advantages
from grpo_core.train.algorithm.rewards import rewards
from grpo_core.train.compute.batch import Row, passes
from grpo_core.train.compute.tree import pack_trees
from grpo_core.train.policy.causal import Policy
from grpo_core.train.rollout.dialogue import Attempt
from grpo_core.train.run.metrics import group_metrics, segment_metrics
from grpo_core.train.trainer import Trainer
from grpo_core.train.update.updater import Sums, Updater

from .arrange import CPU, collate, micro_batches, run_config, tiny_policy
from .spelling import PAID

P, G, BUDGET = 3, 4, 17
SCORED_PG = torch.tensor([[True] * 4, [True, True, False, True], [True] * 4])
ADVANTAGE_PG = torch.tensor(
    [[0.5, -0.3, 0.2, -0.4], [1.0, 0.1, 0.0, -1.1], [0.0, -0.2, 0.7, -0.5]], dtype=torch.float64
)


# What agents leave behind


@dataclass
class Writer:
    """Writes segments with random tokens, and keeps the lengths of their turns for `attempt`."""

    rng: random.Random
    turn_lengths: list[int] = field(default_factory=list)

    def ids(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(4, 100) for _ in range(count))

    def segment(self, prefix: Sequence[int], *lengths: int) -> Segment:
        """lengths: of turns of the policy, and negative ones of what the environment says."""
        trainable = [int(length > 0) for length in lengths for _ in range(abs(length))]
        self.turn_lengths += [length for length in lengths if length > 0]
        drawn = tuple(-5.2 + self.rng.gauss(0, 0.2) for _ in trainable)
        return Segment(tuple(prefix), self.ids(len(trainable)), drawn, tuple(trainable))

    def attempt(self, *segments: Segment, finish: str = "stop") -> Rollout:
        lengths = tuple(self.turn_lengths)
        self.turn_lengths.clear()
        return of_segments(segments, lengths, finish=finish)


def of_segments(
    segments: Sequence[Segment], lengths: Sequence[int], *, finish: str = "stop"
) -> Rollout:
    first = segments[0]
    return Rollout(
        (Message("assistant", "x"),),
        finish,  # type: ignore[arg-type]
        first.prompt_ids,
        first.token_ids,
        first.logprobs,
        first.trainable,
        turn_lengths=tuple(lengths),
        later_segments=tuple(segments[1:]),
    )


def whole(segment: Segment) -> tuple[int, ...]:
    """All tokens of a segment, with its prefix."""
    return (*segment.prompt_ids, *segment.token_ids)


def random_attempts(seed: int = 0) -> list[list[Rollout]]:
    """Attempts of 1 to 5 segments, of every kind."""
    write = Writer(random.Random(seed))
    rollouts_PG = []
    for p in range(P):
        prompt = write.ids(write.rng.randint(9, 14))
        single = write.attempt(write.segment(prompt, 3, -2, 4))
        first = write.segment(prompt, 3, -2, 4)
        branches = write.attempt(
            first,
            write.segment(whole(first)[:-2], 2, -1, 3),  # from inside a turn
            write.segment(whole(first)[: len(prompt) + 3], -1, 2),  # from the end of a turn
        )
        retries = write.attempt(
            write.segment(prompt, 4),
            write.segment(prompt, 3),
            write.segment(prompt, 2, -1, 2),
            finish="length" if p == 2 else "stop",
        )
        first = write.segment(prompt, 3)
        strange = write.attempt(
            first,
            write.segment(write.ids(5), 5),  # of another conversation
            write.segment(write.ids(4)),  # nothing came of it
            write.segment(prompt, -3),  # the policy wrote nothing
            write.segment((*whole(first), *write.ids(2)), 1, -1, 2),
        )
        rollouts_PG.append([single, branches, retries, strange])
    return rollouts_PG


# The oracle: one sequence and one token at a time

Logprobs = dict[tuple[int, ...], Tensor]
"""Log-prob of each token (T,) of each segment, by all its tokens; no two segments have the same."""


def distributions(policy: Policy, segment: Segment) -> Tensor:
    """Log-probs (T, V) of all tokens at each place, by a forward pass of this segment alone."""
    logits = policy.model(input_ids=torch.tensor([whole(segment)]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(segment.prompt_ids) - 1 : -1], dim=-1)


def plain_logprobs(policy: Policy, segment: Segment) -> Tensor:
    """Of each token (T,)."""
    if not segment.token_ids:
        return torch.zeros(0, dtype=torch.float64)
    log_TV = distributions(policy, segment)
    return torch.stack([log_TV[t, token] for t, token in enumerate(segment.token_ids)])


def all_logprobs(policy: Policy, rollouts_PG: Sequence[Sequence[Rollout]]) -> Logprobs:
    with torch.no_grad():
        return {
            whole(segment): plain_logprobs(policy, segment)
            for group in rollouts_PG
            for rollout in group
            for segment in rollout.segments
        }


def expected_loss(
    policy: Policy,
    config: RunConfig,
    attempts: Sequence[tuple[Rollout, Sequence[float]]],
    old: Logprobs,
    reference: Logprobs,
) -> Tensor:
    """Of one optimizer step; attempts: those that count, with the advantage of each turn."""
    lengths = []
    for rollout, _ in attempts:
        length = 0
        for segment in rollout.segments:
            for own in segment.trainable:
                length += own
        lengths.append(length)
    total = torch.zeros((), dtype=torch.float64)
    for (rollout, by_turn), length in zip(attempts, lengths, strict=True):
        weight = {
            "sequence_mean": 1 / len(attempts) / max(1, length),
            "token_mean": 1 / sum(lengths),
            "sequence_sum": 1 / len(attempts),
            "constant": 1 / len(attempts) / BUDGET,
        }[config.loss.aggregation]
        turn_of_token = [turn for turn, n in enumerate(rollout.turn_lengths) for _ in range(n)]
        for segment in rollout.segments:
            now, before = plain_logprobs(policy, segment), old[whole(segment)]
            places = [t for t, own in enumerate(segment.trainable) if own]
            moved = torch.zeros((), dtype=torch.float64)
            for t in places:
                moved = moved + now[t] - before[t]
            for t in places:
                advantage = by_turn[turn_of_token.pop(0)]
                ratio = torch.exp(
                    {
                        "token": now[t] - before[t],
                        "sequence": moved,
                        "sequence_mean": moved / len(places),
                    }[config.loss.level]
                )
                bounded = ratio.clamp(1 - config.loss.clip_low, 1 + config.loss.clip_high)
                term = {
                    "clip": -torch.min(ratio * advantage, bounded * advantage),
                    "cispo": -bounded.detach() * advantage * now[t],
                    "reinforce": -advantage * now[t],
                }[config.loss.name]
                if config.loss.tis_cap:
                    drift = math.exp(float(before[t]) - segment.logprobs[t])
                    term = term * max(config.loss.tis_floor, min(config.loss.tis_cap, drift))
                if config.kl.placement == "loss":
                    d = now[t] - reference[whole(segment)][t]
                    term = term + config.kl.beta * (torch.exp(-d) + d - 1)
                total = total + weight * term
    return total


def counted(
    config: RunConfig, rollouts_PG: Sequence[Sequence[Rollout]], advantage: Tensor
) -> list[list[tuple[Rollout, list[float]]]]:
    """The attempts of each optimizer step, with the advantage of each turn."""
    steps: list[list[tuple[Rollout, list[float]]]] = []
    for i in range(config.trainer.minibatches):
        steps.append([])
        for p in range(
            i * P // config.trainer.minibatches, (i + 1) * P // config.trainer.minibatches
        ):
            for g, rollout in enumerate(rollouts_PG[p]):
                if not SCORED_PG[p, g] or (
                    config.loss.mask_truncated and rollout.finish == "length"
                ):
                    continue
                own = advantage[p, g].tolist()
                steps[-1].append((rollout, own if isinstance(own, list) else [own] * 9))
    return steps


# What the trainer computes


def steps_of(
    config: RunConfig, rollouts_PG: Sequence[Sequence[Rollout]], advantage: Tensor
) -> list[list[Row]]:
    return collate(
        rollouts_PG,
        advantage,
        SCORED_PG,
        aggregation=config.loss.aggregation,
        max_length=BUDGET,
        minibatches=config.trainer.minibatches,
        mask_truncated=config.loss.mask_truncated,
    )


def gradient(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None}


def computed(
    policy: Policy, config: RunConfig, rows: Sequence[Row], old: Logprobs, *, max_tokens: int
) -> tuple[float, dict[str, Tensor], int]:
    """Loss and gradient of one optimizer step, and the number of its micro-batches."""
    updater = Updater(policy, config, steps=1)
    policy.model.zero_grad()
    total, count = 0.0, 0
    for micro in micro_batches(rows, max_tokens=max_tokens, device=CPU, dtype=torch.float64):
        old_BT = torch.zeros_like(micro.generated_BT)
        for b, row in enumerate(micro.rows):
            values = old[whole(row.segment)]
            old_BT[b, : len(values)] = values
        reference = policy.reference_states(micro) if config.needs_reference else None
        loss, _ = updater.loss(micro, old_BT, reference, Sums())
        loss.backward()
        total, count = total + loss.item(), count + 1
    return total, gradient(policy), count


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    norm = math.sqrt(sum(float((g**2).sum()) for g in expected.values()))
    assert norm > 1e-6
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-9, atol=1e-9 * norm)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


@pytest.fixture(scope="module")
def rollouts_PG() -> list[list[Rollout]]:
    return random_attempts()


@pytest.fixture(scope="module")
def old(policy: Policy, rollouts_PG: list[list[Rollout]]) -> Logprobs:
    """Log-probs of a policy that has since moved: some ratios lie outside the clip on either side."""
    noise = torch.Generator().manual_seed(3)
    return {
        tokens: values + 0.4 * torch.randn(values.shape, generator=noise)
        for tokens, values in all_logprobs(policy, rollouts_PG).items()
    }


@pytest.fixture(scope="module")
def reference(policy: Policy, rollouts_PG: list[list[Rollout]]) -> Logprobs:
    with policy.model.disable_adapter():
        return all_logprobs(policy, rollouts_PG)


def check_against_the_oracle(
    policy: Policy,
    config: RunConfig,
    rollouts_PG: list[list[Rollout]],
    advantage: Tensor,
    old: Logprobs,
    reference: Logprobs,
) -> None:
    """With all rows in one micro-batch, and with one micro-batch for each row, which splits attempts."""
    (attempts,) = counted(config, rollouts_PG, advantage)
    policy.model.zero_grad()
    loss = expected_loss(policy, config, attempts, old, reference)
    loss.backward()
    expected = gradient(policy)
    (rows,) = steps_of(config, rollouts_PG, advantage)
    for max_tokens, count in ((10_000, 1), (1, len(rows))):
        found = computed(policy, config, rows, old, max_tokens=max_tokens)
        assert found[0] == pytest.approx(loss.item(), rel=1e-9)
        assert_same(found[1], expected)
        assert found[2] == count


@pytest.mark.sampled(3)
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize(
    ("name", "level"),
    [("clip", "token"), ("clip", "sequence_mean"), ("cispo", "sequence"), ("reinforce", "token")],
)
def test_loss_and_gradient_equal_those_of_loops_over_attempts_segments_and_tokens(
    policy: Policy,
    rollouts_PG: list[list[Rollout]],
    old: Logprobs,
    reference: Logprobs,
    name: str,
    level: str,
    aggregation: str,
) -> None:
    config = run_config(
        loss={"name": name, "level": level, "aggregation": aggregation}, kl={"beta": 0.0}
    )
    check_against_the_oracle(policy, config, rollouts_PG, ADVANTAGE_PG, old, reference)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "loss",
    [
        {"aggregation": "sequence_mean"},
        {"aggregation": "token_mean", "mask_truncated": True},
        {"aggregation": "sequence_sum", "level": "sequence_mean", "tis_cap": 1.1, "tis_floor": 0.8},
    ],
)
def test_a_kl_in_the_loss_and_masks_and_weights_are_those_of_the_oracle_too(
    policy: Policy,
    rollouts_PG: list[list[Rollout]],
    old: Logprobs,
    reference: Logprobs,
    loss: dict[str, Any],
) -> None:
    config = run_config(loss=loss, kl={"beta": 0.1, "estimator": "k3"})
    check_against_the_oracle(policy, config, rollouts_PG, ADVANTAGE_PG, old, reference)


def judged(rollouts_PG: Sequence[Sequence[Rollout]], *, seed: int = 5) -> list[Group[None]]:
    """The attempts with a reward for each turn."""
    rng = random.Random(seed)
    groups = []
    for p, rollouts in enumerate(rollouts_PG):
        earned = [tuple(rng.gauss(0, 1) for _ in rollout.turn_lengths) for rollout in rollouts]
        verdicts = [
            Verdict({"game": Reward(turns=turns)}) if SCORED_PG[p, g] else Verdict.failed("broken")
            for g, turns in enumerate(earned)
        ]
        groups.append(Group(Task(TaskKey("letters", "train", p), "?", None), rollouts, verdicts))
    return groups


def test_the_turns_of_all_segments_have_advantages_of_their_own(
    policy: Policy, rollouts_PG: list[list[Rollout]], old: Logprobs, reference: Logprobs
) -> None:
    """The estimator `turns`: the return from a turn on minus the mean of the others' return from it on."""
    config = run_config(
        advantage={"name": "turns"}, loss={"aggregation": "sequence_sum"}, kl={"beta": 0.0}
    )
    groups = judged(rollouts_PG)
    found = advantages(rewards(groups), config.advantage)
    expected = torch.zeros_like(found)
    for p, group in enumerate(groups):
        scored = [
            verdict.rewards["game"].turns if verdict.scored else None for verdict in group.verdicts
        ]
        for g, own in enumerate(scored):
            others = [turns for i, turns in enumerate(scored) if i != g and turns is not None]
            for t in range(len(own or ())):
                later = [sum(turns[t:]) for turns in others]
                expected[p, g, t] = sum(own[t:]) - sum(later) / len(later)  # type: ignore[index]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    check_against_the_oracle(policy, config, rollouts_PG, found, old, reference)


def test_a_kl_in_the_reward_is_the_sum_over_all_segments_of_an_attempt(
    policy: Policy, rollouts_PG: list[list[Rollout]], reference: Logprobs
) -> None:
    config = run_config(
        kl={"beta": 0.1, "estimator": "k1", "placement": "reward"},
        advantage={"name": "rloo"},
        trainer={"micro_batch_tokens": 30},
    )
    found_PG = Updater(policy, config, steps=1).divergences(rollouts_PG)
    for p, g in itertools.product(range(P), range(G)):
        total = 0.0
        for segment in rollouts_PG[p][g].segments:
            with torch.no_grad():
                now = plain_logprobs(policy, segment).tolist()
            for t, own in enumerate(segment.trainable):
                d = now[t] - float(reference[whole(segment)][t])
                total += own * d
        assert float(found_PG[p, g]) == pytest.approx(total, rel=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("minibatches", [1, 2, 3])
def test_several_optimizer_steps_move_the_weights_as_plain_adamw_does(minibatches: int) -> None:
    """And the metrics of one step are sums over the attempts' tokens."""
    config = run_config(
        loss={"level": "sequence_mean", "aggregation": "sequence_mean"},
        kl={"beta": 0.05, "estimator": "k3"},
        optimizer={"lr": 0.03, "max_grad_norm": 1e9},
        schedule={"name": "constant", "warmup": 0},
        trainer={"mu": 2, "minibatches": minibatches, "micro_batch_tokens": 40},
    )
    rollouts_PG, policy, plain = random_attempts(), tiny_policy(), tiny_policy()
    values = Updater(policy, config, steps=1).update(steps_of(config, rollouts_PG, ADVANTAGE_PG))
    old = all_logprobs(plain, rollouts_PG)
    with plain.model.disable_adapter():
        reference = all_logprobs(plain, rollouts_PG)
    adam = torch.optim.AdamW(
        [p for _, p in plain.trainable()],
        lr=0.03,
        betas=config.optimizer.betas,
        weight_decay=config.optimizer.weight_decay,
    )
    kl_by_step, k3_by_step = [], []
    for _, attempts in itertools.product(range(2), counted(config, rollouts_PG, ADVANTAGE_PG)):
        now, kl, k3, tokens = all_logprobs(plain, rollouts_PG), 0.0, 0.0, 0
        for rollout, _ in attempts:
            for segment in rollout.segments:
                with torch.no_grad():
                    log_TV = distributions(plain, segment)
                    with plain.model.disable_adapter():
                        log_reference_TV = distributions(plain, segment)
                for t, own in enumerate(segment.trainable):
                    d = float(now[whole(segment)][t] - reference[whole(segment)][t])
                    k3 += own * (math.exp(-d) + d - 1)
                    difference_V = log_TV[t] - log_reference_TV[t]
                    kl += own * float((log_TV[t].exp() * difference_V).sum())
                    tokens += own
        kl_by_step.append(kl / len(attempts))
        k3_by_step.append(k3 / tokens)
        adam.zero_grad()
        expected_loss(plain, config, attempts, old, reference).backward()
        adam.step()
    for (name, ours), (_, theirs) in zip(policy.trainable(), plain.trainable(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10, msg=name)
    assert values["kl/sequence"] == pytest.approx(statistics.fmean(kl_by_step), rel=1e-7)
    assert values["kl/k3"] == pytest.approx(statistics.fmean(k3_by_step), rel=1e-7)


# Which tokens are trained


def test_each_sampled_token_is_trained_once_and_none_of_the_environment(
    policy: Policy, rollouts_PG: list[list[Rollout]]
) -> None:
    """By what the loss of a plain policy gradient changes by with the advantage of each token."""
    config = run_config(loss={"name": "reinforce", "aggregation": "sequence_sum"}, kl={"beta": 0.0})
    (rows,) = steps_of(config, rollouts_PG, ADVANTAGE_PG)
    updater, sums = Updater(policy, config, steps=1), Sums()
    moved: list[tuple[tuple[int, ...], int]] = []
    for micro in micro_batches(rows, max_tokens=50, device=CPU, dtype=torch.float64):
        advantage_BT = micro.advantage_BT.requires_grad_()
        updater.loss(micro, None, None, sums)[0].backward()
        assert advantage_BT.grad is not None
        for b, t in advantage_BT.grad.nonzero().tolist():
            segment = micro.rows[b].segment
            moved.append((whole(segment), len(segment.prompt_ids) + t))
            change = -plain_logprobs(policy, segment)[t].item() / int(SCORED_PG.sum())
            assert float(advantage_BT.grad[b, t]) == pytest.approx(change, rel=1e-9)
    scored = [
        rollout
        for rollouts, scored_G in zip(rollouts_PG, SCORED_PG, strict=True)
        for rollout, is_scored in zip(rollouts, scored_G, strict=True)
        if is_scored
    ]
    sampled = [
        (whole(segment), len(segment.prompt_ids) + t)
        for rollout in scored
        for segment in rollout.segments
        for t, own in enumerate(segment.trainable)
        if own
    ]
    assert sorted(moved) == sorted(sampled)
    assert float(sums.tokens) == len(sampled) == sum(sum(r.turn_lengths) for r in scored)
    assert sums.attempts == len(scored)


def test_what_the_environment_wrote_has_no_say(
    policy: Policy, rollouts_PG: list[list[Rollout]], old: Logprobs, reference: Logprobs
) -> None:
    """Neither its log-probs at sampling nor before the update."""
    config = run_config(
        loss={"level": "sequence_mean", "tis_cap": 2.0}, kl={"beta": 0.1, "estimator": "k3"}
    )
    spoilt_PG = [
        [
            of_segments(
                [
                    replace(
                        segment,
                        logprobs=tuple(
                            logprob if own else -1e9
                            for own, logprob in zip(
                                segment.trainable, segment.logprobs, strict=True
                            )
                        ),
                    )
                    for segment in rollout.segments
                ],
                rollout.turn_lengths,
                finish=rollout.finish,
            )
            for rollout in rollouts
        ]
        for rollouts in rollouts_PG
    ]
    spoilt_old = {
        whole(segment): torch.where(torch.tensor(segment.trainable) != 0, old[whole(segment)], 9.0)
        for rollouts in rollouts_PG
        for rollout in rollouts
        for segment in rollout.segments
    }
    (rows,), (spoilt_rows,) = (
        steps_of(config, rollouts, ADVANTAGE_PG) for rollouts in (rollouts_PG, spoilt_PG)
    )
    found, spoilt = (
        computed(policy, config, rows, old, max_tokens=60),
        computed(policy, config, spoilt_rows, spoilt_old, max_tokens=60),
    )
    assert found[0] == spoilt[0]
    assert all(torch.equal(spoilt[1][name], values) for name, values in found[1].items())


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum"])
def test_a_dialogue_cut_into_segments_at_its_turns_is_the_same_dialogue(
    policy: Policy, aggregation: str
) -> None:
    """At the level of tokens; each turn then continues a prefix that holds the turns before it."""
    write = Writer(random.Random(1))
    dialogues = [
        [write.attempt(write.segment(write.ids(9), 3, -2, 4, -1, 2)) for _ in range(G)]
        for _ in range(P)
    ]
    config = run_config(loss={"aggregation": aggregation}, kl={"beta": 0.1, "estimator": "k3"})
    results = []
    for rollouts_PG in (dialogues, [[cut(r) for r in rollouts] for rollouts in dialogues]):
        (rows,) = steps_of(config, rollouts_PG, ADVANTAGE_PG)
        results.append(
            computed(policy, config, rows, all_logprobs(policy, rollouts_PG), max_tokens=90)
        )
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-12)
    assert_same(results[1][1], results[0][1])


def cut(rollout: Rollout) -> Rollout:
    """The same attempt with a segment for each turn, as of an agent whose every request starts anew."""
    segments, tokens, place = [], whole(rollout.segments[0]), len(rollout.prompt_ids)
    start = place
    for length in rollout.turn_lengths:
        while rollout.trainable[place - start : place - start + 1] == (0,):
            place += 1
        part = slice(place - start, place - start + length)
        segments.append(
            Segment(
                tokens[:place],
                tokens[place : place + length],
                rollout.logprobs[part],
                (1,) * length,
            )
        )
        place += length
    if not segments:
        return rollout
    found = of_segments(segments, rollout.turn_lengths)
    return replace(
        rollout,
        prompt_ids=found.prompt_ids,
        token_ids=found.token_ids,
        logprobs=found.logprobs,
        trainable=found.trainable,
        later_segments=found.later_segments,
        returned={"turns": len(segments)},
    )


def test_an_attempt_that_asked_for_nothing_counts_in_the_denominators_and_is_not_computed() -> None:
    """As of an agent that never calls; it has no prompt that could be computed."""
    write = Writer(random.Random(0))
    silent = Rollout((), returned="nothing")
    spoke = write.attempt(write.segment(write.ids(5), 4))
    (rows,) = collate(
        [[silent, spoke]],
        torch.tensor([[-1.0, 1.0]], dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.bool),
        aggregation="sequence_sum",
        max_length=9,
    )
    assert [(row.segment, row.weight, row.first) for row in rows] == [
        (spoke.segments[0], 0.5, True)
    ]
    config = run_config(
        kl={"beta": 0.1, "estimator": "k1", "placement": "reward"}, advantage={"name": "rloo"}
    )
    kl_PG = Updater(tiny_policy(), config, steps=1).divergences([[silent, spoke]])
    assert kl_PG[0, 0] == 0
    assert kl_PG[0, 1] != 0


# Trees


def test_what_the_segments_of_an_attempt_share_is_computed_once() -> None:
    """A prompt of 20 and 30 tokens, 5 more from the middle, 4 from the prompt, 3 behind all: 62 nodes in one tree."""
    write = Writer(random.Random(0))
    first = write.segment(write.ids(20), 10, -10, 10)
    attempt = write.attempt(
        first,
        write.segment(whole(first)[:35], 5),
        write.segment(first.prompt_ids, 4),
        write.segment(whole(first), 3),
    )
    (rows,) = collate(
        [[attempt]],
        torch.ones(1, 1, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.bool),
        aggregation="sequence_mean",
        max_length=50,
    )
    for pair in (0.0, 0.01):
        ((trees, tokens),) = passes(rows, max_tokens=62, pair=pair)
        assert (trees, tokens) == ([rows], 62)
    nodes = pack_trees(
        [row.segment.prompt_ids for row in rows],
        [row.segment.token_ids for row in rows],
        device=CPU,
    )
    assert nodes.tokens_BN.shape == (1, 62 - 3)  # the last token of a row predicts nothing
    # With a token less there is one tree for the first three, and one of 53 for the last.
    assert [tokens for _, tokens in passes(rows, max_tokens=61)] == [59, 53]
    # Attempts are counted as if they shared no token after their prompt, as those of one segment are.
    alike = [*rows, replace(rows[0], segment=replace(first, token_ids=(*first.token_ids[:29], 1)))]
    ((trees, tokens),) = passes(alike, max_tokens=999)
    assert (trees, tokens) == ([alike], 62 + 30)


# Metrics


def test_the_metrics_of_agents_by_hand() -> None:
    """Attempts of 1, 2 and 3 segments with 2, 3 and 3 turns, and of 9, 11 and 8 sampled tokens."""
    write = Writer(random.Random(0))
    straight = write.attempt(write.segment(write.ids(6), 4, -2, 5))
    first = write.segment(write.ids(6), 3, -2, 4)
    branched = write.attempt(first, write.segment(whole(first)[:-1], 4))  # keeps the turn of 3
    prompt = write.ids(6)
    thrice = write.attempt(
        write.segment(prompt, 2), write.segment(prompt, 3), write.segment(prompt, 3)
    )
    found = segment_metrics([straight, branched, thrice])
    assert found == pytest.approx(
        {
            "segments/mean": 2.0,
            "segments/discarded": (4 + 2 + 3) / 28,
            "segments/continued": (1 + 1 + 0) / (1 + 2 + 2),
        }
    )
    kept = write.segment(write.ids(4), 3)
    whole_turn = write.attempt(kept, write.segment((*whole(kept), 7), 2))
    assert segment_metrics([whole_turn])["segments/discarded"] == 0
    assert write.attempt(kept, kept).turns_by_segment == ((), ())


def test_only_environments_with_agents_have_metrics_of_segments() -> None:
    """In a mixture the common ones are of these alone; attempts without a turn do not count."""
    write = Writer(random.Random(0))
    prompt = write.ids(6)
    straight = write.attempt(write.segment(prompt, 4, -2, 5))
    twice = write.attempt(write.segment(prompt, 2), write.segment(prompt, 2))
    failed = Rollout((), "error", error="the agent broke")

    def group(name: str, *rollouts: Rollout) -> Group[None]:
        verdicts = [Verdict({"x": Reward(1.0)})] * len(rollouts)
        return Group(Task(TaskKey(name, "train", 0), "?", None), rollouts, verdicts)

    groups, parts = [group("a", twice, failed), group("b", straight)], {"a": ["x"], "b": ["x"]}
    mixed = group_metrics(groups, parts, with_agents={"a", "c"})
    names = ("segments/mean", "segments/discarded", "segments/continued")
    assert [mixed[name] for name in names] == [mixed[f"a/{name}"] for name in names] == [2, 0.5, 0]
    assert not any(
        "segments" in name and not name.startswith(("segments/", "a/")) for name in mixed
    )
    assert mixed["tokens/generated"] == 13
    assert mixed["a/completion_length/mean"] == 2
    alone = group_metrics(groups[1:], {"b": ["x"]}, with_agents=["b"])
    assert [alone[name] for name in names] == [1.0, 0.0, 1.0]
    assert not any("segments" in name for name in group_metrics(groups, parts))
    nothing = group_metrics([group("a", failed)], {"a": ["x"]}, with_agents=["a"])
    assert all(math.isnan(nothing[name]) for name in names)


# A run


UNEQUAL = ("time/", "seconds", "memory/")
"""What is measured about the machine."""


@pytest.mark.slow
def test_a_run_learns_the_same_from_dialogues_that_are_cut_into_segments(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, with advantages by turn, and verdicts of a worker that is told of the segments."""
    plain_rollout = Attempt.rollout
    lines = []
    for name in ("whole", "cut"):
        if name == "cut":
            monkeypatch.setattr(Attempt, "rollout", lambda attempt: cut(plain_rollout(attempt)))
        config = build_config(
            [
                {
                    **settings,
                    "model": {**settings["model"], "dtype": "float64"},
                    "steps": 2,
                    "eval": {"tasks": 2},
                    "advantage": {"name": "turns", "overlong_buffer": 2},
                    "loss": {"aggregation": "sequence_sum"},
                    "sampling": {"stop": list(PAID)},
                    "verify": {"isolation": "process", "workers": 1},
                    "environment": str(Path(__file__).with_name("spelling.py")) + ":Spelling",
                }
            ]
        )
        trainer = Trainer(config, folder=RunFolder(tmp_path / name))
        trainer.run()
        lines.append(list(read_lines(tmp_path / name / "metrics.jsonl")))
        logged = list(trainer.folder.rollout_lines())
    for whole_line, cut_line in zip(*lines, strict=True):
        eval_ = "eval/" if cut_line["kind"] == "evaluation" else ""
        assert cut_line[f"{eval_}verify/error_rate"] == 0
        assert cut_line.keys() == whole_line.keys()
        for key, value in whole_line.items():
            if isinstance(value, float) and not any(word in key for word in UNEQUAL):
                assert cut_line[key] == pytest.approx(value, rel=1e-6), key
    several = [line for line in logged if "segments" in line]
    assert several
    for line in several:
        parts = line["segments"]
        assert line["returned"] == {"turns": len(parts)}
        assert line["tokens"] == sum(part["tokens"] for part in parts)
        assert [part["turns"] for part in parts] == [[part["tokens"]] for part in parts]
        assert parts[0]["shared_tokens"] == 0
        for before, part in itertools.pairwise(parts):
            assert part["shared_tokens"] == before["prompt_tokens"] + before["tokens"]
