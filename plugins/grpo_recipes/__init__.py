"""Recipes for well-known algorithms and hardware.

A recipe is a set of settings that go together; each file names its source. `--recipe dapo` uses
one.
"""

from grpo_core import Spec, hookimpl


class _Offer:
    """Offers a recipe as a separate plugin, because a plugin's name is the recipe's id."""

    def __init__(self, name: str, summary: str) -> None:
        self._spec = Spec(name, f"grpo_recipes.files:{name}", summary)

    @hookimpl
    def grpo_recipes(self) -> list[Spec]:
        return [self._spec]


offer_grpo = _Offer("grpo", "GRPO as in DeepSeekMath.")
offer_dr_grpo = _Offer("dr-grpo", "Dr. GRPO: no division by the spread or by lengths.")
offer_dapo = _Offer("dapo", "DAPO: clip higher, token mean, dynamic sampling, no KL.")
offer_gspo = _Offer("gspo", "GSPO: the ratio of whole completions.")
offer_cispo = _Offer("cispo", "CISPO: clipped importance weights, no token loses its gradient.")
offer_rloo = _Offer(
    "rloo", "RLOO: REINFORCE with the others of the group as baseline, KL in the reward."
)
offer_passk = _Offer("passk", "Pass@k training: the best of four completions counts.")
offer_gpu_10gb = _Offer("gpu-10gb", "Limits for a GPU with 10 GB.")
offer_maxk = _Offer("maxk", "Max@k training: as passk, for rewards that are not only 0 or 1.")
