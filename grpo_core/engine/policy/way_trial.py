"""Try a way to compute a model: compare its log-probs with those of plain forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from grpo_core.engine.policy.passed import Results
from grpo_core.engine.policy.ways import CheckedPolicy, ContinuedLines, DecodingWay, Text, Training
from grpo_core.protocol.errors import ConfigError

TOLERANCE = 1e-3
"""Most nats by which log-probs may differ in float32: well above the rounding of large models, far
below what a wrong mask, window or cap changes."""

LEAST_EXACT = 0.5
"""Most nats by which they may differ where quantised weights prevent float32. Below that the
tolerance is four times what the company of another row in the batch changes."""

NEW, DIVERGE = 5, 2
"""Tokens of a completion, and what two completions of the same prompt have in common."""

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


class Trial:
    """Compute in the way that is set, and compare with the log-probs (T, V) of plain passes.

    Args:
        policy: the policy.
        texts: what is computed.
        expected: the log-probs of plain forward passes.
        tolerance: most nats by which log-probs may differ.
    """

    def __init__(
        self,
        policy: CheckedPolicy,
        texts: Sequence[Text],
        expected: Sequence[Tensor],
        tolerance: float,
    ) -> None:
        self._policy, self._texts, self._expected_TV = policy, texts, expected
        self._chosen_T = [
            torch.stack([row_V[token] for row_V, token in zip(rows, text.completion, strict=True)])
            for text, rows in zip(texts, expected, strict=True)
        ]
        self._tolerance = tolerance
        self.results: Results = {}
        """Whether each way that was tried agrees, by its name."""

    def agrees(self, name: str) -> bool:
        """Return whether the way that is set agrees; one that the model refuses does not."""
        is_sampling = "sampling" in name
        try:
            error = self._sampling_error() if is_sampling else self._text_error()
        except torch.OutOfMemoryError:
            raise
        except REFUSALS as refusal:
            if "memory" not in str(refusal):  # there may be enough another time
                self.results[name] = False
            return False
        self.results[name] = error < self._tolerance
        return self.results[name]

    def _text_error(self) -> float:
        """Return the largest error with all texts in one tree, and with a tree for each."""
        together = len(self._texts)
        return max(
            _largest_difference(self._policy.text_logprobs(self._texts, size), self._chosen_T)
            for size in ((1, together) if self._policy.masking is not None else (1,))
        )

    def _sampling_error(self) -> float:
        return _largest_difference(_decoded(self._policy, self._texts), self._expected_TV)


def plain_logprobs(policy: CheckedPolicy, texts: Sequence[Text]) -> list[Tensor]:
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


def noisy_tolerance(policy: CheckedPolicy, texts: Sequence[Text]) -> float:
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
