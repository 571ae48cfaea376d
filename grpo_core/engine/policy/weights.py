"""Give a policy's weights and its model's description to a sampler that keeps a copy of them."""

from __future__ import annotations

from pathlib import Path

from grpo_core.config.config import RunConfig
from grpo_core.engine.models.source import ModelSource, local_folder
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import ModelToSample


class PolicyWeights:
    """Save a policy's weights where a sampler reads them; implements `sampler.Weights`.

    Where the weights are spread over processes, all of them have to save at the same time.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def is_adapter(self) -> bool:
        """Return whether an adapter is trained."""
        return hasattr(self._policy.model, "peft_config")

    async def save(self, folder: Path) -> None:
        """Write the adapter or the whole model, with the tokenizer, into `folder`."""

        def write() -> None:
            self._policy.save(folder, self._policy.state())

        await self._policy.thread.run(write)


def model_to_sample(config: RunConfig, policy: Policy, source: ModelSource) -> ModelToSample:
    """Return the description of `policy`'s base model for the sampler of a plugin.

    Raises:
        ConfigError: only the built-in sampler can sample from this model.
    """
    problem = "fills gaps" if policy.fills else "is a GGUF file" if source.gguf_file else ""
    if problem:
        raise ConfigError(
            f"the model {config.model.name} {problem}, and the sampler {config.sampler.name!r} "
            "continues texts with a model in a folder; set sampler.name=builtin"
        )
    return ModelToSample(
        path=Path(local_folder(source)).absolute(),
        trust_remote_code=config.model.trust_remote_code,
        dtype=str(policy.compute_dtype).removeprefix("torch."),
        device=policy.device.type,
        context=policy.context,
        end_ids=frozenset(policy.end_ids),
        adapter_rank=_adapter_rank(policy),
        decode=policy.decode,
    )


def _adapter_rank(policy: Policy) -> int | None:
    """Return the largest rank in the trained adapter; None without one.

    A model may bring an adapter whose rank is not that of the settings.
    """
    if not hasattr(policy.model, "peft_config"):
        return None
    adapter = policy.model.peft_config["default"]
    ranks: list[int] = [adapter.r, *adapter.rank_pattern.values()]
    return max(ranks)
