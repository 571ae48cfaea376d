"""Open and close sandboxes and judges of environments; load samplers, executors and endpoints.

All environments share one sandbox and one judge of each name. Each is created when the first
environment needs it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from grpo_core.calls.deadline import describe, within
from grpo_core.plugins.environments import creation_errors, settings_of
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.endpoint import Endpoint
from grpo_core.protocol.environment import Environment, Services, needed_services
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.executor import Executor
from grpo_core.protocol.hookspecs import Kind
from grpo_core.protocol.judge import Judge
from grpo_core.protocol.sampler import ModelToSample, Sampler
from grpo_core.protocol.sandbox import Sandbox
from grpo_core.protocol.spec import Spec

_CLOSE_SECONDS = 30.0
"""Timeout for closing one service."""
_REPLICA = Spec("builtin", "grpo_core.engine.policy.replica:Replica", extra="train")
"""The built-in engine with a copy of the model, for actors and processes of their own."""


class ServiceConfig(Protocol):
    """Names a component and its settings, as sections of a config do."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...


def open_sandbox(host: PluginHost, config: ServiceConfig) -> Sandbox:
    """Return a new sandbox of the kind that `config` names, with validated settings."""
    sandbox: Sandbox = _open(host, "sandbox", config, prefix="sandbox.settings")
    return sandbox


def open_judge(host: PluginHost, name: str, config: ServiceConfig) -> Judge:
    """Return a new judge of the kind that `config` names, with validated settings.

    Args:
        host: the installed plugins.
        name: the name under which environments request the judge; error messages use it.
        config: kind and settings of the judge.
    """
    judge: Judge = _open(host, "judge", config, prefix=f"judges.{name}.settings")
    return judge


def sampler_maker(host: PluginHost, config: ServiceConfig) -> Callable[[ModelToSample], Sampler]:
    """Return a function that makes the sampler of a plugin, with validated settings.

    The plugin is loaded at once, so that a wrong name or setting shows before the model is loaded.
    """
    return _sampler_maker(host.load("sampler", config.name), config.name, config.settings)


def installed_sampler(name: str, settings: Mapping[str, Any]) -> Callable[[ModelToSample], Sampler]:
    """Return a function that makes an installed sampler; for plugins that run those of others.

    Args:
        name: name of the sampler; "builtin" for the built-in engine with a copy of the model.
        settings: its settings, which are validated.
    """
    is_builtin = name == _REPLICA.name
    component = _REPLICA.load() if is_builtin else PluginHost().load("sampler", name)
    return _sampler_maker(component, name, settings)


def _sampler_maker(
    component: Any, name: str, settings: Mapping[str, Any]
) -> Callable[[ModelToSample], Sampler]:
    """Return a function that makes a sampler, with validated settings."""
    with creation_errors(f"the sampler {name!r}"):
        valid_settings = settings_of(component, name, settings, prefix="sampler.settings")

    def make(model: ModelToSample) -> Sampler:
        with creation_errors(f"the sampler {name!r}"):
            sampler: Sampler = component(valid_settings, model)
        return sampler

    return make


def open_executor(host: PluginHost, config: ServiceConfig) -> Executor:
    """Return a new executor of the kind that `config` names, with validated settings."""
    executor: Executor = _open(host, "executor", config, prefix="verify.executor.settings")
    return executor


def open_endpoint(host: PluginHost, config: ServiceConfig) -> Endpoint:
    """Return a new endpoint of the kind that `config` names, with validated settings.

    It does not listen before its `open`.
    """
    endpoint: Endpoint = _open(host, "endpoint", config, prefix="endpoint.settings")
    return endpoint


def _open(host: PluginHost, kind: Kind, config: ServiceConfig, *, prefix: str) -> Any:
    """Return a new service with validated settings; `prefix` is the path of these in a recipe."""
    component = host.load(kind, config.name)
    with creation_errors(f"the {kind} {config.name!r}"):
        return component(settings_of(component, config.name, config.settings, prefix=prefix))


def fingerprint(env: Environment[Any]) -> str:
    """Return a digest of the code and settings that decide a verdict.

    It covers the environment and the judges and sandboxes that it uses.
    """
    own, *services = [
        env.fingerprint(),
        *(f"{name} {judge.fingerprint()}" for name, judge in sorted(env.services.judges.items())),
        *(
            f"sandbox {name} {_sandbox_fingerprint(sandbox)}"
            for name, sandbox in sorted(env.services.sandboxes.items())
        ),
    ]
    digest = hashlib.sha256("\n".join([own, *services]).encode())
    return digest.hexdigest()[:16] if services else own


def _sandbox_fingerprint(sandbox: Sandbox) -> str:
    """Return a text that identifies the sandbox.

    This is the result of its method `fingerprint`, if it has one as judges do; else the name of
    its class, with its settings if it stores them as `config`.
    """
    if hasattr(sandbox, "fingerprint"):
        return str(sandbox.fingerprint())
    config = getattr(sandbox, "config", None)
    return (
        f"{type(sandbox).__qualname__} {config!r}"
        if is_dataclass(config)
        else type(sandbox).__qualname__
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """Names a service without settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


_HTTP = _Named("http")


def lacks_endpoint(env: Environment[Any]) -> bool:
    """Return whether an environment has agents, and no endpoint for them."""
    return "endpoint" in env.needs and not env.services.endpoints


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
        endpoint: ServiceConfig = _HTTP,
    ) -> None:
        """Prepare the services; nothing is created yet.

        Args:
            host: the installed plugins.
            sandbox: kind and settings of the sandbox.
            judges: kind and settings of each judge, by the name under which environments request
                it.
            endpoint: kind and settings of the endpoint.
        """
        self._host = host
        self._sandbox_config = sandbox
        self._sandboxes: dict[str, Sandbox] = {}
        self._judge_configs = judges
        self._judges: dict[str, Judge] = {}
        self._endpoint_config = endpoint
        self._endpoints: dict[str, Endpoint] = {}

    def services(self, environment_class: type[Environment[Any]], config: Any = None) -> Services:
        """Return the services that an environment needs.

        Args:
            environment_class: its class.
            config: its settings; None: the services that the class declares in `needs`.

        Raises:
            ConfigError: it needs a judge and none is configured, or a setting is not valid.
            PluginError: a service cannot be loaded or created.
        """
        needs = (
            environment_class.needs
            if config is None
            else needed_services(environment_class, config)
        )
        if "sandbox" in needs and not self._sandboxes:
            self._sandboxes["default"] = open_sandbox(self._host, self._sandbox_config)
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
        return Services(
            sandboxes=self._sandboxes if "sandbox" in needs else {},
            judges=self._judges if "judge" in needs else {},
            endpoints=self.endpoints() if "endpoint" in needs else {},
        )

    def services_or_reason(
        self, environment_class: type[Environment[Any]], config: Any
    ) -> tuple[Services, str]:
        """Return the services that an environment needs with its settings, or none and the reason.

        Args:
            environment_class: its class.
            config: its settings.
        """
        try:
            return self.services(environment_class, config), ""
        except ConfigError as error:
            return Services(), str(error)

    def complete(self, env: Environment[Any]) -> None:
        """Give an environment that its owner has made the endpoint that `lacks_endpoint` misses.

        Raises:
            PluginError: the endpoint cannot be loaded or created.
        """
        if lacks_endpoint(env):
            env.services = replace(env.services, endpoints=self.endpoints())

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of agents by its name, "default"."""
        if not self._endpoints:
            self._endpoints["default"] = open_endpoint(self._host, self._endpoint_config)
        return self._endpoints

    async def close(self) -> None:
        """Close all services.

        A service that fails to close is logged and not raised: the results that were computed
        matter more than a clean shutdown.
        """
        services: list[tuple[str, Sandbox | Judge | Endpoint]] = [
            *(("endpoint", endpoint) for endpoint in self._endpoints.values()),
            *((f"judge {name!r}", judge) for name, judge in self._judges.items()),
            *(("sandbox", sandbox) for sandbox in self._sandboxes.values()),
        ]
        for name, service in services:
            try:
                await within(service.close(), _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the plugin's own code
                logging.getLogger(__name__).warning(
                    "the %s could not be closed: %s", name, describe(error)
                )
