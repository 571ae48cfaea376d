"""`grpo judge`: whether a judge agrees with pairs of texts of which one is known to be better."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.cli.output import fail, print_json, print_line, remark

if TYPE_CHECKING:
    from grpo_core.report.agreement import Agreement

judge_app = typer.Typer(no_args_is_help=True, help="Try judge models before they reward anything.")


@judge_app.callback()
def _group() -> None:
    """So that `check` keeps its name while it is the only command."""


@judge_app.command(epilog="Example: grpo judge check pairs.jsonl --judge scorer --set model=FOLDER")
def check(
    pairs: Annotated[
        Path,
        typer.Argument(
            help="JSONL: the texts `better` and `worse`, and context, suffix, reference or rubric.",
            readable=False,
            show_default=False,
        ),
    ],
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            metavar="NAME",
            help="Which judge; `grpo plugins` lists them.",
            show_default=False,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the judge; may be repeated."),
    ] = None,
    least: Annotated[
        float,
        typer.Option("--least", min=0.0, max=1.0, help="Share of pairs that it has to get right."),
    ] = 0.8,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for programs.")
    ] = False,
) -> None:
    """Judge both texts of each pair; exits with 1 if the judge prefers the better one too seldom, or could not judge some."""
    import asyncio

    from grpo_core.config.overrides import nested, split_setting
    from grpo_core.report.agreement import read_pairs

    chosen = nested(dict(map(split_setting, settings or [])))
    asked = read_pairs(pairs)
    remark(f"{len(asked)} pairs: opening the judge {judge}")
    found, fingerprint = asyncio.run(_checked(judge, chosen, asked))
    low, high = found.interval
    if as_json:
        counts = {
            "right": found.right,
            "tied": found.tied,
            "wrong": found.wrong,
            "failed": found.failed,
            "errors": list(found.errors),
        }
        print_json(
            {"share": found.share, "interval": [low, high], **counts, "fingerprint": fingerprint}
        )
    else:
        print_line(
            f"{found.right} right, {found.tied} tied, {found.wrong} wrong, {found.failed} could not be judged"
        )
        print_line(
            f"agreement {found.share:.1%} ({low:.1%} .. {high:.1%}); fingerprint {fingerprint}"
        )
    if found.failed:
        fail(
            f"{found.failed} of {len(asked)} pairs could not be judged: {found.errors[0]}", status=1
        )
    if found.share < least:
        fail(
            f"the judge prefers the better text in {found.share:.1%} of the pairs, and {least:.1%} are asked; do not train with it",
            status=1,
        )


async def _checked(name: str, settings: Mapping[str, Any], pairs: Any) -> tuple[Agreement, str]:
    from grpo_core.config.settings import JudgeConfig
    from grpo_core.plugins.host import PluginHost
    from grpo_core.plugins.services import open_judge
    from grpo_core.report.agreement import agreement

    judge = open_judge(PluginHost(), "NAME", JudgeConfig(name=name, settings=dict(settings)))
    try:
        return await agreement(judge, pairs), judge.fingerprint()
    finally:
        await judge.close()
