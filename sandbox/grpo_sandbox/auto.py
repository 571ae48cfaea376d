"""Chooses the sandbox: Docker if its daemon answers and has the image, else bubblewrap.

If neither is ready, an error says why; programs never run without a sandbox.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, Limits, MissingExtraError, Outcome, Program, Session
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.pool import PATIENCE_SECONDS, JailPool
from grpo_sandbox.sessions import SESSIONS


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of the sandbox `auto`.

    For the other settings, choose the sandbox `docker` or `bubblewrap` by its name.
    """

    jails: int | None = None
    """Number of jails that run at once; None for two per core."""
    sessions: int = SESSIONS
    """Number of sessions that are open at once."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long programs wait for a sandbox that cannot run any."""


class Auto:
    """A `grpo_core.Sandbox` that uses the first back end that is ready.

    Raises:
        ConfigError: No back end is ready.
    """

    Config = AutoConfig

    def __init__(self, config: AutoConfig | None = None) -> None:
        shared = asdict(config or AutoConfig())
        try:
            self.chosen = _docker(shared)
        except (ConfigError, MissingExtraError) as no_docker:
            try:
                self.chosen = Bubblewrap(BubblewrapConfig(**shared))
            except ConfigError as no_bubblewrap:
                raise ConfigError(
                    f"there is no sandbox to run code in. {no_docker}. {no_bubblewrap}"
                ) from None
            logging.getLogger(__name__).info("bubblewrap is the sandbox: %s", no_docker)

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Run programs in the back end that was chosen."""
        return await self.chosen.run(programs)

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> Session:
        """Open a session in the back end that was chosen."""
        return await self.chosen.session(files, image=image, limits=limits, socket=socket)

    def fingerprint(self) -> str:
        """Return the back end's fingerprint, since each back end has its own Python."""
        return self.chosen.fingerprint()

    async def close(self) -> None:
        await self.chosen.close()


def _docker(shared: dict[str, Any]) -> JailPool:
    from grpo_sandbox.docker import Docker, DockerConfig

    return Docker(DockerConfig(**shared))
