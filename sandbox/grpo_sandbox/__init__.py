"""Sandboxes for programs nobody trusts: hardened Docker containers, or bubblewrap where there is no Docker."""

from grpo_core import Spec, hookimpl


class _Offer:
    """One back end as a plugin of its own, so that its name is its id."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    @hookimpl
    def grpo_sandboxes(self) -> list[Spec]:
        return [self._spec]


offer_auto = _Offer(
    Spec("auto", "grpo_sandbox.auto:Auto", "Docker where it is ready, else bubblewrap.")
)
offer_bubblewrap = _Offer(
    Spec(
        "bubblewrap",
        "grpo_sandbox.bubblewrap:Bubblewrap",
        "Jails by bubblewrap: no daemon, no image, no root.",
    )
)
offer_docker = _Offer(
    Spec("docker", "grpo_sandbox.docker:Docker", "Hardened Docker containers.", extra="sandbox")
)
