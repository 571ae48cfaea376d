"""Implement `grpo run`, which trains a model on environments with GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from grpo_core.cli.given import Sets, takes
from grpo_core.cli.options import (
    Allow,
    Data,
    Device,
    Dtype,
    Envs,
    Epochs,
    EvalEvery,
    From,
    LearningRate,
    Level,
    MaxNewTokens,
    Model,
    Out,
    Processes,
    Recipes,
    Resume,
    Rewards,
    Seed,
    Settings,
    Trust,
)
from grpo_core.cli.training import begin_or_continue

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Hold the options of `grpo run`, in the order of its help page."""

    env: Envs = None
    data: Data = None
    reward: Rewards = None
    model: Model = None
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Training steps. \\[default: 150]"),
        Sets("steps"),
    ] = None
    epochs: Epochs = None
    group_size: Annotated[
        int | None,
        typer.Option("--group-size", help="Completions per prompt, at least 2. \\[default: 8]"),
        Sets("group_size"),
    ] = None
    prompts_per_step: Annotated[
        int | None,
        typer.Option("--prompts-per-step", help="Prompts per step. \\[default: 8]"),
        Sets("prompts_per_step"),
    ] = None
    max_new_tokens: MaxNewTokens = None
    lr: LearningRate = None
    beta: Annotated[
        float | None,
        typer.Option(
            "--beta",
            help="Weight of the KL to the reference policy; 0 disables it. "
            "\\[default: by the model's size]",
        ),
        Sets("kl.beta"),
    ] = None
    level: Level = None
    seed: Seed = None
    device: Device = None
    dtype: Dtype = None
    out: Out = None
    recipe: Recipes = None
    settings: Settings = None
    resume: Resume = None
    allow: Allow = None
    start_from: From = None
    eval_every: EvalEvery = None
    processes: Processes = None
    trust: Trust = False


@app.command(
    epilog="Example: grpo run --env arithmetic --steps 150 --set kl.beta=0.02 --out runs/first"
)
@takes(RunOptions)
def run(options: RunOptions) -> None:
    """Train a model on an environment with GRPO.

    Tasks, completions, verdicts and metrics are written to the run folder, the adapter to final/
    in it. Ctrl-C finishes the current step, saves and ends; a second Ctrl-C ends at once.

    The default is not plain GRPO: it normalises each reward part by itself (gdpo), with a KL that
    has the gradient of the KL (k3_st). --recipe grpo gives plain GRPO.
    """
    begin_or_continue("grpo", options, data=options.data, rewards=options.reward or [])
