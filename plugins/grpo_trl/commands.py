"""Implement `grpo env export`, which writes a script that trains with another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_core import UnknownNameError
from grpo_core.api.plugins import PluginHost
from grpo_core.api.protocol import names_file
from grpo_core.api.runs import write_whole, writing
from grpo_core.api.settings import nested, split_setting
from grpo_core.cli.environment import Level, Name, Seed, refuse_other_settings
from grpo_core.cli.output import new_file, print_text, prints_to_stderr, remark
from grpo_trl.opened import OpenEnvironment, opened
from grpo_trl.script import training_script

app = typer.Typer()
_TRAINERS = ("trl",)
_SECTIONS = ("env", "weights", "verify", "sandbox", "judges")


@app.command(epilog="Example: grpo env export arithmetic --to trl --out train.py")
def export(
    name: Name,
    to: Annotated[
        str,
        typer.Option("--to", help="The trainer: trl (its GRPOTrainer).", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The script's file. \\[default: print it]",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    level: Level = 0.0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="env.KEY=VALUE",
            help="Change a setting of the environment (or of weights., judges., sandbox. or "
            "verify.); may be repeated.",
        ),
    ] = None,
) -> None:
    """Write a script that trains on an environment with another trainer, TRL's GRPOTrainer."""
    if to not in _TRAINERS:
        raise UnknownNameError("trainer", to, _TRAINERS, hint=f"Known: {', '.join(_TRAINERS)}")
    out = new_file(out, "--out")
    refuse_other_settings(_SECTIONS, settings or [])
    chosen: dict[str, Any] = {
        **nested(dict(map(split_setting, settings or []))),
        **({"seed": seed} if seed else {}),
        **({"level": level} if level else {}),
    }
    with prints_to_stderr(), opened(name, chosen) as env:
        script = training_script(env, chosen, requirements=_requirements(name, env))
    if out is None:
        print_text(script.rstrip("\n"))
        return
    with writing(out, then="export again"):
        write_whole(out, script)
    remark(f"the script is in {out}; its first lines say how to run it")


def _requirements(name: str, env: OpenEnvironment) -> list[str]:
    """Return what pip has to install for an environment, such as "grpo-core[sandbox]"."""
    extras: dict[str, set[str]] = {"grpo-core": {*env.env.needs}}
    if not names_file(name):
        spec = PluginHost().get("environment", name)
        extras.setdefault(spec.distribution, set()).update({spec.extra} if spec.extra else ())
    return [
        distribution + (f"[{','.join(sorted(names))}]" if names else "")
        for distribution, names in extras.items()
    ]
