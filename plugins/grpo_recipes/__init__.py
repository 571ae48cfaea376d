"""Recipes for well-known algorithms and hardware.

A recipe is a set of settings that go together; each file names its source. `--recipe dapo` uses
one.
"""

from grpo_core import Spec, hookimpl

SUMMARIES = {
    "grpo": "GRPO as in DeepSeekMath.",
    "dr-grpo": "Dr. GRPO: no division by the spread or by lengths.",
    "dapo": "DAPO: clip higher, token mean, dynamic sampling, no KL.",
    "gspo": "GSPO: the ratio of whole completions.",
    "cispo": "CISPO: clipped importance weights, no token loses its gradient.",
    "rloo": "RLOO: REINFORCE with the others of the group as baseline, KL in the reward.",
    "passk": "Pass@k training: the best of four completions counts.",
    "maxk": "Max@k training: as passk, for rewards that are not only 0 or 1.",
    "gpu-10gb": "Limits for a GPU with 10 GB.",
}


@hookimpl
def grpo_recipes() -> list[Spec]:
    return [Spec(name, f"grpo_recipes:{name}.toml", text) for name, text in SUMMARIES.items()]
