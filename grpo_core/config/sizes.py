"""Choose the learning rate and the weight of the KL by a model's size, where nobody has set them.

A large model needs a smaller rate than a small one, and full fine-tuning needs a smaller one than
an adapter. The tables give a value up to a number of weights, each with its source:

* 3e-4 and beta 0.12 were measured in this project, on SmolLM2-135M with an adapter and answers of
  about 12 tokens.
* 5e-5 for 0.6 billion weights, and for 3 billion 1e-5 with an adapter and 1e-6 for all weights, are
  what TRL's guide "LoRA Without Regret" trains with; 2e-4 is its rate for supervised fine-tuning of
  an adapter, and that of the Alignment Handbook's recipe for 7 billion weights.
* 5e-6 is the rate of Unsloth's examples of GRPO.
* 1e-6 for all weights and beta 0.04 are those of DeepSeekMath (arXiv 2402.03300, section 4.2), for
  7 billion weights.
* 2e-5 is the Alignment Handbook's rate for supervised fine-tuning of all of 7 billion weights.
* An adapter needs about ten times the rate of full fine-tuning (Schulman et al., "LoRA Without
  Regret"); so a tenth, but at most 1e-5 and at least 1e-6, stands where no other source does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from grpo_core.config.config import RunConfig


@dataclass(frozen=True, slots=True)
class Default:
    """Hold the value for models with at most `weights` weights, and where it is from."""

    weights: float
    value: float
    source: str


_TENTH = "a tenth of an adapter's"
_MEASURED = "measured here with 135 million"

RATES: Mapping[tuple[str, bool], Sequence[Default]] = MappingProxyType(
    {
        ("grpo", True): (
            Default(0.2e9, 3e-4, _MEASURED),
            Default(1e9, 5e-5, "TRL's for 0.6 billion"),
            Default(4e9, 1e-5, "TRL's for 3 billion"),
            Default(math.inf, 5e-6, "Unsloth's"),
        ),
        ("grpo", False): (
            Default(0.2e9, 1e-5, "at most a tenth of an adapter's"),
            Default(1e9, 5e-6, _TENTH),
            Default(4e9, 1e-6, "TRL's for 3 billion"),
            Default(math.inf, 1e-6, "DeepSeekMath's for 7 billion"),
        ),
        ("sft", True): (
            Default(0.2e9, 3e-4, "as in GRPO with 135 million"),
            Default(math.inf, 2e-4, "TRL's for 3 billion"),
        ),
        ("sft", False): (Default(math.inf, 2e-5, "the Alignment Handbook's for 7 billion"),),
    }
)
"""Peak learning rates, by the method and whether an adapter is trained."""
BETAS: Sequence[Default] = (
    Default(0.2e9, 0.12, _MEASURED),
    Default(math.inf, 0.04, "DeepSeekMath's for 7 billion"),
)
"""Weights of the KL to the reference policy."""
OPTIONS: Mapping[str, str] = MappingProxyType({"optimizer.lr": "--lr", "kl.beta": "--beta"})
"""The settings that a model's size decides, and the options that set them."""
DEVICE_SIZES: Sequence[str] = (
    "sampling.max_rows",
    "sampling.kv_mb",
    "trainer.micro_batch_tokens",
    "trainer.logits_mb",
)
"""The sizes that the device decides, as `grpo_core.engine.compute.tuning` has them."""
DEVICE_SETTINGS: Sequence[str] = (
    *DEVICE_SIZES,
    "sampling.cuda_graphs",
)
"""All settings that the device decides."""


def with_defaults(config: RunConfig, weights: int) -> tuple[RunConfig, str]:
    """Return the config with a number for the rate and the KL's weight, and a line about it.

    `grpo sft` has no KL, so its kl.beta stays as it is.

    Args:
        config: the configuration of a run.
        weights: number of weights of its model, without an adapter.

    Returns:
        The complete config, and which defaults it took and why; "" if everything was set.
    """
    adapter = config.lora.enabled
    chosen: dict[str, Default] = {}
    if config.optimizer.lr is None:
        rate = chosen["optimizer.lr"] = _choose(RATES[config.method, adapter], weights)
        optimizer = config.optimizer.model_copy(update={"lr": rate.value})
        config = config.model_copy(update={"optimizer": optimizer})
    if config.kl.beta is None and config.method == "grpo":
        beta = chosen["kl.beta"] = _choose(BETAS, weights)
        kl = config.kl.model_copy(update={"beta": beta.value})
        config = config.model_copy(update={"kl": kl})
    return config, _describe(chosen, weights, adapter=adapter)


def _choose(table: Sequence[Default], weights: int) -> Default:
    return next(default for default in table if weights <= default.weights)


def _describe(chosen: Mapping[str, Default], weights: int, *, adapter: bool) -> str:
    """Return a line about the defaults that were taken; "" if there are none."""
    if not chosen:
        return ""
    values = " and ".join(
        f"{key}={_short(default.value)} ({default.source})" for key, default in chosen.items()
    )
    trained = "an adapter on" if adapter else "training all of"
    options = " and ".join(OPTIONS[key] for key in chosen)
    is_one = len(chosen) == 1
    return (
        f"{values}: the default{'' if is_one else 's'} for {trained} {_count(weights)} weights; "
        f"set {options} to change {'it' if is_one else 'them'}"
    )


def _count(weights: int) -> str:
    """Return a number of weights for people."""
    if weights < 1e6:
        return f"{weights:,}"
    return f"{weights / 1e6:.0f} million" if weights < 1e9 else f"{weights / 1e9:.1f} billion"


def _short(value: float) -> str:
    """Return a number as one writes it: 5e-5, not 5e-05."""
    return f"{value:g}".replace("e-0", "e-")
