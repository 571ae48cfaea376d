"""Implement `grpo generate`, which asks a trained run, or any model, a question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_core.calls.deadline import wait_for
from grpo_core.cli.environment import messages_before_question
from grpo_core.cli.imports import needs_training
from grpo_core.cli.measuring import Remarks
from grpo_core.cli.options import Trust
from grpo_core.cli.output import print_text, remark
from grpo_core.cli.run_config import finished_run
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message
from grpo_core.runs.folder import newest_run
from grpo_core.runs.trust import Layer, checked_config
from grpo_core.verify.sources import Sources

app = typer.Typer()

RUNS = Path("runs")
"""The folder in which the newest finished run is looked for."""
_USED = ("environment", "mixture", "env", "model")
"""The sections and settings of a run that an answer depends on."""


@app.command(epilog='Example: grpo generate "(4 - 9) + 6"')
def generate(
    question: Annotated[
        str,
        typer.Argument(
            help="The question, in the form that the environment uses.", show_default=False
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="Run folder. \\[default: the newest finished run in runs/]",
            readable=False,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="A model instead of a run: hub id, folder or alias.", show_default=False
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            min=1,
            help="Maximum tokens of the answer. \\[default: 256, or the run's]",
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option("--temperature", min=0.0, help="Sampling temperature; 0 is greedy."),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Random seed of sampling at temperatures above 0.")
    ] = 0,
    trust: Trust = False,
) -> None:
    """Answer a question with a trained run or a model.

    A run gets the question as in training: with its environment's system prompt and examples.
    """
    if run is not None and model is not None:
        raise ConfigError("--run and --model exclude each other; give one of them")
    folder = None if model is not None else run or _find_newest_run()
    config = _read_config(folder, model, trust=trust)
    prompt = (Message("user", question),) if folder is None else _make_prompt(config, question)
    budget = max_new_tokens or config.sampling.max_new_tokens or 256
    print_text(_answer(config, prompt, budget=budget, temperature=temperature, seed=seed))


def _find_newest_run() -> Path:
    run = newest_run(RUNS)
    if run is None:
        raise ConfigError(
            f"no finished run was found in {RUNS}/; name one with --run, or a model with --model"
        )
    return run


def _read_config(folder: Path | None, model: str | None, *, trust: bool) -> RunConfig:
    """Return the run's settings with its trained model in place of the model it started from.

    Args:
        folder: the run folder; None for a config without an environment.
        model: the model to ask; used only if `folder` is None.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: the run is not finished or not trusted.
    """
    if folder is None:
        return build_config([{"environment": "none", "model": {"name": model}}])
    stored = finished_run(folder).config()
    final = {"model": {"name": str(folder / "final"), "revision": None}}
    return checked_config([Layer(stored, folder), Layer(final)], trust=trust, used=_USED)


def _make_prompt(config: RunConfig, question: str) -> str | tuple[Message, ...]:
    """Return the prompt of a task of the run's environment, with its question replaced.

    Raises:
        ConfigError: the environment cannot be used.
    """
    advice = "use the model without it: --model RUN/final"
    _, before = messages_before_question(config, advice=advice)
    return question if before is None else (*before, Message("user", question))


def _answer(
    config: RunConfig,
    prompt: str | tuple[Message, ...],
    *,
    budget: int,
    temperature: float,
    seed: int,
) -> str:
    remark(f"loading {config.model.name}")
    with needs_training("grpo generate"):
        from grpo_core.engine.policy.choose import load_policy
        from grpo_core.train.actor import answer, build_actor
        from grpo_core.train.build import find_ranks
    # The built-in sampler: a single answer is not worth the start of another engine.
    remarks = Remarks()
    policy = load_policy(config, need_reference=False, need_adapter=False, say=remarks.say)
    ranks = find_ranks(config)
    actor = build_actor(config, Sources([]), ranks=ranks, observer=remarks, policy=policy)
    remark(f"writing an answer of at most {budget} tokens")
    return wait_for(
        answer(
            actor,
            prompt,
            budget=budget,
            params=config.sampling.params(temperature),
            seed=seed,
        )
    )
