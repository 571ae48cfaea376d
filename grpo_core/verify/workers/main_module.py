"""Judge an environment in this process where its class is in a notebook or script."""

from __future__ import annotations

from typing import Any

from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.spec import Spec


def lives_in_main(env: Environment[Any]) -> bool:
    """Return whether the class is in the notebook or script that runs, so nowhere to import."""
    return type(env).__module__ == "__main__"


def settings_for(
    env: Environment[Any], spec: Spec | None, settings: VerifyConfig | None
) -> VerifyConfig:
    """Return the settings of a verifier, which leave an environment here that cannot be elsewhere.

    Args:
        env: the environment.
        spec: by which another process can build it; None: its class tells.
        settings: those of the run; None: the defaults. What they choose themselves stays.
    """
    settings = settings or VerifyConfig()
    if settings.isolation == "auto" and spec is None and lives_in_main(env):
        return settings.model_copy(update={"isolation": "inline"})
    return settings
