"""Choose how a policy's model is computed: the fastest of several ways that give its own log-probs.

No setting of a model states reliably which masks, padding and caches it can be given, so each way
is tried once, when the policy is made: in float32, on random tokens, with several prompts of
different lengths that share a start, with completions that diverge, and with windows narrowed so
that the texts exceed them. It has to equal the model's plain forward pass of each text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute.masks import Masking, maskings, narrow_windows
from grpo_core.engine.policy.ways import CheckedPolicy, ContinuedLines, DecodingWay, Text, Training
from grpo_core.protocol.errors import ConfigError

TOLERANCE = 1e-3
"""Most nats by which log-probs may differ in float32: well above the rounding of large models, far
below what a wrong mask, window or cap changes."""

LEAST_EXACT = 0.5
"""Most nats by which they may differ where quantised weights prevent float32. Below that the
tolerance is four times what the company of another row in the batch changes."""

WINDOW = 8
"""Tokens to which windows are narrowed for the check."""

START, LENGTHS, NEW, DIVERGE = 9, (12, 15, 20), 5, 2
"""Tokens of the texts: the common start of the prompts, the prompts, the completions, and what two
completions of the same prompt have in common."""

REFUSALS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    KeyError,
    AssertionError,
)
"""What models raise that take no such mask, padding or cache, or have no head."""


def choose_ways(policy: CheckedPolicy, *, shared_prefix: bool, logits_bytes: int) -> None:
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
        expected = _plain(policy, texts)
        if exact:
            _choose(_Check(policy, texts, expected, TOLERANCE), shared_prefix, logits_bytes)
            return
        try:
            tolerance = _noisy_tolerance(policy, texts)
            _choose(_Check(policy, texts, expected, tolerance), shared_prefix, logits_bytes)
        except ConfigError:  # the noise is larger for other shapes
            _choose(_Check(policy, texts, expected, LEAST_EXACT), shared_prefix, logits_bytes)


def _choose(check: _Check, shared_prefix: bool, logits_bytes: int) -> None:
    """Set the fastest ways that agree.

    Raises:
        ConfigError: no way agrees.
    """
    if shared_prefix:
        # The name of an attention implementation changes what some models do.
        check.policy.adopt_attention(True)
        if check.choose(shared_prefix=True, logits_bytes=logits_bytes, slow=False):
            return
        check.policy.adopt_attention(False)
    check.choose(shared_prefix=shared_prefix, logits_bytes=logits_bytes, slow=True)


class _Check:
    """Try ways against the log-probs (T, V) that plain forward passes give."""

    def __init__(
        self,
        policy: CheckedPolicy,
        texts: Sequence[Text],
        expected: Sequence[Tensor],
        tolerance: float,
    ) -> None:
        self.policy, self._texts, self._expected_TV = policy, texts, expected
        self._chosen_T = [
            torch.stack([row_V[token] for row_V, token in zip(rows, text.completion, strict=True)])
            for text, rows in zip(texts, expected, strict=True)
        ]
        self._tolerance = tolerance

    def choose(self, *, shared_prefix: bool, logits_bytes: int, slow: bool) -> bool:
        """Set the first ways that agree; return False if a slow one is needed and not allowed."""
        policy = self.policy
        trees: list[Masking | None] = []
        if shared_prefix:
            trees += [None] if policy.fills else maskings(policy.model)
        ways = [(Training.TREES, masking) for masking in trees]
        ways += [(Training.PADDED, None), (Training.ALONE, None)] if slow else []
        policy.logits_bytes = 0
        if not self._use_first(ways, self._training_error):
            if slow:
                raise _refusal(policy, "log-probs")
            return False
        if not (logits_bytes and self._use_first([logits_bytes], self._logits_error)):
            policy.logits_bytes = 0
        if policy.fills:
            return True
        trees_first = list(DecodingWay) if policy.masking is not None else list(DecodingWay)[1:]
        agrees = self._use_first(trees_first if slow else [DecodingWay.TREES], self._sampling_error)
        if slow and not agrees:
            raise _refusal(policy, "next tokens")
        return agrees

    def _training_error(self, way: tuple[Training, Masking | None]) -> float:
        self.policy.training, self.policy.masking = way
        return self._text_error()

    def _logits_error(self, size: int) -> float:
        self.policy.logits_bytes = size
        return self._text_error()

    def _text_error(self) -> float:
        """Return the largest error with all texts in one tree, and with a tree for each."""
        together = len(self._texts)
        return max(
            _largest_difference(self.policy.text_logprobs(self._texts, size), self._chosen_T)
            for size in ((1, together) if self.policy.masking is not None else (1,))
        )

    def _sampling_error(self, way: DecodingWay) -> float:
        self.policy.sampling = way
        return _largest_difference(_decoded(self.policy, self._texts), self._expected_TV)

    def _use_first(self, ways: Sequence[Any], error_of: Callable[[Any], float]) -> bool:
        """Set the first way whose error is within the tolerance; return False if none is."""
        for way in ways:
            try:
                if error_of(way) < self._tolerance:
                    return True
            except torch.OutOfMemoryError:
                raise
            except REFUSALS:
                continue
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


def _plain(policy: CheckedPolicy, texts: Sequence[Text]) -> list[Tensor]:
    """Return the log-probs (T, V) of each text by forward passes of its own."""
    try:
        return [policy.plain_logits(text).float().log_softmax(dim=-1) for text in texts]
    except torch.OutOfMemoryError:
        raise
    except REFUSALS as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise ConfigError(
            f"a model of type {policy.model.config.model_type!r} cannot compute a plain text of "
            f"{len(texts[0].prompt)} tokens: {reason}; use another model"
        ) from error


def _noisy_tolerance(policy: CheckedPolicy, texts: Sequence[Text]) -> float:
    """Return the tolerance where nothing can be computed in float32."""
    policy.training, policy.masking, policy.logits_bytes = Training.PADDED, None, 0
    pair = [texts[0], texts[-1]]  # of equal length, so nothing is padded
    alone = [policy.text_logprobs([text])[0] for text in pair]
    noise = _largest_difference(policy.text_logprobs(pair), alone)
    return min(max(TOLERANCE, 4 * noise), LEAST_EXACT)


def _decoded(policy: CheckedPolicy, texts: Sequence[Text]) -> list[Tensor]:
    """Return the log-probs (T, V) of each text as decoding computes them, token by token.

    Completions of a prompt share a line until they diverge, the shortest text ends early, and the
    longest ones join the others later where that is possible.
    """

    def length(i: int) -> int:
        return len(texts[i].prompt)

    order = sorted(range(len(texts)), key=length)
    if policy.sampling in (DecodingWay.TREES, DecodingWay.PADDED):
        groups = [(order[:-2], order[-2:])] if len(order) > 2 else [(order, [])]
    else:
        groups = [(list(group), []) for _, group in groupby(order, length)]
    logprobs: list[list[Tensor]] = [[] for _ in texts]
    for first, later in groups:
        _decode(policy, texts, first, later, logprobs)
    return [torch.stack(rows) for rows in logprobs]


def _decode(
    policy: CheckedPolicy,
    texts: Sequence[Text],
    active: list[int],
    later: list[int],
    logprobs: list[list[Tensor]],
) -> None:
    """Decode the texts with the indices `active`, and `later` ones, and add their log-probs."""

    def start(indices: Sequence[int]) -> tuple[ContinuedLines, list[int]]:
        prompts = list(dict.fromkeys(texts[i].prompt for i in indices))
        return policy.open_lines(prompts), [prompts.index(texts[i].prompt) for i in indices]

    lines, line = start(active)
    if later and not lines.joinable:
        active, later = [*active, *later], []
        lines, line = start(active)
    shortest = active[0]
    while True:
        for k, i in zip(line, active, strict=True):
            logprobs[i].append(lines.logits_KV[k].float().log_softmax(dim=-1))
        going = [
            (k, i)
            for k, i in zip(line, active, strict=True)
            if len(logprobs[i]) < (DIVERGE + 1 if i == shortest and len(active) > 1 else NEW)
        ]
        if not going:
            return
        active = [i for _, i in going]
        steps = [(k, texts[i].completion[len(logprobs[i]) - 1]) for k, i in going]
        branches = list(dict.fromkeys(steps))
        lines.extend(policy.model, [k for k, _ in branches], [token for _, token in branches])
        line = [branches.index(step) for step in steps]
        if len(logprobs[active[0]]) == 1:
            policy.open_lines([texts[-2].prompt])  # a state inside the model would be overwritten
        if later and len(logprobs[active[0]]) == 2:
            more, more_line = start(later)
            line += [len(lines.logits_KV) + k for k in more_line]
            lines.join(more)
            active, later = [*active, *later], []


def _largest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the largest difference of log-probs; those that only `second` has do not count."""
    return max(
        float((a - b[: len(a)]).abs().nan_to_num(nan=torch.inf).max())
        for a, b in zip(first, second, strict=True)
    )


def _refusal(policy: CheckedPolicy, subject: str) -> ConfigError:
    return ConfigError(
        f"the {subject} of a model of type {policy.model.config.model_type!r} differ from its own "
        "plain forward pass in every way in which they can be computed here; use another model"
    )
