"""Texts with gaps: the policy fills them, and a judge model scores how well the fills fit."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("fillin", "grpo_env_fillin.env:FillIn", summary=__doc__)]


@hookimpl
def grpo_recipes() -> list[Spec]:
    summary = "Masked fill-in, paid by a frozen sequence scorer."
    return [Spec("fill-in", "grpo_env_fillin:recipe.toml", summary)]
