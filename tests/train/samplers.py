"""What samplers that only draw for a test share."""

from __future__ import annotations

from typing import ClassVar

from grpo_core.protocol.sampler import Weights


class Copyless:
    """A sampler without weights of its own."""

    uses_uniforms: ClassVar[bool] = True
    samples_during_updates: ClassVar[bool] = False

    async def sync(self, weights: Weights, version: int) -> None:
        """Nothing has to be taken over."""

    async def rest(self) -> None:
        """Nothing is kept on a device."""

    async def close(self) -> None:
        """Nothing is held."""
