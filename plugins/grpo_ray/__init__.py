"""An executor that verifies in actors of a Ray cluster."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_executors() -> list[Spec]:
    return [
        Spec(
            "ray",
            "grpo_ray.executor:RayExecutor",
            "Actors of a Ray cluster, on this machine or many.",
            extra="ray",
        )
    ]
