"""Sandboxes for untrusted programs: hardened Docker containers, or bubblewrap without Docker."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_sandboxes() -> list[Spec]:
    return [
        Spec("auto", "grpo_sandbox.auto:Auto", "Docker where it is ready, else bubblewrap."),
        Spec(
            "bubblewrap",
            "grpo_sandbox.bubblewrap:Bubblewrap",
            "Jails by bubblewrap: no daemon, no image, no root.",
        ),
        Spec(
            "docker", "grpo_sandbox.docker:Docker", "Hardened Docker containers.", extra="sandbox"
        ),
    ]
