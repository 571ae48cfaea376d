"""Build the parts of a run from its config, in functions that return complete objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import PLUGIN
from grpo_core.engine.models.device import pick_device
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import choose_sampler
from grpo_core.engine.policy.ways import DecodingWay
from grpo_core.engine.ranks import Ranks
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.sampler import Sampler
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer, SafeObserver
from grpo_core.train.actor import Actor, build_actor
from grpo_core.train.algorithm.checked import checked_estimator, checked_loss
from grpo_core.train.grpo import Grpo
from grpo_core.train.run.method import Method
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
        trains=True,
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
