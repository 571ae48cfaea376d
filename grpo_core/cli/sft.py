"""Implement `grpo sft`, which fine-tunes a model on given answers before `grpo run --model RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    Seed,
    Settings,
    Trust,
)
from grpo_core.cli.training import begin_or_continue

app = typer.Typer()


@app.command(
    epilog="Example: grpo sft --env fizzbuzz --steps 50 --out runs/warm "
    "&& grpo run --env fizzbuzz --model runs/warm"
)
def sft(
    env: Envs = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="JSONL of examples with prompt and completion, or messages, "
            "as `grpo export` writes them. \\[default: the environment's references]",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Training steps. \\[default: 150; with --data: 3 epochs]"),
    ] = None,
    epochs: Epochs = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Examples per step. \\[default: 32]")
    ] = None,
    lr: LearningRate = None,
    level: Level = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    recipe: Recipes = None,
    settings: Settings = None,
    resume: Resume = None,
    allow: Allow = None,
    start_from: From = None,
    eval_every: EvalEvery = None,
    processes: Processes = None,
    trust: Trust = False,
) -> None:
    """Fine-tune a model on given answers before GRPO (supervised fine-tuning, a warm start).

    The answers are the reference answers of an environment, or the examples of a file.

    Held-out tasks of the environment are scored before and after, as in `grpo run`, which continues
    from the result with --model RUN. Checkpoints, --resume and Ctrl-C work as in `grpo run`.
    Settings that only GRPO uses, such as kl and group_size, are ignored.
    """
    begin_or_continue(
        "sft",
        {
            "sft.data": None if data is None else str(data.expanduser().absolute()),
            "model.name": model,
            "steps": steps,
            "epochs": epochs,
            "sft.batch_size": batch_size,
            "optimizer.lr": lr,
            "level": level,
            "seed": seed,
            "model.device": device,
            "model.dtype": dtype,
            "eval.every": eval_every,
        },
        env=env,
        recipe=recipe,
        settings=settings,
        out=out,
        resume=resume,
        allow=allow,
        processes=processes,
        trust=trust,
        start_from=start_from,
    )
