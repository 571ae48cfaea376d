"""The sandbox that is there: Docker if its daemon answers and has the image, else bubblewrap, else one message. Never none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core import ConfigError, Outcome, Program
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.pool import JailPool


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """jails: how many run at once; None: two per core. What else can be set belongs to docker and bubblewrap: name one of them."""

    jails: int | None = None


class Auto:
    """A `grpo_core.Sandbox`: the first back end that is ready."""

    Config = AutoConfig

    def __init__(self, config: AutoConfig | None = None) -> None:
        jails = (config or AutoConfig()).jails
        try:
            self.chosen = _docker(jails)
        except (ConfigError, ModuleNotFoundError) as no_docker:
            try:
                self.chosen = Bubblewrap(BubblewrapConfig(jails=jails))
            except ConfigError as no_bubblewrap:
                raise ConfigError(f"there is no sandbox to run code in. {no_docker}. {no_bubblewrap}") from None
            logging.getLogger(__name__).info("bubblewrap is the sandbox: %s", no_docker)

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        return await self.chosen.run(programs)

    def fingerprint(self) -> str:
        """That of the back end: each has a Python of its own."""
        return self.chosen.fingerprint()

    async def close(self) -> None:
        await self.chosen.close()


def _docker(jails: int | None) -> JailPool:
    from grpo_sandbox.docker import Docker, DockerConfig

    return Docker(DockerConfig(jails=jails))
