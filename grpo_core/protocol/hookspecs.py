"""Declare all hooks of the plugin system.

Each of them returns Specs of components. The plugin reference in environments/README.md is
generated from the docstrings in this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pluggy

from grpo_core.protocol.spec import Spec

PROJECT = "grpo"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Kind = Literal[
    "environment",
    "sandbox",
    "judge",
    "sampler",
    "executor",
    "endpoint",
    "algorithm",
    "recipe",
    "tracker",
    "listener",
    "checks",
]
OFFER_HOOKS: Mapping[Kind, str] = {
    "environment": "grpo_environments",
    "sandbox": "grpo_sandboxes",
    "judge": "grpo_judges",
    "sampler": "grpo_samplers",
    "executor": "grpo_executors",
    "endpoint": "grpo_endpoints",
    "algorithm": "grpo_algorithms",
    "recipe": "grpo_recipes",
    "tracker": "grpo_trackers",
    "listener": "grpo_listeners",
    "checks": "grpo_checks",
}


@hookspec
def grpo_environments() -> Sequence[Spec]:
    """Offer tasks with verifiers: targets are subclasses of `grpo_core.Environment`."""
    return ()


@hookspec
def grpo_sandboxes() -> Sequence[Spec]:
    """Offer places to run untrusted code: targets make a `grpo_core.Sandbox`."""
    return ()


@hookspec
def grpo_judges() -> Sequence[Spec]:
    """Offer models that score texts: targets make a `grpo_core.Judge`."""
    return ()


@hookspec
def grpo_samplers() -> Sequence[Spec]:
    """Offer engines that draw completions: targets make a `grpo_core.protocol.sampler.Sampler`.

    They take the sampler's settings (an instance of its Config, or None) and a `ModelToSample`.
    """
    return ()


@hookspec
def grpo_executors() -> Sequence[Spec]:
    """Offer places where verifiers run: targets make a `grpo_core.protocol.executor.Executor`.

    They take the executor's settings (an instance of its Config).
    """
    return ()


@hookspec
def grpo_endpoints() -> Sequence[Spec]:
    """Offer servers for programs that drive the policy: targets make an `Endpoint`.

    They take the endpoint's settings (an instance of its Config). `grpo_core.protocol.endpoint` has
    the protocol.
    """
    return ()


@hookspec
def grpo_algorithms() -> Sequence[Spec]:
    """Offer advantages and losses: targets are pure functions that the config names.

    `advantage.name=plugin:NAME` takes (rewards, config), `loss.name=plugin:NAME` takes
    (log_ratio_BT, logprob_BT, advantage_BT, config).
    """
    return ()


@hookspec
def grpo_recipes() -> Sequence[Spec]:
    """Offer settings that belong together: targets are mappings like those in a recipe file."""
    return ()


@hookspec
def grpo_trackers() -> Sequence[Spec]:
    """Offer places that show a run's metrics: targets are functions that make a tracker.

    They take the run folder. The tracker has the methods of accelerate's trackers: start,
    store_init_configuration, log and finish. All are called in one thread.
    """
    return ()


@hookspec
def grpo_listeners() -> Sequence[Spec]:
    """Offer listeners, which hear the events of a run: targets make a `Listener`.

    They take no arguments, and are called for the runs whose setting `plugins` names the plugin;
    those of the plugin `alarms` for every run with `alarms.enabled`. `grpo_core.protocol.events`
    has the events and what a listener may answer.
    """
    return ()


@hookspec
def grpo_checks() -> Sequence[Spec]:
    """Offer checks of environments: targets make a `grpo_core.api.verify.Checks`.

    `grpo_core.testing` uses those of the name "kit".
    """
    return ()
