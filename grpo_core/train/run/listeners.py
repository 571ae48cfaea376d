"""List the listeners of a run in their order: ours, those of plugins, and trackers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import AlarmConfig
from grpo_core.engine.ranks import Ranks
from grpo_core.plugins.environments import creation_errors
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, PluginError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer
from grpo_core.train.run.first_look import FirstLook, SignalWatch
from grpo_core.train.run.journal import Journal, LogText
from grpo_core.train.run.limits import ErrorLimits
from grpo_core.train.run.method import Method
from grpo_core.train.run.metrics import refuse_taken_prefix
from grpo_core.train.run.run_log import RunLog
from grpo_core.train.run.saving import BestWeights, Saving
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.run.stream import Listed
from grpo_core.train.run.trackers import trackers
from grpo_core.train.run.warnings import Watch, alarm_signs

ALARMS = "alarms"
"""The plugin whose listeners every run has, unless `alarms.enabled` is false."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Name a listener that a plugin offers, or a tracker."""

    name: str
    make: Callable[[], Any]
    plugin: str
    """What it is, for messages."""
    in_every_process: bool = False
    """Each process of the run has one."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Hold what comes from outside to hear of a run."""

    listeners: Sequence[Offered]
    trackers: Sequence[Offered]


def load_listeners(config: RunConfig, host: PluginHost, ranks: Ranks) -> Outside:
    """Return the trackers and the plugins' listeners of this run that this process has.

    No plugin is loaded but the one of the alarms and those that the config names.

    Raises:
        UserError: a plugin cannot be used, or the name of a listener is that of metrics of the run.
    """
    made = trackers(config.log, host) if ranks.first else {}
    listeners: dict[str, Offered] = {}
    for plugin in _listening_plugins(config, host):
        offers = _offers_of(plugin, config, host)
        if names := offers.keys() & listeners.keys():
            raise ConfigError(
                f"plugins={plugin}: this run has a listener {min(names)!r} already, that of "
                f"{listeners[min(names)].plugin}; leave one of the two plugins out"
            )
        listeners |= offers
    return Outside(
        [entry for entry in listeners.values() if ranks.first or entry.in_every_process],
        [Offered(name, make, f"the tracker {name!r}") for name, make in made.items()],
    )


def _listening_plugins(config: RunConfig, host: PluginHost) -> list[str]:
    """Return the plugins whose listeners the run has: the alarms, and those that are named.

    A run without the plugin of the alarms has no alarms, unless its settings ask for them.

    Raises:
        ConfigError: settings of the alarms are changed, but their plugin cannot be used.
    """
    if not config.alarms.enabled:
        return list(dict.fromkeys(config.plugins))
    if ALARMS in host.plugins and ALARMS not in host.disabled:
        return list(dict.fromkeys((ALARMS, *config.plugins)))
    defaults = AlarmConfig().model_dump(mode="json")
    for key, value in config.alarms.model_dump(mode="json").items():
        if value != defaults[key]:
            reason, advice = (
                ("switched off by GRPO_DISABLE_PLUGINS", "remove its name from that variable")
                if ALARMS in host.disabled
                else ("not installed", "install it")
            )
            raise ConfigError(
                f"alarms.{key}={json.dumps(value)}: this run has no alarms, as the plugin "
                f"{ALARMS!r} is {reason}; {advice}, or set alarms.enabled=false"
            )
    return list(dict.fromkeys(config.plugins))


def _offers_of(plugin: str, config: RunConfig, host: PluginHost) -> dict[str, Offered]:
    """Return the listeners that a plugin offers, by name.

    Raises:
        UserError: it offers none, or one that cannot be used.
    """
    offers = {}
    for spec in host.offers(plugin)["listener"]:
        refuse_taken_prefix(spec.name, environments=config.members())
        component = host.load("listener", spec.name)
        name = f"the listener {spec.name!r} of the plugin {plugin!r}"
        in_every_process = bool(getattr(component, "in_every_process", False))
        make = partial(_make_listener, component, name)
        offers[spec.name] = Offered(spec.name, make, name, in_every_process)
    if not offers:
        raise ConfigError(
            f"plugins={plugin}: this plugin offers no listener; only plugins with the hook "
            "grpo_listeners are named there"
        )
    return offers


def _make_listener(component: Callable[[], Any], name: str) -> Any:
    """Return a new listener of a plugin.

    Raises:
        PluginError: it cannot be made, or has no method `on`.
    """
    with creation_errors(name):
        listener = component()
    if not callable(getattr(listener, "on", None)):
        raise PluginError(f"{name} is {listener!r:.80}, which has no method on(event)")
    return listener


def list_listeners(
    method: Method,
    folder: RunFolder,
    outside: Outside,
    text: LogText,
    journal: Journal,
    observer: Observer,
    saving: Saving,
    stopping: Stopping,
) -> list[Listed]:
    """Return new listeners of a run in the order in which they hear of each event.

    The logs come first, so that everything that is told or decided is on the disk; the state that a
    checkpoint stores is noted once they are written. What ends the run because nothing can be
    judged says so once. The display follows, so that a warning stands below the step that it is
    about. The listeners of plugins come next, alarms first: what they say of a step stands above
    what its metrics show. Warnings, stop rules and the best weights look at what the update made of
    it, and trackers show what all have done.
    """
    actor, config = method.actor, method.actor.config
    trained = actor.sources.trained
    ours = {
        "log": RunLog(actor, folder, lambda: method.updater.token_values),
        "saving": saving,
        "text": text,
        "limits": ErrorLimits(config),
        "unscored": journal,
        "display": observer,
        "first look": FirstLook(actor, journal, warms_up=config.method == "sft"),
        "signal": SignalWatch(config, journal),
    }
    judging = {
        "warnings": Watch(
            alarm_signs({source.name: source.env.alarms for source in trained}), journal.warn_again
        ),
        "stopping": stopping,
        "best": BestWeights(saving, stopping, method),
    }
    names = tuple(source.name for source in trained)
    return [
        *(Listed(name, listener) for name, listener in ours.items()),
        *(
            Listed(
                entry.name,
                entry.make(),
                entry.plugin,
                names,
                is_shared=entry.in_every_process and actor.ranks.size > 1,
            )
            for entry in outside.listeners
        ),
        *(Listed(name, listener) for name, listener in judging.items()),
        *(Listed(entry.name, entry.make(), entry.plugin, names) for entry in outside.trackers),
    ]
