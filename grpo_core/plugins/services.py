"""Open and close the services of environments: sandboxes and judges.

All environments share one sandbox and one judge of each name. Each is created when the first
environment needs it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any, Protocol

from grpo_core.calls.deadline import describe, within
from grpo_core.calls.isolation import reason
from grpo_core.plugins.environments import settings_of
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, GrpoError, PluginError
from grpo_core.protocol.judge import Judge
from grpo_core.protocol.sandbox import Sandbox

_CLOSE_SECONDS = 30.0
"""Timeout for closing one service."""


class ServiceConfig(Protocol):
    """Names a kind of sandbox or judge, and its settings, as the sections of a config do."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...


def open_sandbox(host: PluginHost, config: ServiceConfig) -> Sandbox:
    """Return a new sandbox of the kind that `config` names, with validated settings."""
    component = host.load("sandbox", config.name)
    with _creation_errors("sandbox", config.name):
        sandbox: Sandbox = component(
            settings_of(component, config.name, config.settings, prefix="sandbox.settings")
        )
        return sandbox


def open_judge(host: PluginHost, name: str, config: ServiceConfig) -> Judge:
    """Return a new judge of the kind that `config` names, with validated settings.

    Args:
        host: the installed plugins.
        name: the name under which environments request the judge; error messages use it.
        config: kind and settings of the judge.
    """
    component = host.load("judge", config.name)
    with _creation_errors("judge", config.name):
        judge: Judge = component(
            settings_of(component, config.name, config.settings, prefix=f"judges.{name}.settings")
        )
        return judge


@contextmanager
def _creation_errors(kind: str, name: str) -> Iterator[None]:
    """Turn any exception of a plugin's class into a PluginError of one line that names it."""
    try:
        yield
    except GrpoError:
        raise
    except Exception as error:
        raise PluginError(f"the {kind} {name!r} cannot be created: {reason(error)}") from error


def fingerprint(env: Environment[Any]) -> str:
    """Return a digest of the code and settings that decide a verdict.

    It covers the environment and the judges and sandboxes that it uses.
    """
    judges = [
        f"{name} {judge.fingerprint()}" for name, judge in sorted(env.services.judges.items())
    ]
    sandboxes = [
        f"sandbox {name} {_sandbox_fingerprint(sandbox)}"
        for name, sandbox in sorted(env.services.sandboxes.items())
    ]
    services = [*judges, *sandboxes]
    return (
        hashlib.sha256("\n".join([env.fingerprint(), *services]).encode()).hexdigest()[:16]
        if services
        else env.fingerprint()
    )


def _sandbox_fingerprint(sandbox: Sandbox) -> str:
    """Return a text that identifies the sandbox.

    This is the result of its method `fingerprint`, if it has one as judges do; else the name of
    its class, with its settings if it stores them as `config`.
    """
    own_fingerprint = getattr(sandbox, "fingerprint", None)
    if own_fingerprint is not None:
        return str(own_fingerprint())
    config = getattr(sandbox, "config", None)
    return (
        f"{type(sandbox).__qualname__} {config!r}"
        if is_dataclass(config)
        else type(sandbox).__qualname__
    )


class Lender:
    """Provide environments with the services that they need.

    A service is created when the first environment needs it, and shared by all of them. Nothing is
    started before it is used.
    """

    def __init__(
        self,
        host: PluginHost,
        sandbox: ServiceConfig,
        judges: Mapping[str, ServiceConfig] = MappingProxyType({}),
    ) -> None:
        """Prepare the services; nothing is created yet.

        Args:
            host: the installed plugins.
            sandbox: kind and settings of the sandbox.
            judges: kind and settings of each judge, by the name under which environments request
                it.
        """
        self._host = host
        self._sandbox_config = sandbox
        self._sandbox: Sandbox | None = None
        self._judge_configs = judges
        self._judges: dict[str, Judge] = {}

    def services(self, environment_class: type[Environment[Any]]) -> Services:
        """Return the services that `environment_class` declares in `needs`.

        Raises:
            ConfigError: it needs a judge and none is configured, or a setting is not valid.
            PluginError: a service cannot be loaded or created.
        """
        needs = environment_class.needs
        if "sandbox" in needs and self._sandbox is None:
            self._sandbox = open_sandbox(self._host, self._sandbox_config)
        if "judge" in needs and not self._judge_configs:
            raise ConfigError(
                f"{environment_class.__name__} needs a judge model, but none is named; "
                "set judges.default.name and judges.default.settings "
                "(`grpo plugins` lists the judges that are installed)"
            )
        if "judge" in needs:
            self._judges |= {
                name: open_judge(self._host, name, self._judge_configs[name])
                for name in self._judge_configs.keys() - self._judges.keys()
            }
        sandboxes = (
            {"default": self._sandbox} if self._sandbox is not None and "sandbox" in needs else {}
        )
        return Services(sandboxes=sandboxes, judges=self._judges if "judge" in needs else {})

    async def close(self) -> None:
        """Close all services.

        A service that fails to close is logged and not raised: the results that were computed
        matter more than a clean shutdown.
        """
        services: dict[str, Sandbox | Judge] = {
            f"judge {name!r}": judge for name, judge in self._judges.items()
        }
        services |= {} if self._sandbox is None else {"sandbox": self._sandbox}
        for name, service in services.items():
            try:
                await within(service.close(), _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the plugin's own code
                logging.getLogger(__name__).warning(
                    "the %s could not be closed: %s", name, describe(error)
                )
