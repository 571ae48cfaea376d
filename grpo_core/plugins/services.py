"""Opens what environments borrow, and closes it: one sandbox and one judge of each name for all of them, made when the first needs it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

from grpo_core.calls.deadline import describe, within
from grpo_core.calls.isolation import reason
from grpo_core.config.settings import JudgeConfig, SandboxConfig
from grpo_core.plugins.environments import settings_of
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, GrpoError, PluginError
from grpo_core.protocol.judge import Judge
from grpo_core.protocol.sandbox import Sandbox

_CLOSE_SECONDS = 30.0


def open_sandbox(host: PluginHost, config: SandboxConfig) -> Sandbox:
    """The sandbox that `config` names, with its settings checked."""
    component = host.load("sandbox", config.name)
    with _made("sandbox", config.name):
        sandbox: Sandbox = component(
            settings_of(component, config.name, config.settings, prefix="sandbox.settings")
        )
        return sandbox


def open_judge(host: PluginHost, name: str, config: JudgeConfig) -> Judge:
    """The judge that `config` names, with its settings checked. name: under which environments ask for it."""
    component = host.load("judge", config.name)
    with _made("judge", config.name):
        judge: Judge = component(
            settings_of(component, config.name, config.settings, prefix=f"judges.{name}.settings")
        )
        return judge


@contextmanager
def _made(kind: str, name: str) -> Iterator[None]:
    """Whatever a plugin's class raises when it is made becomes one line that names it."""
    try:
        yield
    except GrpoError:
        raise
    except Exception as error:
        raise PluginError(f"the {kind} {name!r} cannot be made: {reason(error)}") from error


def fingerprint(env: Environment[Any]) -> str:
    """Of everything that decides a verdict: the environment, and the judges and sandboxes that it was lent."""
    judges = [
        f"{name} {judge.fingerprint()}" for name, judge in sorted(env.services.judges.items())
    ]
    sandboxes = [
        f"sandbox {name} {_of_sandbox(sandbox)}"
        for name, sandbox in sorted(env.services.sandboxes.items())
    ]
    lent = [*judges, *sandboxes]
    return (
        hashlib.sha256("\n".join([env.fingerprint(), *lent]).encode()).hexdigest()[:16]
        if lent
        else env.fingerprint()
    )


def _of_sandbox(sandbox: Sandbox) -> str:
    """Its own word, where it has a `fingerprint` as judges do; else its class, with its settings if it keeps them as `config`."""
    own = getattr(sandbox, "fingerprint", None)
    if own is not None:
        return str(own())
    config = getattr(sandbox, "config", None)
    return (
        f"{type(sandbox).__qualname__} {config!r}"
        if is_dataclass(config)
        else type(sandbox).__qualname__
    )


class Lender:
    """Services for environments by what they need. Lending raises what opening raises; nothing is started before it is used."""

    def __init__(
        self,
        host: PluginHost,
        sandbox: SandboxConfig | None = None,
        judges: Mapping[str, JudgeConfig] = MappingProxyType({}),
    ) -> None:
        self._host = host
        self._config = sandbox or SandboxConfig()
        self._sandbox: Sandbox | None = None
        self._named = judges
        self._judges: dict[str, Judge] = {}

    def services(self, environment_class: type[Environment[Any]]) -> Services:
        """What `environment_class` says that it needs."""
        needs = environment_class.needs
        if "sandbox" in needs and self._sandbox is None:
            self._sandbox = open_sandbox(self._host, self._config)
        if "judge" in needs and not self._named:
            raise ConfigError(
                f"{environment_class.__name__} asks a judge model, but none is named; set judges.default.name and judges.default.settings "
                "(`grpo plugins` lists the judges that are installed)"
            )
        if "judge" in needs:
            self._judges |= {
                name: open_judge(self._host, name, self._named[name])
                for name in self._named.keys() - self._judges.keys()
            }
        sandboxes = (
            {"default": self._sandbox} if self._sandbox is not None and "sandbox" in needs else {}
        )
        return Services(sandboxes=sandboxes, judges=self._judges if "judge" in needs else {})

    async def close(self) -> None:
        """Give everything back; what goes wrong with that is logged, since what was computed is worth more than a tidy end."""
        lent: dict[str, Sandbox | Judge] = {
            f"judge {name!r}": judge for name, judge in self._judges.items()
        }
        lent |= {} if self._sandbox is None else {"sandbox": self._sandbox}
        for name, each in lent.items():
            try:
                await within(each.close(), _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the plugin's own code
                logging.getLogger(__name__).warning(
                    "the %s could not be closed: %s", name, describe(error)
                )
