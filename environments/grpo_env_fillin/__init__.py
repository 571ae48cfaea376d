"""Texts with gaps; a judge model says how well what stands in them fits."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("fillin", "grpo_env_fillin.env:FillIn", summary=__doc__)]


class _Recipe:
    """A plugin of its own, so that its name is its id."""

    @hookimpl
    def grpo_recipes(self) -> list[Spec]:
        return [
            Spec(
                "fill-in",
                "grpo_env_fillin.recipe:recipe",
                summary="Masked fill-in, paid by a frozen sequence scorer.",
            )
        ]


offer_recipe = _Recipe()
