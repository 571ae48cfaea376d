"""FizzBuzz and its variants: the policy writes short functions, which run in a sandbox."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("fizzbuzz", "grpo_env_fizzbuzz.env:FizzBuzz", summary=__doc__)]


@hookimpl
def grpo_recipes() -> list[Spec]:
    return [
        Spec(
            "fizzbuzz",
            "grpo_env_fizzbuzz:recipe.toml",
            summary="The training loop on a GPU with 10 GB: five steps.",
        )
    ]
