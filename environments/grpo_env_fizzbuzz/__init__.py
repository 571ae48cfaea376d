"""FizzBuzz and its relatives: short functions from numbers to words, written by the model and run in a sandbox."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("fizzbuzz", "grpo_env_fizzbuzz.env:FizzBuzz", summary=__doc__, extra="sandbox")]


@hookimpl
def grpo_recipes() -> list[Spec]:
    return [
        Spec(
            "fizzbuzz",
            "grpo_env_fizzbuzz.recipe:recipe",
            summary="The loop on a card with 10 GB: five steps.",
        )
    ]
