"""A sampler that has a model of its own, in a thread of its own, as an engine on another device has."""

import tempfile
from pathlib import Path
from typing import ClassVar

import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file

from grpo_core.config.config import RunConfig
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Completion, Request, Weights


class Copying:
    """Draws with a copy of the policy that only `sync` changes."""

    uses_uniforms: ClassVar[bool] = True
    samples_during_updates: ClassVar[bool] = True

    def __init__(self, config: RunConfig) -> None:
        self.policy = load_policy(config, need_reference=False)
        self._engine = Engine(self.policy, config.sampling)
        self.open_requests = 0
        self.rests = 0

    async def generate(self, request: Request) -> Completion:
        self.open_requests += 1
        try:
            return await self._engine.generate(request)
        finally:
            self.open_requests -= 1

    async def sync(self, weights: Weights, version: int) -> None:
        assert self.open_requests == 0, "no request may be in progress"
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            await weights.save(Path(folder))
            saved = load_file(Path(folder) / "adapter_model.safetensors")
            set_peft_model_state_dict(self.policy.model, saved)
        await self._engine.sync(weights, version)

    async def rest(self) -> None:
        assert self.open_requests == 0, "no request may be in progress"
        self.rests += 1

    async def close(self) -> None:
        """Nothing is held."""
