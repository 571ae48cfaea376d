"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Envs = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="Environment to train on: a name that `grpo envs` lists, or FILE.py:CLASS; several make a mixture.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Hub id (with @revision), folder, run or alias. [default: smollm2-135m]"
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option("--epochs", help="Passes over an environment of finite size, instead of --steps."),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="Peak learning rate. [default: 3e-4]")
]
Level = Annotated[
    float | None, typer.Option("--level", help="Difficulty of the tasks, from 0 to 1. [default: 0]")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Decides tasks, draws and initial adapter. [default: 0]"),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option("--device", help="Where to compute. [default: auto]"),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "float64"] | None,
    typer.Option(
        "--dtype",
        help="Type of the weights; auto takes bfloat16 where the hardware computes in it. [default: auto]",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Run folder to make. [default: runs/ENV-DATE-TIME]",
        readable=False,
        show_default=False,
    ),
]
Recipes = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        help="Settings from a TOML file, a run's config.json or a plugin's recipe; may be repeated.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, such as kl.estimator=k1; may be repeated."
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Continue the run in this folder, with its settings.",
        readable=False,
        show_default=False,
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        help="Most tokens of one completion. [default: what the environment recommends]",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NAME",
        help="With --resume: a setting or an environment that may have changed, or a log that may be damaged; may be repeated.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="CHECKPOINT",
        help="With --resume: an older checkpoint, such as step-20, or start; what came after it is given up.",
        show_default="the newest",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Use a run folder although it names code or addresses that you have not used on this machine.",
    ),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(
        "--eval-every",
        help="Evaluate on held-out tasks every so many steps. [default: before and after]",
    ),
]
