"""The kit for authors: adversarial checks of environments, checks of sandboxes, new projects.

The checks of an environment decide whether it can be trusted with a training run.
"""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_checks() -> list[Spec]:
    return [Spec("kit", "grpo_kit.run:Kit", "Adversarial checks of an environment.")]
