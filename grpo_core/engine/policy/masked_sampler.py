"""Sample fills for gaps: one forward pass per prompt.

All completions of a prompt draw from the same distributions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch

from grpo_core.engine.policy.batch import RequestBatch
from grpo_core.engine.policy.decoding import Drawn
from grpo_core.engine.policy.drawing import draw
from grpo_core.engine.policy.engine import Engine
from grpo_core.engine.policy.masked import MaskedPolicy
from grpo_core.protocol.sampler import Request

MAX_DRAWS = 1024
"""Most tokens that are drawn together: each needs the cumulative sums of a whole vocabulary."""

Places = dict[tuple[int, ...], list[int]]
"""Maps each prompt to the indices of its requests."""


class Filler(Engine):
    """Sample from a `MaskedPolicy`, in this process.

    The prefix of a request is its prompt; the first of its uniform numbers draw the gaps, in order.
    """

    policy: MaskedPolicy
    follows_schemas: ClassVar[bool] = False

    def _compute(self, batch: RequestBatch) -> None:
        """Report a completion of each request; stop early if all are dropped."""
        with self._ready():
            for places_by_prompt in self._passes(batch.requests):
                if batch.needs_nothing:
                    break
                for place, drawn in self._fill(batch, places_by_prompt).items():
                    batch.end(place, drawn.completion())

    def _passes(self, requests: Sequence[Request]) -> Iterator[Places]:
        """Yield the requests of each forward pass.

        A pass has at most `max_rows` prompts and `MAX_DRAWS` draws, unless a single prompt has
        more.
        """
        places_by_prompt: Places = {}
        for place, request in enumerate(requests):
            places_by_prompt.setdefault(request.prefix, []).append(place)
        chosen: Places = {}
        draws = 0
        # Sorted by length, so that prompts in a batch need little padding.
        for prompt in sorted(places_by_prompt, key=len):
            new_draws = len(self.policy.slots(prompt)) * len(places_by_prompt[prompt])
            if chosen and (len(chosen) >= self._max_rows or draws + new_draws > MAX_DRAWS):
                yield chosen
                chosen, draws = {}, 0
            chosen[prompt] = places_by_prompt[prompt]
            draws += new_draws
        if chosen:
            yield chosen

    def _fill(self, batch: RequestBatch, places_by_prompt: Places) -> dict[int, Drawn]:
        """Draw all gaps of the requests of a pass; return what was drawn, by request."""
        policy, start = self.policy, 0
        lines: list[int] = []
        numbers: list[float] = []
        owners: list[int] = []
        for prompt, places in places_by_prompt.items():
            count = len(policy.slots(prompt))
            for place in places:
                lines += range(start, start + count)
                numbers += batch.requests[place].uniforms[:count]
                owners += [place] * count
            start += count
        uniform_B = torch.tensor(
            numbers,
            dtype=torch.float32 if policy.device.type == "mps" else torch.float64,
            device=policy.device,
        )
        columns = draw(
            policy.gaps(policy.model, list(places_by_prompt)),
            torch.tensor(lines, device=policy.device),
            uniform_B,
            batch.params,
        )
        drawn_by_place = {
            place: Drawn(finish="stop") for places in places_by_prompt.values() for place in places
        }
        for place, *values in zip(owners, *(column.tolist() for column in columns), strict=True):
            drawn_by_place[place].add(*values)
        return drawn_by_place
