"""Attempts of several segments: loss and gradient against plain loops in float64, trees, metrics, and a run."""

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from grpo_core import Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.config import RunConfig
from grpo_core.engine.compute.batch import Row, passes
from grpo_core.engine.compute.tree import pack_trees
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.types import Group, Segment
from grpo_core.train.algorithm.advantages import advantages
from grpo_core.train.algorithm.rewards import rewards
from grpo_core.train.run.metrics import group_metrics, segment_metrics
from grpo_core.train.update.sums import Sums
from grpo_core.train.update.updater import Updater

from .arrange import CPU, collate, micro_batches, run_config, tiny_policy
from .test_algorithm import assert_same
from .test_turns import definition

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
        lengths, first = tuple(self.turn_lengths), segments[0]
        self.turn_lengths.clear()
        return Rollout(
            (Message("assistant", "x"),),
            finish,  # type: ignore[arg-type]
            first.prompt_ids,
            first.token_ids,
            first.logprobs,
            first.trainable,
            turn_lengths=lengths,
            later_segments=segments[1:],
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
    lengths = [
        sum(own for segment in rollout.segments for own in segment.trainable)
        for rollout, _ in attempts
    ]
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
    count, steps = config.trainer.minibatches, list[list[tuple[Rollout, list[float]]]]()
    for i in range(count):
        steps.append([])
        for p, g in itertools.product(range(i * P // count, (i + 1) * P // count), range(G)):
            rollout = rollouts_PG[p][g]
            masked = config.loss.mask_truncated and rollout.finish == "length"
            if SCORED_PG[p, g] and not masked:
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


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


@dataclass(frozen=True)
class Known:
    """Attempts, the policy that is trained with them, and log-probs that the oracle computed."""

    policy: Policy
    rollouts_PG: list[list[Rollout]]
    old: Logprobs
    """Those of a policy that has since moved: some ratios lie outside the clip on either side."""
    reference: Logprobs

    def check(self, config: RunConfig, advantage: Tensor) -> None:
        """Hold loss and gradient against the oracle.

        With all rows in one micro-batch, and with one micro-batch for each row, which splits attempts.
        """
        (attempts,) = counted(config, self.rollouts_PG, advantage)
        self.policy.model.zero_grad()
        loss = expected_loss(self.policy, config, attempts, self.old, self.reference)
        loss.backward()
        expected = loss.item(), gradient(self.policy)
        (rows,) = steps_of(config, self.rollouts_PG, advantage)
        for max_tokens, count in ((10_000, 1), (1, len(rows))):
            *found, micros = computed(self.policy, config, rows, self.old, max_tokens=max_tokens)
            assert_same(found, expected, rtol=1e-9)
            assert micros == count


@pytest.fixture(scope="module")
def known(policy: Policy) -> Known:
    rollouts_PG, noise = random_attempts(), torch.Generator().manual_seed(3)
    old = {
        tokens: values + 0.4 * torch.randn(values.shape, generator=noise)
        for tokens, values in all_logprobs(policy, rollouts_PG).items()
    }
    with policy.model.disable_adapter():
        return Known(policy, rollouts_PG, old, all_logprobs(policy, rollouts_PG))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize(
    ("name", "level"),
    [("clip", "token"), ("clip", "sequence_mean"), ("cispo", "sequence"), ("reinforce", "token")],
)
def test_loss_and_gradient_equal_those_of_loops_over_attempts_segments_and_tokens(
    known, name, level, aggregation
):
    loss = {"name": name, "level": level, "aggregation": aggregation}
    known.check(run_config(loss=loss, kl={"beta": 0.0}), ADVANTAGE_PG)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param({"aggregation": "sequence_mean"}, marks=pytest.mark.slow),
        {"aggregation": "token_mean", "mask_truncated": True},
        {"aggregation": "sequence_sum", "level": "sequence_mean", "tis_cap": 1.1, "tis_floor": 0.8},
    ],
    ids=["a kl alone", "and truncated attempts left out", "and truncated importance weights"],
)
def test_a_kl_in_the_loss_and_masks_and_weights_are_those_of_the_oracle_too(known, loss):
    known.check(run_config(loss=loss, kl={"beta": 0.1, "estimator": "k3"}), ADVANTAGE_PG)


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


@pytest.mark.parametrize(
    ("name", "aggregation"), [("clip", "sequence_sum"), ("reinforce", "constant")]
)
def test_the_turns_of_all_segments_have_advantages_of_their_own(known, name, aggregation):
    """The estimator `turns`: the return from a turn on minus the mean of the others' return from it on."""
    loss = {"name": name, "aggregation": aggregation}
    config = run_config(advantage={"name": "turns"}, loss=loss, kl={"beta": 0.0})
    groups = judged(known.rollouts_PG)
    found = advantages(rewards(groups), config.advantage)
    expected = torch.zeros_like(found)
    for p, group in enumerate(groups):
        earned = [v.rewards["game"].turns if v.scored else None for v in group.verdicts]
        for g, row in enumerate(definition(earned)):
            expected[p, g, : len(row)] = torch.tensor(row, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    known.check(config, found)


def test_a_kl_in_the_reward_is_the_sum_over_all_segments_of_an_attempt(known: Known) -> None:
    config = run_config(
        kl={"beta": 0.1, "estimator": "k1", "placement": "reward"},
        advantage={"name": "rloo"},
        trainer={"micro_batch_tokens": 30},
    )
    found_PG = Updater(known.policy, config, steps=1).divergences(known.rollouts_PG)
    for p, g in itertools.product(range(P), range(G)):
        total = 0.0
        for segment in known.rollouts_PG[p][g].segments:
            with torch.no_grad():
                difference_T = plain_logprobs(known.policy, segment)
                difference_T = difference_T - known.reference[whole(segment)]
            total += float((difference_T * torch.tensor(segment.trainable)).sum())
        assert float(found_PG[p, g]) == pytest.approx(total, rel=1e-9)


@pytest.mark.slow
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
