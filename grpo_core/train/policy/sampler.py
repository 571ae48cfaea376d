"""Define the `Sampler` protocol and the built-in generation engine.

The engine computes what several completions have in common once, from the common start of the
prompts to the token where two completions diverge, and drops finished completions. It draws by
inverse CDF with one fixed uniform number per token, so what is drawn for a row does not depend on
the other rows of the batch.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

import torch
from torch import Tensor

from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.types import Finish
from grpo_core.train.compute.kv import bytes_per_token
from grpo_core.train.compute.logprob import tempered
from grpo_core.train.compute.openmp import Helpers
from grpo_core.train.compute.prefix import Lines
from grpo_core.train.compute.prepack import FEW_ROWS, FEW_TOKENS
from grpo_core.train.policy.causal import Policy


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for a completion of `prefix` of at most len(uniforms) tokens."""

    prefix: tuple[int, ...]
    """Tokens to continue."""
    uniforms: Sequence[float]
    """Numbers (T,) in [0, 1), one to draw each token."""


@dataclass(slots=True)
class Completion:
    """Hold the tokens that a sampler drew for a request."""

    token_ids: list[int] = field(default_factory=list)
    """Tokens (T,), with the end token."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probs (T,) under the full distribution at the temperature."""
    finish: Finish = "length"
    """Why the completion ended."""
    kept_mass: float = 1.0
    """Least probability mass that top-p, top-k and min-p kept in any draw; 1.0 without them."""


Ended = Callable[[int, Completion], None]
"""Callback that receives the index of a request and its finished completion."""


class Sampler(Protocol):
    """Continue token prefixes.

    A sampler never sees text, so earlier turns are never tokenised again.
    """

    async def sample(
        self, requests: Sequence[Request], config: SamplingConfig, *, ended: Ended | None = None
    ) -> list[Completion]:
        """Return one completion per request, in order.

        Args:
            requests: the prefixes to continue.
            config: sampling settings.
            ended: called with the index of a request and its completion as soon as that is
                finished; a sampler that cannot do so may ignore it.
        """
        ...


class Engine:
    """Sample from the policy's own model, in this process."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        # A thread keeps the event loop free for verdicts, timeouts and Ctrl-C.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpo-decode")
        self._openmp_helpers = Helpers()

    async def sample(
        self, requests: Sequence[Request], config: SamplingConfig, *, ended: Ended | None = None
    ) -> list[Completion]:
        """Return one completion per request, in order; compute in a thread of its own."""
        loop, stopped = asyncio.get_running_loop(), Event()

        def notify(place: int, completion: Completion) -> None:
            if ended is not None:
                loop.call_soon_threadsafe(ended, place, completion)

        self._openmp_helpers.hand_over()
        decoding = self._thread.submit(self._generate_in_thread, requests, config, notify, stopped)
        try:
            return await asyncio.wrap_future(decoding)
        finally:  # after a cancellation, too, the weights are restored before others use them
            stopped.set()
            wait([decoding])

    def _generate_in_thread(
        self, requests: Sequence[Request], config: SamplingConfig, ended: Ended, stopped: Event
    ) -> list[Completion]:
        """Generate with the weights, types and device set up; runs in the decoding thread."""
        policy = self.policy
        # CUDA has a current device per thread.
        device = torch.cuda.device(policy.device) if policy.device.type == "cuda" else nullcontext()
        try:
            with device, torch.inference_mode(), policy.autocast(), policy.merged():
                return self._generate(requests, config, ended, stopped)
        finally:
            self._openmp_helpers.hand_back()

    def _generate(
        self, requests: Sequence[Request], config: SamplingConfig, ended: Ended, stopped: Event
    ) -> list[Completion]:
        """Return one completion per request, in order; stop early if `stopped` is set."""
        policy, rows = self.policy, min(len(requests), config.max_rows)
        prepack = (
            config.prepack
            and rows >= FEW_ROWS
            and max((len(r.uniforms) for r in requests), default=0) >= FEW_TOKENS
        )
        with policy.prepacked(rows) if prepack else nullcontext():
            return _Decoding(policy, requests, config, ended).run(stopped)


class _Decoding:
    """Decode requests: as many at a time as fit.

    When enough have ended, waiting requests take their places. Rows (requests) whose tokens are
    equal so far share one line of the cache, until they diverge.
    """

    def __init__(
        self, policy: Policy, requests: Sequence[Request], config: SamplingConfig, ended: Ended
    ) -> None:
        self._policy, self._requests, self._config, self._ended = policy, requests, config, ended
        self._completions = [Completion() for _ in requests]
        self._waiting = deque(i for i, request in enumerate(requests) if len(request.uniforms) > 0)
        self._active: list[int] = []  # requests that are being decoded
        self._line: list[int] = []  # the line of each active request
        self._lines: Lines | None = None
        self._uniform_BT = _uniforms(requests, policy.device)
        self._max_cached_tokens = config.kv_mb * 2**20 // bytes_per_token(policy.model)

    def run(self, stopped: Event) -> list[Completion]:
        """Decode until all requests have ended or `stopped` is set; return the completions."""
        while (self._waiting or self._active) and not stopped.is_set():
            self._admit()
            self._draw()
        return self._completions

    def _admit(self) -> None:
        """Let waiting requests in once a quarter of the places is free.

        A forward pass for a few prompts costs much of one for many.
        """
        max_rows = self._config.max_rows
        if not self._waiting:
            return
        if self._active and (
            len(self._active) > max_rows * 3 / 4 or not (self._lines and self._lines.joinable)
        ):
            return
        longest = max((self._longest(i) for i in self._active), default=0)
        new: list[int] = []
        while self._waiting and len(self._active) + len(new) < max_rows:
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
        lines, before = self._prefill(prompts), 0
        if self._lines is not None and self._active:
            before = len(self._lines.logits_KV)
            self._lines.join(lines)
        else:
            self._lines = lines
        self._line += [before + place[self._requests[i].prefix] for i in new]
        self._active += new

    def _draw(self) -> None:
        """Draw the next token of each row, and extend the lines that continue."""
        policy, config, active, line = self._policy, self._config, self._active, self._line
        assert self._lines is not None
        lengths = [len(self._completions[i].token_ids) for i in active]
        line_B = torch.tensor(line, device=policy.device)
        token_B, logprob_B, kept_B = draw(
            self._lines.logits_KV, line_B, self._uniform_BT[active, lengths], config
        )
        tokens, values = token_B.tolist(), torch.stack([logprob_B, kept_B]).tolist()
        for i, token, logprob, kept in zip(active, tokens, *values, strict=True):
            if math.isnan(logprob):
                raise not_finite()
            completion = self._completions[i]
            completion.token_ids.append(token)
            completion.logprobs.append(logprob)
            completion.kept_mass = min(completion.kept_mass, kept)
            if token in policy.end_ids or self._hits_stop(completion.token_ids):
                completion.finish = "stop"
        continuing = [
            b
            for b, i in enumerate(active)
            if self._completions[i].finish != "stop"
            and lengths[b] + 1 < len(self._requests[i].uniforms)
        ]
        for b in sorted(set(range(len(active))) - set(continuing)):
            self._ended(active[b], self._completions[active[b]])
        branches = list(dict.fromkeys((line[b], tokens[b]) for b in continuing))
        place = {branch: k for k, branch in enumerate(branches)}
        self._active, self._line = (
            [active[b] for b in continuing],
            [place[line[b], tokens[b]] for b in continuing],
        )
        if continuing:
            self._lines.extend(
                policy.model, [parent for parent, _ in branches], [token for _, token in branches]
            )

    def _longest(self, i: int) -> int:
        """Return the most tokens that request `i` can reach, its prefix included."""
        return len(self._requests[i].prefix) + len(self._requests[i].uniforms)

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> Lines:
        """Compute the lines of new prompts."""
        policy = self._policy
        dtype = policy.compute_dtype if policy.shared_prefix else None
        return Lines.prefill(
            policy.model, prompts, pad_id=policy.pad_id, dtype=dtype, device=policy.device
        )

    def _hits_stop(self, token_ids: list[int]) -> bool:
        """Return True if the last token completed a stop string.

        A tail is enough: n bytes span at most n visible tokens.
        """
        stop = self._config.stop
        if not stop:
            return False
        tail = self._policy.decode(token_ids[-(max(len(s.encode()) for s in stop) + 1) :])
        return any(s in tail for s in stop)


def not_finite() -> RunStoppedError:
    """Return the error for logits that are not finite."""
    return RunStoppedError(
        "the model's logits are not finite, so no token can be drawn; lower optimizer.lr, or use "
        "--dtype float32"
    )


def _uniforms(requests: Sequence[Request], device: torch.device) -> Tensor:
    """Return the uniforms of all requests (B, T) on the device; MPS has no float64."""
    width = max((len(r.uniforms) for r in requests), default=0)
    rows = [[*r.uniforms, *[0.0] * (width - len(r.uniforms))] for r in requests]
    return torch.tensor(
        rows, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device
    )


def draw(
    logits_KV: Tensor, line_B: Tensor, uniform_B: Tensor, config: SamplingConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token for each row by inverse CDF.

    The token is the first whose cumulative probability exceeds the uniform number.

    Args:
        logits_KV: logits of K distributions.
        line_B: index of the distribution that each row draws from.
        uniform_B: uniform number in [0, 1) of each row.
        config: sampling settings.

    Returns:
        The tokens (B,), their log-probs (B,) under the full distribution at the temperature, and
        the probability mass (B,) that top-p, top-k and min-p left to draw from.
    """
    logits_KV = tempered(logits_KV, config.temperature)
    narrowed = config.top_p < 1 or config.top_k > 0 or config.min_p > 0
    highest_K1 = logits_KV.amax(dim=-1, keepdim=True)
    share_KV = (logits_KV - highest_K1).exp_()  # probabilities up to a factor
    kept_K = torch.ones_like(highest_K1[:, 0])
    if config.temperature == 0:
        norm_K = share_KV.sum(dim=-1).log() + highest_K1[:, 0]
        token_B = logits_KV.argmax(dim=-1)[line_B]
    else:
        if narrowed:
            whole_K = share_KV.sum(dim=-1)
            share_KV = narrow(share_KV.div_(whole_K.unsqueeze(-1)), config)
        cumulative_KV = share_KV.cumsum(dim=-1)
        total_K = cumulative_KV[:, -1]
        norm_K = (whole_K if narrowed else total_K).log() + highest_K1[:, 0]
        kept_K = total_K.clamp(max=1.0) if narrowed else kept_K
        # Strictly below the total, so that rounding can never choose a token of probability 0 at
        # the end of the vocabulary.
        highest_B = torch.nextafter(total_K, torch.zeros_like(total_K))[line_B]
        threshold_B = torch.minimum(
            (uniform_B * total_K[line_B].to(uniform_B.dtype)).to(total_K.dtype), highest_B
        )
        token_B = torch.searchsorted(
            cumulative_KV[line_B], threshold_B.unsqueeze(-1), right=True
        ).squeeze(-1)
        # The clamp is for logits that are NaN; the caller detects them by the log-prob.
        token_B = token_B.clamp(max=logits_KV.shape[-1] - 1)
    return token_B, logits_KV[line_B, token_B] - norm_K[line_B], kept_K[line_B]


def narrow(probs_KV: Tensor, config: SamplingConfig) -> Tensor:
    """Return probabilities with those outside top-k, top-p and min-p set to 0.

    Each limit is applied to the full distribution; the result is not renormalised.
    """
    keep_KV = torch.ones_like(probs_KV, dtype=torch.bool)
    if 0 < config.top_k < probs_KV.shape[-1]:
        keep_KV &= probs_KV >= probs_KV.topk(config.top_k, dim=-1).values[:, -1:]
    if config.min_p > 0:
        keep_KV &= probs_KV >= config.min_p * probs_KV.amax(dim=-1, keepdim=True)
    if config.top_p < 1:
        sorted_KV, order_KV = probs_KV.sort(dim=-1, descending=True)
        before_KV = sorted_KV.cumsum(dim=-1) - sorted_KV
        keep_KV &= torch.zeros_like(keep_KV).scatter(-1, order_KV, before_KV < config.top_p)
    return torch.where(keep_KV, probs_KV, 0.0)
