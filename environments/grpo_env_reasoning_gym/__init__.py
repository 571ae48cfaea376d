"""The datasets of the library reasoning-gym: `reasoning-gym/NAME`, with its own questions, verifiers and curricula."""

import tomllib
from pathlib import Path

from grpo_core import Spec, hookimpl


def categories() -> dict[str, str]:
    """The names of the datasets with their categories; the library itself takes over a second to import."""
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
