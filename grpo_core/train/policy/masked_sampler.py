"""Fills gaps: one forward pass for each prompt, whose attempts all draw from the same distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from threading import Event

import torch

from grpo_core.config.settings import SamplingConfig
from grpo_core.train.policy.masked import MaskedPolicy
from grpo_core.train.policy.sampler import Completion, Ended, Engine, Request, draw, not_finite

MAX_DRAWS = 1024
"""Tokens that are drawn together: each needs the sums of a whole vocabulary."""

Batch = dict[tuple[int, ...], list[int]]
"""Places of requests by their prompts."""


class Filler(Engine):
    """The built-in sampler of a `MaskedPolicy`. The prefix of a request is its prompt; the first of its numbers draw the gaps, in order."""

    policy: MaskedPolicy

    def _completed(
        self, requests: Sequence[Request], config: SamplingConfig, tell: Ended, stopped: Event
    ) -> list[Completion]:
        completions = [Completion(finish="stop") for _ in requests]
        for batch in self._batches(requests, config):
            if stopped.is_set():
                break
            self._fill(requests, batch, completions, config)
            for place in (place for places in batch.values() for place in places):
                tell(place, completions[place])
        return completions

    def _batches(self, requests: Sequence[Request], config: SamplingConfig) -> Iterator[Batch]:
        """With at most `max_rows` prompts and `MAX_DRAWS` draws each, unless one prompt has more."""
        every: Batch = {}
        for place, request in enumerate(requests):
            every.setdefault(request.prefix, []).append(place)
        batch: Batch = {}
        draws = 0
        for prompt in sorted(every, key=len):  # those that are padded to one another are alike
            more = len(self.policy.slots(prompt)) * len(every[prompt])
            if batch and (len(batch) >= config.max_rows or draws + more > MAX_DRAWS):
                yield batch
                batch, draws = {}, 0
            batch[prompt] = every[prompt]
            draws += more
        if batch:
            yield batch

    def _fill(
        self,
        requests: Sequence[Request],
        batch: Batch,
        completions: Sequence[Completion],
        config: SamplingConfig,
    ) -> None:
        policy, start = self.policy, 0
        lines: list[int] = []
        numbers: list[float] = []
        owners: list[int] = []
        for prompt, places in batch.items():
            count = len(policy.slots(prompt))
            for place in places:
                lines += range(start, start + count)
                numbers += requests[place].uniforms[:count]
                owners += [place] * count
            start += count
        line_B = torch.tensor(lines, device=policy.device)
        uniform_B = torch.tensor(
            numbers,
            dtype=torch.float32 if policy.device.type == "mps" else torch.float64,
            device=policy.device,
        )
        drawn = draw(policy.gaps(policy.model, list(batch)), line_B, uniform_B, config)
        for place, token, logprob, kept in zip(
            owners, *(values.tolist() for values in drawn), strict=True
        ):
            if math.isnan(logprob):
                raise not_finite()
            completion = completions[place]
            completion.token_ids.append(token)
            completion.logprobs.append(logprob)
            completion.kept_mass = min(completion.kept_mass, kept)
