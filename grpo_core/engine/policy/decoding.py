"""Decode many requests at a time with a causal model, computing shared tokens once.

What several completions have in common is computed once, from the common start of the prompts to
the token where two completions diverge, and finished completions are dropped. Each token is drawn
with a fixed uniform number, so what is drawn for a row does not depend on the other rows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.compute import prefix
from grpo_core.engine.compute.recorded import FEWEST_TOKENS, RecordedLines
from grpo_core.engine.compute.upload import upload
from grpo_core.engine.policy.batch import RequestBatch
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.drawing import draw, draw_allowed, plain_logprobs
from grpo_core.engine.policy.ways import ContinuedLines, DecodingWay
from grpo_core.engine.policy.wishes import Wishes
from grpo_core.protocol.errors import GrpoError, RunStoppedError
from grpo_core.protocol.sampler import (
    Alternatives,
    Completion,
    Request,
    UnsupportedSchemaError,
)
from grpo_core.protocol.types import Finish


@dataclass(slots=True)
class Drawn:
    """Collect the tokens that are drawn for a request (see `Completion`)."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = "length"
    kept_mass: float = 1.0
    alternatives: list[Alternatives] = field(default_factory=list)

    def add(self, token: int, logprob: float, kept_mass: float) -> None:
        """Add a token.

        Raises:
            RunStoppedError: the log-prob is NaN, as where the logits are not finite.
        """
        if math.isnan(logprob):
            raise RunStoppedError(
                "the model's logits are not finite, so no token can be drawn; lower optimizer.lr, "
                "or use --dtype float32"
            )
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.kept_mass = min(self.kept_mass, kept_mass)

    def completion(self) -> Completion:
        """Return the tokens so far as a completion."""
        return Completion(
            tuple(self.token_ids),
            tuple(self.logprobs),
            self.finish,
            self.kept_mass,
            alternatives=tuple(self.alternatives),
        )


class Decoding:
    """Decode requests: as many at a time as fit.

    When enough have ended, waiting requests take their places. Rows (requests) whose tokens are
    equal so far share one line of the cache, until they diverge.
    """

    def __init__(self, policy: Policy, limits: SamplingConfig, batch: RequestBatch) -> None:
        self._policy, self._batch = policy, batch
        self._params = batch.params
        self._requests = requests = batch.requests
        self._drawn = [Drawn() for _ in requests]
        self._constraints = batch.constraints
        self._wishes = Wishes(batch)
        waiting = [i for i, request in enumerate(requests) if self._begin(i, request)]
        self._equal = policy.sampling in (DecodingWay.EQUAL, DecodingWay.UNCACHED)
        self._waiting = deque(sorted(waiting, key=self._length) if self._equal else waiting)
        self._active: list[int] = []  # requests that are being decoded
        self._line: list[int] = []  # the line of each active request
        self._lines: ContinuedLines | None = None
        self._uniform_BT = _uniforms(requests, policy.device)
        tuning = policy.tuning
        self._max_rows = limits.max_rows or tuning.max_rows
        graphs = tuning.cuda_graphs if limits.cuda_graphs is None else limits.cuda_graphs
        longest = max((len(request.uniforms) for request in requests), default=0)
        self._records = graphs and longest >= FEWEST_TOKENS
        self._max_cached_tokens = (
            (limits.kv_mb or tuning.kv_mb) * 2**20 // max(1, policy.cached_bytes)
        )

    def run(self) -> None:
        """Decode until all requests have ended or are given up."""
        while self._waiting or self._active:
            self._admit()
            if self._active:
                self._draw()

    def _begin(self, i: int, request: Request) -> bool:
        """Return whether request `i` is to be decoded; otherwise it ends here."""
        if not len(request.uniforms):
            self._batch.end(i, Completion())
        return len(request.uniforms) > 0

    def _admit(self) -> None:
        """Admit waiting requests once a quarter of the places is free.

        A forward pass for a few prompts costs much of one for many.
        """
        policy, max_rows = self._policy, self._max_rows
        self._waiting = deque(i for i in self._waiting if i not in self._batch.dropped)
        if self._active and (
            not self._waiting
            or len(self._active) > max_rows * 3 / 4
            or not (self._lines and self._lines.joinable)
        ):
            return
        longest = max((self._longest(i) for i in self._active), default=0)
        new: list[int] = []
        while self._waiting and len(self._active) + len(new) < max_rows:
            if self._equal and new and self._length(self._waiting[0]) != self._length(new[0]):
                break
            longest = max(longest, self._longest(self._waiting[0]))
            if (self._active or new) and (
                len(self._active) + len(new) + 1
            ) * longest > self._max_cached_tokens:
                break
            new.append(self._waiting.popleft())
        if not new:
            return
        prompts = list(dict.fromkeys(self._requests[i].prefix for i in new))
        place = {prompt: k for k, prompt in enumerate(prompts)}
        lines: ContinuedLines = policy.open_lines(prompts)
        if self._records and isinstance(lines, prefix.PrefixLines):
            lines = RecordedLines(lines)
        before = 0
        if self._lines is not None and self._active:
            before = len(self._lines.logits_KV)
            self._lines.join(lines)
        else:
            self._lines = lines
        self._line += [before + place[self._requests[i].prefix] for i in new]
        self._active += new

    def _draw(self) -> None:
        """Draw the next token of each row, and extend the lines that continue."""
        policy, active, line = self._policy, self._active, self._line
        assert self._lines is not None
        lengths = [len(self._drawn[i].token_ids) for i in active]
        alternatives = self._wishes.alternatives(active, line, self._lines.logits_KV)
        tokens, *values = self._next_tokens(lengths)
        failed: dict[int, GrpoError] = {}
        for i, token, logprob, kept in zip(active, tokens, *values, strict=True):
            drawn = self._drawn[i]
            drawn.add(token, logprob, kept)
            if i in alternatives:
                drawn.alternatives.append(alternatives[i])
            if token in policy.end_ids or self._hits_stop(drawn.token_ids):
                drawn.finish = "stop"
            elif i in self._constraints:
                try:
                    self._constraints[i].add(token)
                except UnsupportedSchemaError as error:
                    failed[i] = error
        self._wishes.add(active, self._drawn)
        continuing = [
            b
            for b, i in enumerate(active)
            if self._drawn[i].finish != "stop"
            and i not in failed
            and i not in self._batch.dropped
            and lengths[b] + 1 < len(self._requests[i].uniforms)
        ]
        for b in sorted(set(range(len(active))) - set(continuing)):
            i = active[b]
            self._batch.end(i, failed[i] if i in failed else self._drawn[i].completion())
        branches = [(line[b], tokens[b]) for b in continuing]
        self._active, self._line = [active[b] for b in continuing], list(range(len(continuing)))
        if self._lines.merges_equal:
            rows, branches = branches, list(dict.fromkeys(branches))
            place = {branch: k for k, branch in enumerate(branches)}
            self._line = [place[row] for row in rows]
        if continuing:
            self._lines.extend(
                policy.model, [parent for parent, _ in branches], [token for _, token in branches]
            )

    def _next_tokens(self, lengths: Sequence[int]) -> tuple[list[int], list[float], list[float]]:
        """Draw the next token of each row.

        Args:
            lengths: number of tokens that each row has.

        Returns:
            The tokens, their log-probs, and the probability mass that was left to draw from.
        """
        assert self._lines is not None
        logits_KV, device = self._lines.logits_KV, self._policy.device
        line_B, active_B, length_B = upload([self._line, self._active, lengths], device)
        uniform_B = self._uniform_BT[active_B, length_B]
        token_B, logprob_B, kept_B = draw(logits_KV, line_B, uniform_B, self._params)
        special = self._constraints.keys() | self._wishes.shaped
        if places := [b for b, i in enumerate(self._active) if i in special]:
            # The other rows draw as if there were none of these.
            place_C, width = upload(places, device), logits_KV.shape[-1]
            rows, logits_CV = [self._active[b] for b in places], logits_KV[line_B[place_C]]
            anything = np.ones(width, dtype=np.bool_)
            allowed = [
                self._constraints[i].allowed(width) if i in self._constraints else anything
                for i in rows
            ]
            token_C, logprob_C, kept_C = draw_allowed(
                self._wishes.shape(rows, logits_CV),
                upload(np.stack(allowed), device),
                uniform_B[place_C],
                self._params,
            )
            if self._wishes.shaped:
                logprob_C = plain_logprobs(logits_CV, token_C, self._params)
            token_B[place_C], logprob_B[place_C], kept_B[place_C] = token_C, logprob_C, kept_C
        # All results in one tensor, since each read waits for the device. Token ids are exact in
        # float32, which holds integers up to 2^24.
        results_3B = torch.stack([token_B.to(logprob_B.dtype), logprob_B, kept_B])
        ids, logprobs, kept_masses = results_3B.tolist()
        return list(map(int, ids)), logprobs, kept_masses

    def _length(self, i: int) -> int:
        """Return the number of tokens that request `i` starts with."""
        return len(self._requests[i].prefix)

    def _longest(self, i: int) -> int:
        """Return the most tokens that request `i` can reach, its prefix included."""
        return len(self._requests[i].prefix) + len(self._requests[i].uniforms)

    def _hits_stop(self, token_ids: list[int]) -> bool:
        """Return True if the last token completed a stop string.

        A tail is enough: n bytes span at most n visible tokens.
        """
        stop = self._params.stop
        if not stop:
            return False
        tail = self._policy.decode(token_ids[-(max(len(s.encode()) for s in stop) + 1) :])
        return any(s in tail for s in stop)


def _uniforms(requests: Sequence[Request], device: torch.device) -> Tensor:
    """Return the uniforms of all requests (B, T) on the device; MPS has no float64."""
    width = max((len(r.uniforms) for r in requests), default=0)
    rows_BT = np.zeros((len(requests), width))
    for row_T, request in zip(rows_BT, requests, strict=True):
        row_T[: len(request.uniforms)] = request.uniforms
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.from_numpy(rows_BT).to(dtype).to(device)
