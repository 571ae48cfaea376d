"""Build the parts of a run from its config, in functions that return complete objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import PLUGIN
from grpo_core.plugins.environments import creation_errors
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, PluginError
from grpo_core.protocol.sampler import Sampler
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer, SafeObserver
from grpo_core.train.actor import Actor, build_actor
from grpo_core.train.algorithm.checked import checked_estimator, checked_loss
from grpo_core.train.grpo import Grpo
from grpo_core.train.models.device import pick_device
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.choose import choose_sampler
from grpo_core.train.policy.ways import DecodingWay
from grpo_core.train.ranks import Ranks
from grpo_core.train.run.alarms.watch import AlarmWatch
from grpo_core.train.run.journal import Journal, LogText
from grpo_core.train.run.limits import ErrorLimits, Indexing
from grpo_core.train.run.method import Method
from grpo_core.train.run.metrics import refuse_taken_prefix
from grpo_core.train.run.run_log import RunLog
from grpo_core.train.run.saving import BestWeights, Saving
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.run.stream import Listed
from grpo_core.train.run.trackers import trackers
from grpo_core.train.run.warnings import Watch, alarm_signs
from grpo_core.train.sft import Sft
from grpo_core.verify.sources import Sources

Function = TypeVar("Function")
HIGH_RATE = 1e-4
"""Learning rate above which training all weights usually destroys a pretrained model."""


def find_ranks(config: RunConfig) -> Ranks:
    """Return this process's place among those of the run."""
    return Ranks(
        meeting_seconds=config.trainer.meeting_seconds,
        on_cpu=pick_device(config.model.device).type == "cpu",
    )


def choose_observer(
    observer: Observer | None, ranks: Ranks, folder: Callable[[], RunFolder | None]
) -> Observer:
    """Return the observer, in the first process only, so that its errors do not end the run.

    Args:
        observer: as the caller gave it; None for none.
        folder: returns the run folder, or None before there is one: log.txt notes a failed display.
    """

    def note(text: str) -> None:
        run_folder = folder()
        if run_folder is not None and (run_folder.path / "config.json").exists():
            run_folder.log(text)

    if observer is None or not ranks.first:
        return Observer()
    return SafeObserver(observer, note)


@dataclass(frozen=True, slots=True)
class Offered:
    """Name a listener that a plugin offers, or a tracker."""

    name: str
    make: Callable[[], Any]
    plugin: str
    """What it is, for messages."""


def load_listeners(config: RunConfig, host: PluginHost, ranks: Ranks) -> list[Offered]:
    """Return the trackers and the plugins' listeners of this run, in the first process only.

    No plugin is loaded if the config names none.

    Raises:
        UserError: a plugin cannot be used, or the name of a listener is that of metrics of the run.
    """
    if not ranks.first:
        return []
    offered = [
        Offered(name, make, f"the tracker {name!r}")
        for name, make in trackers(config.log, host).items()
    ]
    for plugin in config.plugins:
        specs = host.offers(plugin)["listener"]
        for spec in specs:
            refuse_taken_prefix(spec.name, environments=config.members())
            name = f"the listener {spec.name!r} of the plugin {plugin!r}"
            make = partial(_make_listener, host.load("listener", spec.name), name)
            offered.append(Offered(spec.name, make, name))
        if not specs:
            raise ConfigError(
                f"plugins={plugin}: this plugin offers no listener; only plugins with the hook "
                "grpo_listeners are named there"
            )
    return offered


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
    offered: Sequence[Offered],
    text: LogText,
    journal: Journal,
    observer: Observer,
    saving: Saving,
    stopping: Stopping,
) -> list[Listed]:
    """Return new listeners of a run in the order in which they hear of each event.

    The logs come first, so that everything that is told or decided is on the disk; the state that a
    checkpoint stores is noted once they are written. The display follows, so that a warning stands
    below the step that it is about. Alarms look at a batch before anything is learned from it;
    warnings and stop rules look at what the update made of it. Whoever comes from outside hears of
    an event when all of ours have heard of it.
    """
    actor, config = method.actor, method.actor.config
    declared = {source.name: source.env.alarms for source in actor.sources.trained}
    ours = {
        "log": RunLog(actor, folder, lambda: method.updater.token_values),
        "saving": saving,
        "text": text,
        "unscored": journal,
        "display": observer,
        "limits": ErrorLimits(config),
        "index": Indexing(folder, journal.warn),
        "alarms": AlarmWatch(actor, journal.warn),
        "warnings": Watch(alarm_signs(declared), journal.warn_again),
        "stopping": stopping,
        "best": BestWeights(saving, stopping, method),
    }
    return [
        *(Listed(name, listener) for name, listener in ours.items()),
        *(Listed(entry.name, entry.make(), entry.plugin) for entry in offered),
    ]


def build_method(
    config: RunConfig,
    sources: Sources,
    *,
    ranks: Ranks,
    host: PluginHost,
    observer: Observer,
    policy: Policy | None = None,
    sampler: Sampler | None = None,
) -> Method:
    """Load the model and return the method that the config names.

    Raises:
        UserError: a setting does not fit the environments or the model.
    """
    set_rate = config.optimizer.lr or 0.0
    if not config.lora.enabled and set_rate > HIGH_RATE:
        observer.warn(
            f"optimizer.lr={set_rate:g} suits LoRA and is high for full fine-tuning; "
            "leave it out, and the run takes one that suits the size of the model"
        )

    make_actor = partial(
        build_actor,
        config,
        sources,
        ranks=ranks,
        observer=observer,
        policy=policy,
        make_sampler=choose_sampler(config, host) if sampler is None else lambda *_: sampler,
    )

    method: Method = (
        Sft(config, sources, make_actor=make_actor, warn=observer.warn)
        if config.method == "sft"
        else Grpo(
            config,
            sources,
            make_actor=make_actor,
            estimator=_offered(host, "advantage.name", config.advantage.name, checked_estimator),
            surrogate=_offered(host, "loss.name", config.loss.name, checked_loss),
        )
    )
    _tell_slow_paths(method.actor, observer)
    if config.method == "grpo":
        _tell_overlap(method.actor, observer)
    return method


def _offered(
    host: PluginHost, key: str, name: str, check: Callable[[Callable[..., Any], str], Function]
) -> Function | None:
    """Return the function that a plugin offers under this name; None for a built-in one.

    Raises:
        UserError: there is no such function, or it takes other arguments.
    """
    if not name.startswith(PLUGIN):
        return None
    return check(host.load("algorithm", name.removeprefix(PLUGIN)), f"{key}={name}")


def _tell_slow_paths(actor: Actor, observer: Observer) -> None:
    """Say which ways to compute this model does not allow."""
    policy, trainer = actor.policy, actor.config.trainer
    if trainer.shared_prefix and not policy.shared_prefix:
        observer.say(f"this model cannot compute shared tokens once: {policy.training.value}")
    if trainer.shared_prefix and not policy.fills and policy.sampling is not DecodingWay.TREES:
        observer.say(f"sampling from this model is slow: {policy.sampling.value}")
    if trainer.logits_mb and not policy.logits_bytes and not policy.sharded:
        observer.say(
            "this model's logits are not just the output of its head, so they are computed "
            "all at once, which takes more memory"
        )


def _tell_overlap(actor: Actor, observer: Observer) -> None:
    """Say what an asynchronous pipeline overlaps with the updates."""
    staleness = actor.config.pipeline.max_staleness
    if not staleness:
        return
    overlap = (
        "sampling and verification overlap with updates"
        if actor.overlaps
        else f"verification overlaps with updates; the sampler {actor.config.sampler.name!r} cannot"
    )
    observer.say(f"pipeline.max_staleness={staleness}: {overlap}")
