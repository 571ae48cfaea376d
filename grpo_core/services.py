"""Opens what environments borrow, and closes it: one sandbox for all of them, made when the first needs it."""

from __future__ import annotations

import logging
from typing import Any

from grpo_core.deadline import describe, within
from grpo_core.environment import Environment, Services
from grpo_core.environments import settings_of
from grpo_core.plugins import PluginHost
from grpo_core.sandbox import Sandbox
from grpo_core.settings import SandboxConfig

_CLOSE_SECONDS = 30.0


def open_sandbox(host: PluginHost, config: SandboxConfig) -> Sandbox:
    """The sandbox that `config` names, with its settings checked."""
    component = host.load("sandbox", config.name)
    sandbox: Sandbox = component(settings_of(component, config.name, config.settings, prefix="sandbox.settings"))
    return sandbox


class Lender:
    """Services for environments by what they need. Lending raises what opening raises; nothing is started before it is used."""

    def __init__(self, host: PluginHost, sandbox: SandboxConfig | None = None) -> None:
        self._host = host
        self._config = sandbox or SandboxConfig()
        self._sandbox: Sandbox | None = None

    def services(self, environment_class: type[Environment[Any]]) -> Services:
        """What `environment_class` says that it needs."""
        if "sandbox" not in environment_class.needs:
            return Services()
        if self._sandbox is None:
            self._sandbox = open_sandbox(self._host, self._config)
        return Services(sandboxes={"default": self._sandbox})

    async def close(self) -> None:
        """Give everything back; what goes wrong with that is logged, since what was computed is worth more than a tidy end."""
        if self._sandbox is not None:
            try:
                await within(self._sandbox.close(), _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the plugin's own code
                logging.getLogger(__name__).warning("the sandbox could not be closed: %s", describe(error))
