"""The Sampler protocol and the built-in generation engine.

The engine computes what several completions have in common once, from the prompts' common start to the token where two completions
part, drops finished ones, and draws by inverse CDF with one fixed uniform number per token: what is drawn for a row does not depend on
which other rows are in the batch.
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
    """Continue `prefix` by at most len(uniforms) tokens; uniforms: (T,) in [0, 1), the number that draws each token."""

    prefix: tuple[int, ...]
    uniforms: Sequence[float]


@dataclass(slots=True)
class Completion:
    """token_ids: (T,) with the end token; logprobs: (T,) full distribution at the temperature; kept_mass: least probability kept by
    top-p, top-k and min-p in any draw (1.0 without them)."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = "length"
    kept_mass: float = 1.0


Ended = Callable[[int, Completion], None]


class Sampler(Protocol):
    """Continues token prefixes; never sees text, so earlier turns are never tokenised again."""

    async def sample(
        self, requests: Sequence[Request], config: SamplingConfig, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion per request, in order.

        ended: to be told of completions, by their place, as soon as they are there; a sampler that cannot need not.
        """
        ...


class Engine:
    """The built-in sampler: the policy's own model, in this process."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="grpo-decode"
        )  # the event loop goes on: verdicts, deadlines, Ctrl-C
        self._helpers = Helpers()

    async def sample(
        self, requests: Sequence[Request], config: SamplingConfig, *, ended: Ended | None = None
    ) -> list[Completion]:
        loop, stopped = asyncio.get_running_loop(), Event()

        def tell(place: int, completion: Completion) -> None:
            if ended is not None:
                loop.call_soon_threadsafe(ended, place, completion)

        self._helpers.hand_over()
        decoding = self._thread.submit(self._computed, requests, config, tell, stopped)
        try:
            return await asyncio.wrap_future(decoding)
        finally:  # where this was cancelled, the weights are as they were before anybody else looks at them
            stopped.set()
            wait([decoding])

    def _computed(
        self, requests: Sequence[Request], config: SamplingConfig, tell: Ended, stopped: Event
    ) -> list[Completion]:
        policy = self.policy
        device = (
            torch.cuda.device(policy.device) if policy.device.type == "cuda" else nullcontext()
        )  # each thread has its own
        try:
            with device, torch.inference_mode(), policy.autocast(), policy.merged():
                return self._completed(requests, config, tell, stopped)
        finally:
            self._helpers.hand_back()

    def _completed(
        self, requests: Sequence[Request], config: SamplingConfig, tell: Ended, stopped: Event
    ) -> list[Completion]:
        policy, rows = self.policy, min(len(requests), config.max_rows)
        pays = (
            config.prepack
            and rows >= FEW_ROWS
            and max((len(r.uniforms) for r in requests), default=0) >= FEW_TOKENS
        )
        with policy.prepacked(rows) if pays else nullcontext():
            return _Decoding(policy, requests, config, tell).run(stopped)


class _Decoding:
    """Requests under way: as many at a time as fit; when enough have ended, waiting ones take their places.

    Rows (requests) that have said the same so far share one line of the cache, until they part.
    """

    def __init__(
        self, policy: Policy, requests: Sequence[Request], config: SamplingConfig, tell: Ended
    ) -> None:
        self._policy, self._requests, self._config, self._tell = policy, requests, config, tell
        self._completions = [Completion() for _ in requests]
        self._waiting = deque(i for i, request in enumerate(requests) if len(request.uniforms) > 0)
        self._alive: list[int] = []  # requests under way
        self._line: list[int] = []  # the line of each
        self._lines: Lines | None = None
        self._uniform_BT = _table(requests, policy.device)
        self._fitting = config.kv_mb * 2**20 // bytes_per_token(policy.model)  # tokens

    def run(self, stopped: Event) -> list[Completion]:
        while (self._waiting or self._alive) and not stopped.is_set():
            self._admit()
            self._draw()
        return self._completions

    def _admit(self) -> None:
        """Let waiting requests in, once a quarter of the places is free: a forward pass for a few prompts costs much of one for many."""
        most = self._config.max_rows
        if not self._waiting:
            return
        if self._alive and (
            len(self._alive) > most * 3 / 4 or not (self._lines and self._lines.joinable)
        ):
            return
        longest = max((self._longest(i) for i in self._alive), default=0)
        new: list[int] = []
        while self._waiting and len(self._alive) + len(new) < most:
            longest = max(longest, self._longest(self._waiting[0]))
            if (self._alive or new) and (len(self._alive) + len(new) + 1) * longest > self._fitting:
                break
            new.append(self._waiting.popleft())
        if not new:
            return
        prompts = list(dict.fromkeys(self._requests[i].prefix for i in new))
        place = {prompt: k for k, prompt in enumerate(prompts)}
        lines, before = self._prefill(prompts), 0
        if self._lines is not None and self._alive:
            before = len(self._lines.logits_KV)
            self._lines.join(lines)
        else:
            self._lines = lines
        self._line += [before + place[self._requests[i].prefix] for i in new]
        self._alive += new

    def _draw(self) -> None:
        """The next token of each row, and the lines that go on."""
        policy, config, alive, line = self._policy, self._config, self._alive, self._line
        assert self._lines is not None
        said = [len(self._completions[i].token_ids) for i in alive]
        line_B = torch.tensor(line, device=policy.device)
        token_B, logprob_B, kept_B = draw(
            self._lines.logits_KV, line_B, self._uniform_BT[alive, said], config
        )
        tokens, facts = token_B.tolist(), torch.stack([logprob_B, kept_B]).tolist()
        for i, token, logprob, kept in zip(alive, tokens, *facts, strict=True):
            if math.isnan(logprob):
                raise not_finite()
            completion = self._completions[i]
            completion.token_ids.append(token)
            completion.logprobs.append(logprob)
            completion.kept_mass = min(completion.kept_mass, kept)
            if token in policy.end_ids or self._hits_stop(completion.token_ids):
                completion.finish = "stop"
        going = [
            b
            for b, i in enumerate(alive)
            if self._completions[i].finish != "stop"
            and said[b] + 1 < len(self._requests[i].uniforms)
        ]
        for b in sorted(set(range(len(alive))) - set(going)):
            self._tell(alive[b], self._completions[alive[b]])
        parted = list(dict.fromkeys((line[b], tokens[b]) for b in going))
        place = {parting: k for k, parting in enumerate(parted)}
        self._alive, self._line = (
            [alive[b] for b in going],
            [place[line[b], tokens[b]] for b in going],
        )
        if going:
            self._lines.extend(
                policy.model, [parent for parent, _ in parted], [token for _, token in parted]
            )

    def _longest(self, i: int) -> int:
        return len(self._requests[i].prefix) + len(self._requests[i].uniforms)

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> Lines:
        policy = self._policy
        dtype = policy.compute_dtype if policy.shared_prefix else None
        return Lines.prefill(
            policy.model, prompts, pad_id=policy.pad_id, dtype=dtype, device=policy.device
        )

    def _hits_stop(self, token_ids: list[int]) -> bool:
        """Whether the last token completed a stop string. A tail is enough: n bytes span at most n tokens that show."""
        stop = self._config.stop
        if not stop:
            return False
        tail = self._policy.decode(token_ids[-(max(len(s.encode()) for s in stop) + 1) :])
        return any(s in tail for s in stop)


def not_finite() -> RunStoppedError:
    return RunStoppedError(
        "the model's logits are not finite, so nothing can be drawn; lower optimizer.lr, or use --dtype float32"
    )


def _table(requests: Sequence[Request], device: torch.device) -> Tensor:
    """The uniforms of all requests (B, T), on the device once; MPS has no float64."""
    width = max((len(r.uniforms) for r in requests), default=0)
    rows = [[*r.uniforms, *[0.0] * (width - len(r.uniforms))] for r in requests]
    return torch.tensor(
        rows, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device
    )


def draw(
    logits_KV: Tensor, line_B: Tensor, uniform_B: Tensor, config: SamplingConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B,) of rows that draw from the distributions `line_B`, their log-probs (B,) under the full distribution at the temperature,
    and the probability mass (B,) that top-p, top-k and min-p left to draw from. Inverse CDF: the first token whose cumulative
    probability exceeds the uniform number."""
    logits_KV = tempered(logits_KV, config.temperature)
    narrowed = config.top_p < 1 or config.top_k > 0 or config.min_p > 0
    highest_K1 = logits_KV.amax(dim=-1, keepdim=True)
    share_KV = (logits_KV - highest_K1).exp_()  # probabilities, but for a factor
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
        # Strictly below the total, so that rounding can never choose a token of probability 0 at the end of the vocabulary.
        highest_B = torch.nextafter(total_K, torch.zeros_like(total_K))[line_B]
        threshold_B = torch.minimum(
            (uniform_B * total_K[line_B].to(uniform_B.dtype)).to(total_K.dtype), highest_B
        )
        token_B = torch.searchsorted(
            cumulative_KV[line_B], threshold_B.unsqueeze(-1), right=True
        ).squeeze(-1)
        token_B = token_B.clamp(
            max=logits_KV.shape[-1] - 1
        )  # logits that are NaN; the caller sees it in the log-prob
    return token_B, logits_KV[line_B, token_B] - norm_K[line_B], kept_K[line_B]


def narrow(probs_KV: Tensor, config: SamplingConfig) -> Tensor:
    """Probabilities with those outside top-k, top-p and min-p set to 0 (each judged on the full distribution; not renormalised)."""
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
