"""Implement `grpo sft`, which fine-tunes a model on given answers before `grpo run --model RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from grpo_core.cli.given import Sets, takes
from grpo_core.cli.options import (
    Allow,
    Device,
    Dtype,
    Envs,
    Epochs,
    EvalEvery,
    From,
    LearningRate,
    Level,
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
class SftOptions:
    """Hold the options of `grpo sft`, in the order of its help page."""

    env: Envs = None
    reward: Rewards = None
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="JSONL of examples with prompt and completion, or messages, "
            "as `grpo export` writes them. \\[default: the environment's references]",
            show_default=False,
        ),
        Sets("sft.data"),
    ] = None
    model: Model = None
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Training steps. \\[default: 150; with --data: 3 epochs]"),
        Sets("steps"),
    ] = None
    epochs: Epochs = None
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", help="Examples per step. \\[default: 32]"),
        Sets("sft.batch_size"),
    ] = None
    lr: LearningRate = None
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
    epilog="Example: grpo sft --env fizzbuzz --steps 50 --out runs/warm "
    "&& grpo run --env fizzbuzz --model runs/warm"
)
@takes(SftOptions)
def sft(options: SftOptions) -> None:
    """Fine-tune a model on given answers before GRPO (supervised fine-tuning, a warm start).

    The answers are the reference answers of an environment, or the examples of a file.

    Held-out tasks of the environment are scored before and after, as in `grpo run`, which continues
    from the result with --model RUN. Checkpoints, --resume and Ctrl-C work as in `grpo run`.
    Settings that only GRPO uses, such as kl and group_size, are ignored.
    """
    begin_or_continue("sft", options, rewards=options.reward or [])
