"""Word problems of grade school, answered as <reasoning> and <answer>."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("gsm8k", "grpo_env_gsm8k.env:GSM8K", summary=__doc__)]


class _Recipe:
    """A plugin of its own, so that its name is its id."""

    @hookimpl
    def grpo_recipes(self) -> list[Spec]:
        summary = "Five reward functions at once on GSM8K, as in the demo that many start from."
        return [Spec("gsm8k-xml", "grpo_env_gsm8k.recipe:recipe", summary=summary)]


offer_recipe = _Recipe()
