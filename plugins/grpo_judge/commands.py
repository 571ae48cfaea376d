"""Implement `grpo judge check`, which tests a judge on pairs of texts with a known better one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_core.api.plugins import PluginHost
from grpo_core.api.settings import JudgeConfig, nested, split_setting
from grpo_core.cli.given import takes
from grpo_core.cli.output import fail, print_json, print_line, remark
from grpo_core.plugins.services import open_judge
from grpo_judge.agreement import Agreement, agreement, read_pairs

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class JudgeCheckOptions:
    """Hold the options of `grpo judge check`, in the order of its help page."""

    pairs: Annotated[
        Path,
        typer.Argument(
            help="JSONL with the texts `better` and `worse`, and optionally context, suffix, "
            "reference or rubric.",
            readable=False,
            show_default=False,
        ),
    ]
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            metavar="NAME",
            help="Which judge; `grpo plugins` lists them.",
            show_default=False,
        ),
    ]
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the judge; may be repeated."),
    ] = None
    least: Annotated[
        float,
        typer.Option(
            "--least", min=0.0, max=1.0, help="Minimum share of pairs that it must get right."
        ),
    ] = 0.8
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for programs.")] = (
        False
    )


@app.command(epilog="Example: grpo judge check pairs.jsonl --judge scorer --set model=FOLDER")
@takes(JudgeCheckOptions)
def check(options: JudgeCheckOptions) -> None:
    """Score both texts of each pair, and count how often the better one gets the higher score.

    Exits with 1 if that share is too small, or if a pair could not be judged.
    """
    text_pairs = read_pairs(options.pairs)
    remark(f"{len(text_pairs)} pairs: opening the judge {options.judge}")
    result, fingerprint = asyncio.run(
        _measure_agreement(
            options.judge, nested(dict(map(split_setting, options.settings or []))), text_pairs
        )
    )
    low, high = result.interval
    if options.as_json:
        print_json(
            {
                "share": result.share,
                "interval": [low, high],
                "right": result.right,
                "tied": result.tied,
                "wrong": result.wrong,
                "failed": result.failed,
                "errors": list(result.errors),
                "fingerprint": fingerprint,
            }
        )
    else:
        print_line(
            f"{result.right} right, {result.tied} tied, {result.wrong} wrong, "
            f"{result.failed} could not be judged"
        )
        print_line(
            f"agreement {result.share:.1%} ({low:.1%} .. {high:.1%}); fingerprint {fingerprint}"
        )
    if result.failed:
        fail(
            f"{result.failed} of {len(text_pairs)} pairs could not be judged: {result.errors[0]}",
            status=1,
        )
    if result.share < options.least:
        fail(
            f"the judge prefers the better text in {result.share:.1%} of the pairs, "
            f"less than the required {options.least:.1%}; do not train with it",
            status=1,
        )


async def _measure_agreement(
    name: str, settings: Mapping[str, Any], pairs: Any
) -> tuple[Agreement, str]:
    """Return the agreement of the judge with the pairs, and the judge's fingerprint."""
    judge = open_judge(PluginHost(), "NAME", JudgeConfig(name=name, settings=dict(settings)))
    try:
        return await agreement(judge, pairs), judge.fingerprint()
    finally:
        await judge.close()
