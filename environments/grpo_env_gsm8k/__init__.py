"""Grade school word problems, answered in a <reasoning> and an <answer> block."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("gsm8k", "grpo_env_gsm8k.env:GSM8K", summary=__doc__)]


@hookimpl
def grpo_recipes() -> list[Spec]:
    summary = "Five reward functions at once on GSM8K, as in the demo that many start from."
    return [Spec("gsm8k-xml", "grpo_env_gsm8k:recipe.toml", summary)]
