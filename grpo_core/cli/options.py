"""Define the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_core.cli.completion import environment_names, set_values
from grpo_core.cli.given import Sets

Envs = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="Environment: a name that `grpo envs` lists, or FILE.py:CLASS. "
        "Repeat it for a mixture.",
        show_default=False,
        autocompletion=environment_names,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Train on your own rows instead of --env: *.jsonl, *.json, *.csv, *.parquet or a "
        "folder of `datasets`.",
        show_default=False,
    ),
]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        help="With rows: exact, number, choice, math, code, judge, ..., or FILE.py:FUNCTION. "
        "Repeat it for several parts.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Hub id (@REVISION is optional), folder, run or alias. \\[default: smollm2-135m]",
    ),
    Sets("model.name"),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        "--epochs", help="Passes over an environment with finitely many tasks, instead of --steps."
    ),
    Sets("epochs"),
]
LearningRate = Annotated[
    float | None,
    typer.Option("--lr", help="Peak learning rate. \\[default: by the model's size]"),
    Sets("optimizer.lr"),
]
Level = Annotated[
    float | None,
    typer.Option("--level", help="Difficulty of the tasks, from 0 to 1. \\[default: 0]"),
    Sets("level"),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Random seed of tasks, sampling and initial adapter. \\[default: 0]"
    ),
    Sets("seed"),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option("--device", help="Device to compute on. \\[default: auto]"),
    Sets("model.device"),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "float64"] | None,
    typer.Option(
        "--dtype",
        help="Data type of the weights; auto selects bfloat16 on hardware that computes in it. "
        "\\[default: auto]",
    ),
    Sets("model.dtype"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Run folder to create. \\[default: runs/ENV-DATE-TIME]",
        readable=False,
        show_default=False,
    ),
]
Recipes = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        "--config",
        help="Settings from a TOML or YAML file, a run's config.json or a plugin's recipe; "
        "may be repeated.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, such as kl.estimator=k1; may be repeated.",
        autocompletion=set_values,
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
        help="Maximum tokens of one completion. \\[default: what the environment recommends]",
    ),
    Sets("sampling.max_new_tokens"),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NAME",
        help="With --resume: a setting or an environment that may have changed, "
        "or a log that may be damaged; may be repeated.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="CHECKPOINT",
        help="With --resume: an older checkpoint, such as step-20, or start; "
        "everything after it is discarded.",
        show_default="the newest",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Use a run folder or recipe although it names code, files or addresses "
        "that you have not used on this machine.",
    ),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(
        "--eval-every",
        help="Evaluate on held-out tasks every N steps. \\[default: before and after the run]",
    ),
    Sets("eval.every"),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="Processes on this machine that share the work, one for each GPU. \\[default: 1]",
    ),
]
Tasks = Annotated[
    int,
    typer.Option("--tasks", min=1, help="Held-out tasks of each environment at each level."),
]
Samples = Annotated[
    int,
    typer.Option("--samples", min=1, help="Completions per task; also the largest k of pass@k."),
]
Levels = Annotated[
    list[float] | None,
    typer.Option(
        "--level",
        min=0.0,
        max=1.0,
        help="Difficulty, from 0 to 1; may be repeated. \\[default: 0, or the run's]",
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        help="Sampling temperature; 0 is greedy. \\[default: 1, or the run's]",
    ),
    Sets("eval.temperature"),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        min=0.0,
        max=1.0,
        help="Draw from the most likely tokens with this much probability. "
        "\\[default: 1, or the run's]",
    ),
    Sets("sampling.top_p"),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="A text that ends a completion; may be repeated."),
    Sets("sampling.stop"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
