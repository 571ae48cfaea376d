"""Machines out of blocks, as JSON construction trees, scored by a physics simulation."""

from grpo_core import Spec, hookimpl

RECIPES = {
    "besiege": "Machines by a model of 14 billion weights, 64 attempts at one prompt.",
    "besiege-as-written": "The same to the letter of the notes that it comes from.",
    "besiege-small": "The same for a tiny model on a laptop.",
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
    """A plugin of its own, so that its name is its id."""

    def __init__(self, name: str) -> None:
        self._name = name

    @hookimpl
    def grpo_recipes(self) -> list[Spec]:
        return [_recipe(self._name)]


offer_as_written = _Recipe("besiege-as-written")
offer_small = _Recipe("besiege-small")
