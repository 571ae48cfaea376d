"""An executor that verifies, and a sampler that draws, in actors of a Ray cluster."""

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


@hookimpl
def grpo_samplers() -> list[Spec]:
    return [
        Spec(
            "ray",
            "grpo_ray.sampler:RaySampler",
            "The built-in engine, or a plugin's sampler, in several actors of a Ray cluster.",
            extra="ray",
        )
    ]
