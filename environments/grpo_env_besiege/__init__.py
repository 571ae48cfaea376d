"""Machines built of blocks, written as JSON construction trees and scored by a simulation."""

from grpo_core import Spec, hookimpl

RECIPES = {
    "besiege": "Machines by a model of 14 billion weights, with groups of 64 completions.",
    "besiege-as-written": "As besiege, but to the letter of the notes that it comes from.",
    "besiege-small": "As besiege, for a tiny model on a laptop.",
}


def _recipe(name: str) -> Spec:
    return Spec(name, f"grpo_env_besiege.recipe:{name.replace('-', '_')}", summary=RECIPES[name])


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
    return [_recipe("besiege")]


class _Recipe:
    """Offers a recipe as a separate plugin, because a plugin's name is the recipe's id."""

    def __init__(self, name: str) -> None:
        self._name = name

    @hookimpl
    def grpo_recipes(self) -> list[Spec]:
        return [_recipe(self._name)]


offer_as_written = _Recipe("besiege-as-written")
offer_small = _Recipe("besiege-small")
