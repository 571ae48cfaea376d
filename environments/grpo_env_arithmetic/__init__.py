"""Sums of a few small integers, harder by level: the first task a small model can learn."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("arithmetic", "grpo_env_arithmetic.env:Arithmetic", summary=__doc__)]


@hookimpl
def grpo_recipes() -> list[Spec]:
    return [
        Spec(
            "arithmetic",
            "grpo_env_arithmetic:recipe.toml",
            summary="30 % to 70 % in 2,000 steps of full fine-tuning.",
        )
    ]
