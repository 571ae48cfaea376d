"""Every question the core asks of plugins. Offer hooks return Specs; event hooks only observe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pluggy

from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Group

PROJECT = "grpo"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Kind = Literal[
    "environment", "sandbox", "judge", "sampler", "executor", "algorithm", "recipe", "tracker"
]
Event = Literal["grpo_run_start", "grpo_verdicts", "grpo_step_end", "grpo_eval_end", "grpo_run_end"]

OFFER_HOOKS: Mapping[Kind, str] = {
    "environment": "grpo_environments",
    "sandbox": "grpo_sandboxes",
    "judge": "grpo_judges",
    "sampler": "grpo_samplers",
    "executor": "grpo_executors",
    "algorithm": "grpo_algorithms",
    "recipe": "grpo_recipes",
    "tracker": "grpo_trackers",
}


@hookspec
def grpo_environments() -> Sequence[Spec]:
    """Tasks with verifiers: targets are subclasses of `grpo_core.Environment`."""
    return ()


@hookspec
def grpo_sandboxes() -> Sequence[Spec]:
    """Places to run code nobody trusts: targets make a `grpo_core.Sandbox`."""
    return ()


@hookspec
def grpo_judges() -> Sequence[Spec]:
    """Models that score texts: targets make a `grpo_core.Judge`."""
    return ()


@hookspec
def grpo_samplers() -> Sequence[Spec]:
    """Generation engines: targets make a Sampler."""
    return ()


@hookspec
def grpo_executors() -> Sequence[Spec]:
    """Ways to spread verification over processes or machines."""
    return ()


@hookspec
def grpo_algorithms() -> Sequence[Spec]:
    """Advantages and losses: targets are pure functions that the config chooses by name."""
    return ()


@hookspec
def grpo_recipes() -> Sequence[Spec]:
    """Settings that go together: targets are mappings, as a recipe file holds them."""
    return ()


@hookspec
def grpo_trackers() -> Sequence[Spec]:
    """Places that show a run's metrics: targets are functions of the run folder that make a tracker with the methods of accelerate's
    (start, store_init_configuration, log, finish)."""
    return ()


@hookspec
def grpo_run_start(run_dir: Path, config: Mapping[str, Any]) -> None:
    """The run folder exists and the first step is about to begin; `config` is what config.json holds."""


@hookspec
def grpo_verdicts(run_dir: Path, step: int, groups: Sequence[Group[Any]]) -> None:
    """All attempts of a step have their verdicts."""


@hookspec
def grpo_step_end(run_dir: Path, step: int, metrics: Mapping[str, float]) -> None:
    """The weights are updated; `metrics` is the line of metrics.jsonl."""


@hookspec
def grpo_eval_end(run_dir: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Held-out tasks were evaluated."""


@hookspec
def grpo_run_end(run_dir: Path, step: int, reason: str) -> None:
    """The run is over after `step` steps; reason: "finished", "interrupted" or what stopped it."""
