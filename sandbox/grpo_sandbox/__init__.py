"""Sandboxes for untrusted programs: hardened Docker containers, or bubblewrap without Docker."""

from grpo_core import Spec, hookimpl


class _Offer:
    """Offers a back end as a separate plugin, because a plugin's name is the back end's id."""

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
