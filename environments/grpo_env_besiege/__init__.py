"""Machines built of blocks, written as JSON construction trees and scored by a simulation."""

from grpo_core import Spec, hookimpl

RECIPES = {
    "besiege": "Machines by a model of 14 billion weights, with groups of 64 completions.",
    "besiege-as-written": "As besiege, but to the letter of the notes that it comes from.",
    "besiege-small": "As besiege, for a tiny model on a laptop.",
}


@hookimpl
def grpo_environments() -> list[Spec]:
    names = ("car", "catapult", "delivery")
    return [
        Spec(
            f"besiege/{name}",
            f"grpo_env_besiege.env:{name.capitalize()}",
            summary=__doc__,
            extra="besiege",
        )
        for name in names
    ]


@hookimpl
def grpo_recipes() -> list[Spec]:
    return [
        Spec(name, f"grpo_env_besiege:{name}.toml", summary) for name, summary in RECIPES.items()
    ]
