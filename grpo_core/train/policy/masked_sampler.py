"""Sample fills for gaps: one forward pass per prompt.

All completions of a prompt draw from the same distributions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from threading import Event

import torch

from grpo_core.config.settings import SamplingConfig
from grpo_core.train.policy.masked import MaskedPolicy
from grpo_core.train.policy.sampler import Completion, Ended, Engine, Request, draw, not_finite

MAX_DRAWS = 1024
"""Most tokens that are drawn together: each needs the cumulative sums of a whole vocabulary."""

Batch = dict[tuple[int, ...], list[int]]
"""Maps each prompt to the indices of its requests."""


class Filler(Engine):
    """Sample from a `MaskedPolicy`, in this process.

    The prefix of a request is its prompt; the first of its uniform numbers draw the gaps, in order.
    """

    policy: MaskedPolicy

    def _generate(
        self, requests: Sequence[Request], config: SamplingConfig, ended: Ended, stopped: Event
    ) -> list[Completion]:
        """Return one completion per request, in order; stop early if `stopped` is set."""
        completions = [Completion(finish="stop") for _ in requests]
        for batch in self._batches(requests, config):
            if stopped.is_set():
                break
            self._fill(requests, batch, completions, config)
            for place in (place for places in batch.values() for place in places):
                ended(place, completions[place])
        return completions

    def _batches(self, requests: Sequence[Request], config: SamplingConfig) -> Iterator[Batch]:
        """Yield batches of requests that share a forward pass.

        A batch has at most `max_rows` prompts and `MAX_DRAWS` draws, unless a single prompt has
        more.
        """
        places_by_prompt: Batch = {}
        for place, request in enumerate(requests):
            places_by_prompt.setdefault(request.prefix, []).append(place)
        batch: Batch = {}
        draws = 0
        # Sorted by length, so that prompts in a batch need little padding.
        for prompt in sorted(places_by_prompt, key=len):
            new_draws = len(self.policy.slots(prompt)) * len(places_by_prompt[prompt])
            if batch and (len(batch) >= config.max_rows or draws + new_draws > MAX_DRAWS):
                yield batch
                batch, draws = {}, 0
            batch[prompt] = places_by_prompt[prompt]
            draws += new_draws
        if batch:
            yield batch

    def _fill(
        self,
        requests: Sequence[Request],
        batch: Batch,
        completions: Sequence[Completion],
        config: SamplingConfig,
    ) -> None:
        """Draw all gaps of a batch and add the tokens to the completions."""
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
