"""Provides an environment class for each dataset, made on first use.

As an attribute of this module, a class can be found by workers by its module and name.
"""

from __future__ import annotations

from grpo_env_reasoning_gym import categories
from grpo_env_reasoning_gym.env import ReasoningGym, Sandboxed
from grpo_env_reasoning_gym.execution import EXECUTING, SANDBOXED
from grpo_env_reasoning_gym.ladder import steps

_CATEGORIES = categories()
_ANSWER_IN_PROMPT = frozenset({"color_cube_rotation", "needle_haystack"})
"""Datasets whose answer is one of the colours, or of the people, that the question names."""


def __getattr__(name: str) -> type[ReasoningGym]:
    """Make the class of the dataset `name`."""
    if name not in _CATEGORIES:
        raise AttributeError(f"reasoning-gym has no dataset {name!r}")
    attributes = {
        "__module__": __name__,
        "__doc__": f"The dataset {name} of reasoning-gym, category {_CATEGORIES[name]}.",
        "dataset": name,
        "levels": len(steps(name)) > 1,
        "answer_in_prompt": name in _ANSWER_IN_PROMPT,
        "raises_at_answers": name not in EXECUTING,
    }
    globals()[name] = type(name, (Sandboxed if name in SANDBOXED else ReasoningGym,), attributes)
    environment: type[ReasoningGym] = globals()[name]
    return environment
