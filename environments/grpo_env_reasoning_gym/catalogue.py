"""One environment class for each dataset, made when it is first asked for, so that workers find it by module and name."""

from __future__ import annotations

from grpo_env_reasoning_gym import categories
from grpo_env_reasoning_gym.env import ReasoningGym
from grpo_env_reasoning_gym.ladder import steps

_CATEGORIES = categories()
_ANSWER_IN_PROMPT = frozenset({"color_cube_rotation", "needle_haystack"})
"""One of the colours, or of the people, that the question names."""


def __getattr__(name: str) -> type[ReasoningGym]:
    if name not in _CATEGORIES:
        raise AttributeError(f"reasoning-gym has no dataset {name!r}")
    declared = {
        "__module__": __name__,
        "__doc__": f"The dataset {name} of reasoning-gym, category {_CATEGORIES[name]}.",
        "dataset": name,
        "levels": len(steps(name)) > 1,
        "answer_in_prompt": name in _ANSWER_IN_PROMPT,
    }
    globals()[name] = type(name, (ReasoningGym,), declared)
    made: type[ReasoningGym] = globals()[name]
    return made
