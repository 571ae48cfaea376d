"""Sample from a copy of the policy: the built-in engine with weights of its own.

It is for another process or another machine, where the trainer's policy is not: the sampler `ray`
runs one in each of its actors. It draws with the uniform numbers of a request, so its completions
are those of the built-in sampler.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from grpo_core.config.overrides import build_config
from grpo_core.engine.models.adapter_files import import_peft, load_adapter
from grpo_core.engine.models.device import pick_device
from grpo_core.engine.models.load import load_model, resolve
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Completion, ModelToSample, Request, Weights


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Limit the memory of a replica; what is unset is the default of its device."""

    max_rows: int | None = None
    """As `sampling.max_rows`: completions that are decoded at a time."""
    kv_mb: int | None = None
    """As `sampling.kv_mb`: MB of keys and values."""
    prepack: bool = True
    """As `sampling.prepack`: lay weights out anew for decoding."""


class Replica:
    """Draw completions with a copy of the policy's weights; implements `sampler.Sampler`.

    The copy is made at the first `sync`.

    Args:
        config: how much is decoded at a time.
        model: the model to copy.

    Raises:
        ConfigError: a setting is out of range.
    """

    Config = ReplicaConfig
    uses_uniforms: ClassVar[bool] = True
    samples_during_updates: ClassVar[bool] = True

    def __init__(self, config: ReplicaConfig, model: ModelToSample) -> None:
        limits = {"sampling": asdict(config)}
        self._limits = build_config([{"environment": "none", **limits}]).sampling
        self._model = model
        self._engine: Engine | None = None

    async def generate(self, request: Request) -> Completion:
        """Return a completion of the request (see `Sampler.generate`).

        Raises:
            RunStoppedError: the model's logits are not finite.
        """
        assert self._engine is not None, "sync comes first"
        return await self._engine.generate(request)

    async def sync(self, weights: Weights, version: int) -> None:
        """Copy the present weights (see `Sampler.sync`).

        Raises:
            UserError: the model cannot be loaded.
        """
        with tempfile.TemporaryDirectory(prefix="grpo-replica-") as name:
            folder = Path(name)
            await weights.save(folder)
            if self._engine is None:
                policy = _copy(self._model, folder, is_adapter=weights.is_adapter)
                self._engine = Engine(policy, self._limits)
            else:
                policy = self._engine.policy
                await policy.thread.run(
                    lambda: (
                        _load_adapter(policy.model, folder)
                        if weights.is_adapter
                        else _load_all(policy.model, _source(self._model, folder))
                    )
                )
        await self._engine.sync(weights, version)

    async def rest(self) -> None:
        """Do nothing: the device is this sampler's own."""

    async def close(self) -> None:
        """Free the copy."""
        self._engine = None


def _copy(model: ModelToSample, folder: Path, *, is_adapter: bool) -> Policy:
    """Return a policy with the weights in `folder`, stored in the types of the trainer's policy.

    Args:
        model: the base model.
        folder: holds the adapter, or the whole model.
        is_adapter: whether it is the adapter.
    """
    device = pick_device(model.device)
    compute_dtype: torch.dtype = getattr(torch, model.dtype)
    is_stored_so = is_adapter or compute_dtype == torch.float64
    source = _source(model, model.path if is_adapter else folder)
    weights: Any = load_model(
        source, dtype=compute_dtype if is_stored_so else torch.float32, device=device
    )
    if is_adapter:
        weights = load_adapter(weights, folder, source.name)
    policy = Policy(weights.eval(), load_tokenizer(source), compute_dtype=compute_dtype)
    policy.end_ids = tuple(model.end_ids)
    return policy


def _load_adapter(model: Any, folder: Path) -> None:
    """Replace the weights of the adapter by those in `folder`."""
    peft = import_peft()
    peft.set_peft_model_state_dict(
        model, peft.load_peft_weights(str(folder), device=str(model.device))
    )


def _load_all(model: Any, source: ModelSource) -> None:
    """Replace all weights by those of `source`."""
    dtype = next(model.parameters()).dtype
    saved = load_model(source, dtype=dtype, device=torch.device("cpu")).state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            weight.copy_(saved[name])


def _source(model: ModelToSample, folder: Path) -> ModelSource:
    """Return the folder as a place to load from, with what the user allows for `model`."""
    return resolve(str(folder), trust_remote_code=model.trust_remote_code, progress=False)
