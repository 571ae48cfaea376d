"""Choose how a policy's model is computed: the fastest of several ways that give its own log-probs.

No setting of a model states reliably which masks, padding and caches it can be given, so each way
is tried once, when the policy is made: in float32, on random tokens, with several prompts of
different lengths that share a start, with completions that diverge, and with windows narrowed so
that the texts exceed them. It has to equal the model's plain forward pass of each text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_core.protocol.errors import ConfigError
from grpo_core.train.compute.masks import Masking, maskings, narrow_windows

TOLERANCE = 1e-3
"""Most nats by which log-probs may differ in float32: well above the rounding of large models, far
below what a wrong mask, window or cap changes."""

LEAST_EXACT = 0.5
"""Most nats by which they may differ where quantised weights prevent float32. Below that the
tolerance is four times what the company of another row in the batch changes."""

WINDOW = 8
"""Tokens to which windows are narrowed for the check."""

START, LENGTHS, NEW, DIVERGE = 10, (19, 24, 32), 6, 3
"""Tokens of the texts: the common start of the prompts, the prompts, the completions, and what two
completions of the same prompt have in common."""

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError)
"""What models raise that take no such mask, padding or cache, or have no head."""


class Training(Enum):
    """How log-probs are computed for the update, the fastest way first."""

    TREES = "shared tokens are computed once"
    PADDED = "each completion is computed with its own copy of the prompt"
    ALONE = "each completion is computed by itself"


class Sampling(Enum):
    """How completions are decoded, the fastest way first."""

    TREES = "shared tokens are computed once"
    PADDED = "each completion is decoded with its own copy of the prompt"
    EQUAL = "only prompts of equal length are decoded together"
    UNCACHED = "only prompts of equal length are decoded together, without a cache"


@dataclass(frozen=True, slots=True)
class Text:
    """Hold a prompt and a completion for the check."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


class Lines(Protocol):
    """Continue sequences (see `prefix.Lines` and `rows.Rows`)."""

    logits_KV: Tensor
    joinable: bool

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences by new ones."""


class Checked(Protocol):
    """What the check needs of a policy, and the ways that it sets."""

    model: Any
    training: Training
    sampling: Sampling
    masking: Masking | None
    logits_bytes: int

    @property
    def fills(self) -> bool:
        """Whether the policy fills gaps."""

    def exactly(self) -> AbstractContextManager[bool]:
        """Compute in float32, if possible; enter with whether it is."""

    def check_texts(self) -> list[Text]:
        """Return the texts to compare."""

    def plain_logits(self, text: Text) -> Tensor:
        """Return the logits (T, V) of the completion by a forward pass of this text alone."""

    def text_logprobs(self, texts: Sequence[Text]) -> list[Tensor]:
        """Return the log-probs (T,) of each completion, computed in the present way."""

    def open_lines(self, prompts: Sequence[tuple[int, ...]]) -> Lines:
        """Return a line for each prompt, to be decoded in the present way."""


def choose_ways(policy: Checked, *, shared_prefix: bool, logits_bytes: int) -> None:
    """Set the ways in which a policy is computed.

    Args:
        policy: the policy.
        shared_prefix: whether shared tokens may be computed once.
        logits_bytes: most bytes for logits at a time, if the model allows to compute them so.

    Raises:
        ConfigError: the model cannot compute a text, or no way gives its own log-probs.
    """
    with torch.no_grad(), policy.exactly() as exact, narrow_windows(policy.model, WINDOW):
        texts = policy.check_texts()
        plain = _plain(policy, texts)
        tolerance = TOLERANCE if exact else _noisy_tolerance(policy, texts)
        trees: list[Masking | None] = []
        if shared_prefix:
            trees += [None] if policy.fills else maskings(policy.model)
        ways = [(Training.TREES, masking) for masking in trees]
        ways += [(Training.PADDED, None), (Training.ALONE, None)]

        def training_error(way: tuple[Training, Masking | None]) -> float:
            policy.training, policy.masking = way
            chosen = [
                logprob_TV.gather(
                    1, torch.tensor(text.completion, device=logprob_TV.device)[:, None]
                )[:, 0]
                for text, logprob_TV in zip(texts, plain, strict=True)
            ]
            return _largest_difference(policy.text_logprobs(texts), chosen)

        def logits_error(size: int) -> float:
            policy.logits_bytes = size
            return training_error((policy.training, policy.masking))

        def sampling_error(way: Sampling) -> float:
            policy.sampling = way
            return _largest_difference(_decoded(policy, texts), plain)

        policy.logits_bytes = 0
        if not _use_first(ways, training_error, tolerance):
            raise _refusal(policy, "log-probs")
        if not (logits_bytes and _use_first([logits_bytes], logits_error, tolerance)):
            policy.logits_bytes = 0
        decodings = list(Sampling) if policy.masking is not None else list(Sampling)[1:]
        if not policy.fills and not _use_first(decodings, sampling_error, tolerance):
            raise _refusal(policy, "next tokens")


def random_texts(vocabulary: int, context: int | None, avoid: Iterable[int]) -> list[Text]:
    """Return the texts of the check: random tokens, distinct within a part of a text if possible.

    Args:
        vocabulary: number of tokens.
        context: most tokens of a text; None if unknown.
        avoid: tokens that a model may treat in a special way.
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
    sibling = (*texts[0].completion[:DIVERGE], *draw(NEW - DIVERGE))
    return [*texts, Text(texts[0].prompt, sibling)]


def _plain(policy: Checked, texts: Sequence[Text]) -> list[Tensor]:
    """Return the log-probs (T, V) of each text by forward passes of its own."""
    try:
        return [policy.plain_logits(text).float().log_softmax(dim=-1) for text in texts]
    except REFUSALS as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise ConfigError(
            f"a model of type {policy.model.config.model_type!r} cannot compute a plain text of "
            f"{len(texts[0].prompt)} tokens: {reason}; use another model"
        ) from error


def _noisy_tolerance(policy: Checked, texts: Sequence[Text]) -> float:
    """Return the tolerance where nothing can be computed in float32."""
    policy.training, policy.masking, policy.logits_bytes = Training.PADDED, None, 0
    pair = [texts[0], texts[-1]]  # of equal length, so nothing is padded
    alone = [policy.text_logprobs([text])[0] for text in pair]
    noise = _largest_difference(policy.text_logprobs(pair), alone)
    return min(max(TOLERANCE, 4 * noise), LEAST_EXACT)


def _decoded(policy: Checked, texts: Sequence[Text]) -> list[Tensor]:
    """Return the log-probs (T, V) of each text as decoding computes them, token by token.

    Completions of a prompt share a line until they diverge, and the last text ends early.
    """
    logprobs: list[list[Tensor]] = [[] for _ in texts]
    together = policy.sampling in (Sampling.TREES, Sampling.PADDED)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt))
    groups = (
        [order]
        if together
        else [list(g) for _, g in groupby(order, lambda i: len(texts[i].prompt))]
    )
    for active in groups:
        prompts = list(dict.fromkeys(texts[i].prompt for i in active))
        lines, line = policy.open_lines(prompts), [prompts.index(texts[i].prompt) for i in active]
        for t in range(NEW):
            for k, i in zip(line, active, strict=True):
                logprobs[i].append(lines.logits_KV[k].float().log_softmax(dim=-1))
            if t + 1 == NEW:
                break
            if t + 1 == DIVERGE and len(active) > 2:
                active, line = active[1:], line[1:]
            steps = [(k, texts[i].completion[t]) for k, i in zip(line, active, strict=True)]
            branches = list(dict.fromkeys(steps))
            lines.extend(policy.model, [k for k, _ in branches], [token for _, token in branches])
            line = [branches.index(step) for step in steps]
    return [torch.stack(rows) for rows in logprobs]


def _largest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the largest difference of log-probs; those that only `second` has do not count."""
    return max(
        float((a - b[: len(a)]).abs().nan_to_num(nan=torch.inf).max())
        for a, b in zip(first, second, strict=True)
    )


def _use_first(ways: Sequence[Any], error_of: Callable[[Any], float], tolerance: float) -> bool:
    """Set the first way whose error is within the tolerance; return False if none is."""
    for way in ways:
        try:
            if error_of(way) < tolerance:
                return True
        except REFUSALS:
            continue
    return False


def _refusal(policy: Checked, subject: str) -> ConfigError:
    return ConfigError(
        f"the {subject} of a model of type {policy.model.config.model_type!r} differ from its own "
        "plain forward pass in every way in which they can be computed here; use another model"
    )
