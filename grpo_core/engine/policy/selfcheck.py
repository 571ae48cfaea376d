"""Choose how a policy's model is computed: the fastest of several ways that give its own log-probs.

No setting of a model states reliably which masks, padding and caches it can be given, so each way
is tried once, when the policy is made: in float32, on random tokens, with several prompts of
different lengths that share a start, with completions that diverge, and with windows narrowed so
that the texts exceed them. It has to equal the model's plain forward pass of each text alone.

Which of them passed is stored for the next run (see `passed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch

from grpo_core.engine.compute.masks import Masking, maskings, narrow_windows
from grpo_core.engine.compute.openmp import considerate_threads
from grpo_core.engine.policy.passed import Results
from grpo_core.engine.policy.way_trial import (
    DIVERGE,
    LEAST_EXACT,
    NEW,
    TOLERANCE,
    Trial,
    noisy_tolerance,
    plain_logprobs,
)
from grpo_core.engine.policy.ways import CheckedPolicy, DecodingWay, Text, Training
from grpo_core.protocol.errors import ConfigError

WINDOW = 8
"""Tokens to which windows are narrowed for the check."""

START, LENGTHS = 9, (12, 15, 20)
"""Tokens of the texts: the common start of the prompts, and the prompts."""


def choose_ways(
    policy: CheckedPolicy,
    *,
    shared_prefix: bool,
    logits_bytes: int,
    known: Mapping[str, bool] = MappingProxyType({}),
) -> Results:
    """Set the ways in which a policy is computed.

    Args:
        policy: the policy.
        shared_prefix: whether shared tokens may be computed once.
        logits_bytes: most bytes for logits at a time, if the model allows to compute them so.
        known: the results of an earlier check of the same model.

    Returns:
        The results of the check; {} if the known ones were enough.

    Raises:
        ConfigError: the model cannot compute a text, or no way gives its own log-probs.
    """
    try:
        _choose(_Check(policy, known.__getitem__), shared_prefix, logits_bytes)
        return {}
    except (KeyError, ConfigError):  # something is not known, or nothing has passed
        pass
    with (
        torch.no_grad(),
        policy.exactly() as exact,
        narrow_windows(policy.model, WINDOW),
        considerate_threads(policy.device),
    ):
        texts = policy.check_texts()
        expected = plain_logprobs(policy, texts)

        def try_with(tolerance: float) -> Results:
            trial = Trial(policy, texts, expected, tolerance)
            _choose(_Check(policy, trial.agrees), shared_prefix, logits_bytes)
            return trial.results

        if exact:
            return try_with(TOLERANCE)
        try:
            return try_with(noisy_tolerance(policy, texts))
        except ConfigError:  # the noise is larger for other shapes
            return try_with(LEAST_EXACT)


def _choose(check: _Check, shared_prefix: bool, logits_bytes: int) -> None:
    """Set the fastest ways that agree.

    Raises:
        ConfigError: no way agrees.
        KeyError: it is not known whether a way agrees.
    """
    if shared_prefix:
        # The name of an attention implementation changes what some models do.
        check.policy.adopt_attention(True)
        if check.choose(shared_prefix=True, logits_bytes=logits_bytes, slow=False):
            return
        check.policy.adopt_attention(False)
    check.choose(shared_prefix=shared_prefix, logits_bytes=logits_bytes, slow=True)


class _Check:
    """Set the fastest ways of a policy of which `agrees` says that they agree.

    Args:
        policy: the policy.
        agrees: returns whether the ways that are set agree, by their name.
    """

    def __init__(self, policy: CheckedPolicy, agrees: Callable[[str], bool]) -> None:
        self.policy, self._agrees = policy, agrees

    def choose(self, *, shared_prefix: bool, logits_bytes: int, slow: bool) -> bool:
        """Set the first ways that agree; return False if a slow one is needed and not allowed."""
        policy, speed = self.policy, "slow" if slow else "fast"
        trees: list[Masking | None] = []
        if shared_prefix:
            trees += [None] if policy.fills else maskings(policy.model)
        ways = [(Training.TREES, masking) for masking in trees]
        ways += [(Training.PADDED, None), (Training.ALONE, None)] if slow else []
        policy.logits_bytes = 0
        for number, way in enumerate(ways):
            policy.training, policy.masking = way
            if self._agrees(f"{speed} training {number}"):
                break
        else:
            if slow:
                raise _refusal(policy, "log-probs")
            return False
        policy.logits_bytes = logits_bytes
        if logits_bytes and not self._agrees(f"{speed} logits"):
            policy.logits_bytes = 0
        if policy.fills:
            return True
        trees_first = list(DecodingWay) if policy.masking is not None else list(DecodingWay)[1:]
        for sampling in trees_first if slow else [DecodingWay.TREES]:
            policy.sampling = sampling
            if self._agrees(f"{speed} sampling {sampling.name}"):
                return True
        if slow:
            raise _refusal(policy, "next tokens")
        return False


def random_texts(
    vocabulary: int, context: int | None, avoid: Iterable[int], padding: int
) -> list[Text]:
    """Return the texts of the check: random tokens, distinct within a part of a text if possible.

    Args:
        vocabulary: number of tokens.
        context: most tokens of a text; None if unknown.
        avoid: tokens that a model may treat in a special way.
        padding: the token used as padding; one completion contains it, since it can be drawn.
    """
    generator = torch.Generator().manual_seed(0)
    special = set(avoid)
    allowed = [token for token in range(vocabulary) if token not in special]
    room = max(1, min(context or 1000, LENGTHS[-1] + NEW) - NEW)

    def draw(count: int) -> tuple[int, ...]:
        order = torch.randperm(len(allowed), generator=generator).tolist()
        return tuple(allowed[i] for i in (order * (count // len(order) + 1))[:count])

    start = draw(START)
    prompts = [(*start, *draw(length - START))[:room] for length in LENGTHS]
    prompts.append(draw(START + 1)[:room])
    texts = [Text(prompt, draw(NEW)) for prompt in dict.fromkeys(prompts)]
    texts[-1] = Text(texts[-1].prompt, (padding, *texts[-1].completion[1:]))
    sibling = (*texts[0].completion[:DIVERGE], *draw(NEW - DIVERGE))
    return [*texts, Text(texts[0].prompt, sibling)]


def _refusal(policy: CheckedPolicy, subject: str) -> ConfigError:
    return ConfigError(
        f"the {subject} of a model of type {policy.model.config.model_type!r} differ from its own "
        "plain forward pass in every way in which they can be computed here; use another model"
    )
