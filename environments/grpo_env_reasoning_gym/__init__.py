"""The datasets of the library reasoning-gym, with its own questions, verifiers and curricula.

Each dataset is an environment of its own, named `reasoning-gym/NAME`.
"""

import tomllib
from pathlib import Path

from grpo_core import Spec, hookimpl


def categories() -> dict[str, str]:
    """Return the names of the datasets with their categories.

    They are read from a file, because importing the library takes over a second.
    """
    return tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))


@hookimpl
def grpo_environments() -> list[Spec]:
    return [
        Spec(
            f"reasoning-gym/{name}",
            f"grpo_env_reasoning_gym.catalogue:{name}",
            summary=f"reasoning-gym, {category}: {name.replace('_', ' ')}",
            extra="reasoning-gym",
        )
        for name, category in categories().items()
    ]
