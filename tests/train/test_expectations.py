"""What a KL, a surrogate and an estimator are on average, by adding up every completion.

    python tests/train/test_expectations.py    # prints the table of biases

A policy over three tokens, of which the first ends a completion, writes at most three: 15 completions, each with its probability. The
exact values are written without log-ratios of samples: by walking through the tree of prefixes, or from whole completions. Nothing here
repeats a formula of `losses.py`, so a formula that is wrong there is wrong here, too, only if it is wrong on average.
"""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import AdvantageConfig, KLConfig, LossConfig
from grpo_core.engine.compute.values import token_values
from grpo_core.protocol.errors import ConfigError
from grpo_core.train.algorithm.advantages import advantages
from grpo_core.train.algorithm.losses import (
    AGGREGATIONS,
    FULL,
    KL_ESTIMATORS,
    LEVELS,
    SURROGATES,
    divergence,
)
from grpo_core.train.algorithm.rewards import Rewards

VOCABULARY, LONGEST, END = 3, 3, 0
Prefix = tuple[int, ...]


def _completions(prefix: Prefix = ()) -> Iterator[Prefix]:
    for token in range(VOCABULARY):
        written = (*prefix, token)
        if token == END or len(written) == LONGEST:
            yield written
        else:
            yield from _completions(written)


COMPLETIONS = list(_completions())
PREFIXES = sorted({text[:t] for text in COMPLETIONS for t in range(len(text))})
PLACE_BT = torch.tensor(
    [
        [PREFIXES.index(text[:t]) if t < len(text) else 0 for t in range(LONGEST)]
        for text in COMPLETIONS
    ]
)
TOKEN_BT = torch.tensor(
    [[text[t] if t < len(text) else 0 for t in range(LONGEST)] for text in COMPLETIONS]
)
WRITTEN_BT = torch.tensor([[float(t < len(text)) for t in range(LONGEST)] for text in COMPLETIONS])
LENGTHS = [len(text) for text in COMPLETIONS]


def _logits(seed: int, scale: float = 1.0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    shape = (len(PREFIXES), VOCABULARY)
    return scale * torch.randn(shape, dtype=torch.float64, generator=noise)


REFERENCE = _logits(0).log_softmax(-1)
START = (_logits(0) + _logits(1, 0.7)).log_softmax(-1)
"""The policy that sampled."""
MOVED = (_logits(0) + _logits(1, 0.7) + _logits(2, 0.5)).requires_grad_()
"""Logits of a policy that has moved since."""
PRESENT = {"on-policy": START.clone().requires_grad_(), "moved": MOVED}
WORTH_B1 = torch.randn(
    (len(COMPLETIONS), 1), dtype=torch.float64, generator=torch.Generator().manual_seed(3)
)
"""What each completion is worth."""


def chosen(logprob: Tensor) -> Tensor:
    """Return the log-probs (B, T) of the tokens of every completion, 0 where there is none."""
    return logprob[PLACE_BT, TOKEN_BT] * WRITTEN_BT


def probability(logprob: Tensor) -> Tensor:
    """Return the probability (B, 1) of every completion."""
    return chosen(logprob).sum(dim=1, keepdim=True).exp()


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


# --- the exact values


def kl_of_tokens(logits: Tensor, sampler: Tensor) -> Tensor:
    """Return the KL of the distributions of the next token, added up along what the sampler writes.

    The sampler decides how often each prefix is met; a gradient does not change that.
    """

    def below(prefix: Prefix, reached: float) -> Tensor:
        place = PREFIXES.index(prefix)
        share = logits[place].softmax(-1)
        total = reached * (share * (share.log() - REFERENCE[place])).sum()
        for token in range(VOCABULARY):
            if token != END and len(prefix) + 1 < LONGEST:
                total = total + below(
                    (*prefix, token), reached * float(sampler[place, token].exp())
                )
        return total

    return below((), 1.0)


def kl_of_completions(logits: Tensor) -> Tensor:
    """Return the KL of the distributions of whole completions."""
    own, other = probability(logits.log_softmax(-1)), probability(REFERENCE)
    return (own * (own / other).log()).sum()


def mean_worth(logits: Tensor) -> Tensor:
    return (probability(logits.log_softmax(-1)) * WORTH_B1).sum()


# --- expectations of the estimates that training computes from samples


def kl_on_average(logits: Tensor, estimator: str, *, importance: bool) -> Tensor:
    logprob_BT, reference_BT = chosen(logits.log_softmax(-1)), chosen(REFERENCE)
    config = KLConfig(estimator=estimator)  # type: ignore[arg-type]
    vocabulary = torch.arange(VOCABULARY).repeat(len(PREFIXES), 1)
    places = torch.arange(len(PREFIXES)).unsqueeze(1).expand_as(vocabulary)
    values = token_values(logits, places.flatten(), vocabulary.flatten(), REFERENCE)
    full_BT = values.kl.reshape(vocabulary.shape)[PLACE_BT, TOKEN_BT] * WRITTEN_BT
    kl_BT = divergence(
        logprob_BT, chosen(START), reference_BT, config, importance=importance, full_BT=full_BT
    )
    return (probability(START) * WRITTEN_BT * kl_BT).sum()


def kl_in_the_reward_on_average(logits: Tensor, estimator: str) -> Tensor:
    """Return what has the gradient that a KL in the reward adds to the policy gradient."""
    logprob_BT = chosen(logits.log_softmax(-1))
    kl_BT = KL_ESTIMATORS[estimator](logprob_BT.detach(), chosen(REFERENCE))
    kl_B1 = (WRITTEN_BT * kl_BT).sum(dim=1, keepdim=True)
    return (probability(START) * kl_B1 * logprob_BT.sum(dim=1, keepdim=True)).sum()


def worth_on_average(logits: Tensor, config: LossConfig) -> Tensor:
    """Return minus the expected loss of a surrogate, with a whole completion's weights."""
    logprob_BT, old_BT = chosen(logits.log_softmax(-1)), chosen(START)
    log_ratio_BT = LEVELS[config.level](logprob_BT, old_BT, WRITTEN_BT)
    loss_BT = SURROGATES[config.name](log_ratio_BT, logprob_BT, WORTH_B1, config)
    # Weights of rows depend on how many there are; each is its share of one row.
    weights = [AGGREGATIONS[config.aggregation]([length], LONGEST)[0] for length in LENGTHS]
    weight_B1 = torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
    return -(probability(START) * WRITTEN_BT * weight_B1 * loss_BT).sum()


KL_ROWS = [*itertools.product(KL_ESTIMATORS, (False, True)), (FULL, False)]
Errors = dict[str, float]


def kl_errors(estimator: str, importance: bool, when: str) -> Errors:
    """Return the relative errors of value and gradient."""
    logits = PRESENT[when]
    found = kl_on_average(logits, estimator, importance=importance)
    exact = kl_of_tokens(logits, START)
    slope, whole = gradient(found, logits), gradient(kl_of_completions(logits), logits)
    return {
        "value": error(found.detach(), exact.detach()),
        "gradient": error(slope, gradient(exact, logits)),
        "of completions": error(slope, whole),
    }


# Which are right on average. Everything else has to be wrong, so that this list says all of it.
ON_POLICY = {
    "value": {("k1", False), ("k1", True), ("k3", False), ("k3", True), ("k3_st", False), ("k3_st", True), (FULL, False)},
    "gradient": {("k1", True), ("k2", False), ("k2", True), ("k3", True), ("k3_st", False), ("k3_st", True), (FULL, False)},
}  # fmt: skip
AFTER_IT_MOVED = {
    "value": {("k1", True), ("k3", True), ("k3_st", True), (FULL, False)},
    "gradient": {("k1", True), ("k2", True), ("k3", True), ("k3_st", True), (FULL, False)},
}


@pytest.mark.parametrize(("estimator", "importance"), KL_ROWS)
@pytest.mark.parametrize("when", PRESENT)
def test_a_kl_has_the_value_and_the_gradient_that_its_docstring_promises(
    when, estimator, importance
):
    """No KL in the loss knows how a token changes what comes later."""
    right = ON_POLICY if when == "on-policy" else AFTER_IT_MOVED
    found = kl_errors(estimator, importance, when)
    for quantity, rows in right.items():
        if (estimator, importance) in rows:
            assert found[quantity] < 1e-12
        else:
            assert found[quantity] > 0.04
    assert when == "moved" or found["of completions"] > 0.05


@pytest.mark.parametrize("when", PRESENT)
def test_without_importance_k1_in_the_loss_has_no_gradient_or_not_the_kls(when):
    logits = PRESENT[when]
    found = gradient(kl_on_average(logits, "k1", importance=False), logits)
    assert (float(found.norm()) < 1e-14) == (when == "on-policy")
    assert kl_errors("k1", False, when)["gradient"] > 0.9


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_a_k1_in_the_reward_has_the_gradient_of_the_kl_of_completions(estimator):
    logits = PRESENT["on-policy"]
    found = gradient(kl_in_the_reward_on_average(logits, estimator), logits)
    exact = gradient(kl_of_completions(logits), logits)
    assert (error(found, exact) < 1e-12) == (estimator == "k1")


def _settings(**sections: object) -> RunConfig:
    return build_config([{"environment": "letters", **sections}])


@pytest.mark.parametrize("trainer", [{}, {"mu": 2}, {"minibatches": 2}])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3_st", FULL])
def test_what_importance_is_when_unset_has_the_gradient_of_the_kl(estimator, trainer):
    config = _settings(kl={"estimator": estimator}, trainer=trainer)
    for when in ["moved"] if trainer else ["on-policy"]:
        assert kl_errors(estimator, config.kl_importance, when)["gradient"] < 1e-12


def test_the_default_of_one_step_a_batch_computes_no_importance_and_papers_k3_never_does():
    assert not _settings().kl_importance
    assert _settings(trainer={"mu": 2}).kl_importance
    assert not _settings(trainer={"mu": 2}, kl={"importance": False}).kl_importance
    assert not _settings(trainer={"mu": 2}, kl={"estimator": "k3"}).kl_importance
    assert _settings(kl={"estimator": "k3", "importance": True}).kl_importance


def test_a_kl_in_the_reward_that_is_not_k1_is_refused():
    def settings(estimator: str) -> RunConfig:
        kl = {"placement": "reward", "estimator": estimator}
        return _settings(kl=kl, advantage={"name": "rloo"})

    assert settings("k1")
    for estimator in {*KL_ESTIMATORS, FULL} - {"k1"}:
        with pytest.raises(ConfigError, match=r"set kl\.estimator=k1, or kl\.placement=loss"):
            settings(estimator)


# --- surrogates: which (level, aggregation) have the gradient of the expected reward

SURROGATE_ROWS = list(itertools.product(SURROGATES, LEVELS, ("sequence_sum", "sequence_mean")))
OPEN = {"clip_low": 1.0, "clip_high": 1e9}
"""Bounds that clip nothing."""


def surrogate_error(name: str, level: str, aggregation: str, when: str) -> float:
    logits = PRESENT[when]
    settings = {"name": name, "level": level, "aggregation": aggregation, **OPEN}
    found = worth_on_average(logits, LossConfig(**settings))  # type: ignore[arg-type]
    return error(gradient(found, logits), gradient(mean_worth(logits), logits))


def is_right(name: str, level: str, aggregation: str, when: str) -> bool:
    """Return what the docstrings of `loss.level` and of the levels say."""
    if when == "on-policy":
        if name in ("reinforce", "cispo") or level == "token":
            return aggregation == "sequence_sum"
        right = {("sequence", "sequence_mean"), ("sequence_mean", "sequence_sum")}
        return (level, aggregation) in right
    right = {("clip", "sequence_mean"), ("cispo", "sequence_sum")}
    return level == "sequence" and (name, aggregation) in right


@pytest.mark.parametrize(("name", "level", "aggregation"), SURROGATE_ROWS)
@pytest.mark.parametrize("when", PRESENT)
def test_a_surrogate_has_the_gradient_of_the_expected_reward_where_it_says_so(
    when, name, level, aggregation
):
    found = surrogate_error(name, level, aggregation, when)
    if is_right(name, level, aggregation, when):
        assert found < 1e-12
    else:
        assert found > 0.05


# --- estimators, over all groups of completions of at most two tokens

SHORT = sorted({text[:2] for text in COMPLETIONS})
SHORT_PLACE = [[PREFIXES.index(text[:t]) for t in range(len(text))] for text in SHORT]


def _groups(size: int, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the members (P, G) of all groups, their probability (P, 1), and log-probs (N,)."""
    logprob = logits.log_softmax(-1)
    logprob_N = torch.stack(
        [logprob[place, list(text)].sum() for place, text in zip(SHORT_PLACE, SHORT, strict=True)]
    )
    member_PG = torch.tensor(list(itertools.product(range(len(SHORT)), repeat=size)))
    return member_PG, logprob_N[member_PG].sum(dim=1, keepdim=True).exp(), logprob_N


def estimator_error(name: str, size: int, k: int | None, count: int, share: float) -> float:
    """Return the error against the gradient of the mean best of `count`, times `share`."""
    logits = PRESENT["on-policy"]
    member_PG, weight_P1, logprob_N = _groups(size, logits)
    reward_PG = WORTH_B1[: len(SHORT), 0][member_PG]
    config = AdvantageConfig(name=name, k=k)
    advantage_PG = advantages(Rewards.of(reward_PG), config)
    found = (weight_P1.detach() * advantage_PG * logprob_N[member_PG]).sum() / size
    best_PG, best_P1, _ = _groups(count, logits)
    best = (best_P1 * WORTH_B1[: len(SHORT), 0][best_PG].amax(dim=1, keepdim=True)).sum()
    return error(gradient(found, logits), share * gradient(best, logits))


ESTIMATOR_ROWS: dict[str, tuple[str, int, int | None, int, float]] = {
    "rloo, of the mean reward": ("rloo", 3, None, 1, 1.0),
    "mean_only, of (G - 1) / G times the mean reward": ("mean_only", 3, None, 1, 2 / 3),
    "pkpo, of the mean best of 2": ("pkpo", 3, 2, 2, 1.0),
}


@pytest.mark.parametrize("row", ESTIMATOR_ROWS)
def test_an_estimator_without_a_spread_has_the_gradient_that_it_says(row):
    assert estimator_error(*ESTIMATOR_ROWS[row]) < 1e-12


def main() -> None:
    """Print the relative errors of every expectation."""
    print("KL in the loss: relative error of value and gradient, against the KL of the tokens'")
    print("distributions where the sampler was, and of the gradient against that of completions")
    names = ("value", "gradient", "of completions")
    print(f"{'estimator':11}{'importance':12}{'when':11}" + "".join(f"{n:>16}" for n in names))
    for (estimator, importance), when in itertools.product(KL_ROWS, PRESENT):
        found = kl_errors(estimator, importance, when)
        errors = "".join(f"{found[name]:16.3f}" for name in names)
        print(f"{estimator:11}{importance!s:12}{when:11}{errors}")
    print("\nKL in the reward (on-policy): the gradient against that of the KL of completions")
    logits = PRESENT["on-policy"]
    exact = gradient(kl_of_completions(logits), logits)
    for estimator in KL_ESTIMATORS:
        slope = gradient(kl_in_the_reward_on_average(logits, estimator), logits)
        print(f"{estimator:11}{error(slope, exact):9.3f}")
    print("\nSurrogates without a clip: the gradient against that of the expected reward")
    print(f"{'name':11}{'level':15}{'aggregation':15}" + "".join(f"{when:>11}" for when in PRESENT))
    for row in SURROGATE_ROWS:
        errors = "".join(f"{surrogate_error(*row, when):11.3f}" for when in PRESENT)
        print(f"{row[0]:11}{row[1]:15}{row[2]:15}{errors}")
    print("\nEstimators: the gradient against that ...")
    for name, row in ESTIMATOR_ROWS.items():
        print(f"{name:50}{estimator_error(*row):9.3f}")


if __name__ == "__main__":
    main()
