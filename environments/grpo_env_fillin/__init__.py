"""Texts with gaps: the policy fills them, and a judge model scores how well the fills fit."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("fillin", "grpo_env_fillin.env:FillIn", summary=__doc__)]


class _Recipe:
    """Offers the recipe as a separate plugin, because a plugin's name is the recipe's id."""

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
