"""Implement `grpo config`, which shows, explains and describes the settings of a run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from grpo_core.calls.printable import printable_json
from grpo_core.cli.output import print_json, print_line
from grpo_core.cli.run_config import read_config
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import find_setting, flat
from grpo_core.config.sizes import OPTIONS

app = typer.Typer()

BY_SIZE = "by the model's size"
"""How `grpo config show` describes a default that is chosen once the model is loaded."""

Recipes = Annotated[
    list[str] | None, typer.Option("--recipe", help="As for `grpo run`; may be repeated.")
]
Envs = Annotated[list[str] | None, typer.Option("--env", help="As for `grpo run`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="As for `grpo run`; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as config.json holds it.")]


@app.command(epilog="Example: grpo config show --env arithmetic --set kl.beta=0")
def show(
    env: Envs = None, recipe: Recipes = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print every setting that `grpo run` would use, with the default if it differs."""
    names = env or (
        []
        if recipe or any(text.startswith(("environment", "mixture")) for text in settings or [])
        else [""]
    )
    config = read_config(names, recipe or [], {}, settings or [])
    if as_json:
        print_json(config.model_dump(mode="json"))
        return
    defaults = flat(RunConfig(environment=""))
    for key, value in flat(config).items():
        changed = key in defaults and defaults[key] != value
        default = BY_SIZE if key in OPTIONS else _to_json(defaults.get(key))
        note = f"  # default: {default}" if changed else ""
        if key in OPTIONS and value is None:
            note = f"  # {BY_SIZE}"
        print_line(f"{key} = {_to_json(value)}{note}", bold=changed)


@app.command(epilog="Example: grpo config explain kl.beta")
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A setting such as kl.beta, or a section such as kl.", show_default=False
        ),
    ],
) -> None:
    """Explain a setting: its meaning, the values that it takes and its default."""
    for name, info in find_setting(key):
        default = _to_json(info.get_default(call_default_factory=True))
        print_line(f"  {_format_type(info)}, default {default}", lead=name, bold=True)
        print_line(f"  {' '.join((info.description or '').split())}")


@app.command(epilog="Example: grpo config schema > run.schema.json")
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check them."""
    print_json(RunConfig.model_json_schema())


def _to_json(value: Any) -> str:
    return printable_json(json.dumps(value, ensure_ascii=False, default=str))


def _format_type(info: FieldInfo) -> str:
    """Return the type and bounds of a setting in short form, Literal['a', 'b'] as "a | b"."""
    schema = TypeAdapter(info.rebuild_annotation()).json_schema()
    alternatives = schema.get("anyOf", [schema])
    names = [
        " | ".join(map(str, alternative["enum"]))
        if "enum" in alternative
        else _type_name(alternative)
        for alternative in alternatives
    ]
    bounds = [
        f"{sign} {alternative[name]:g}"
        for alternative in alternatives
        for name, sign in _BOUNDS.items()
        if name in alternative
    ]
    return " or ".join("unset" if name == "null" else name for name in names) + "".join(
        f", {bound}" for bound in bounds
    )


def _type_name(schema: dict[str, Any]) -> str:
    """Return the example, the constant or the type of a JSON schema, whichever it has first."""
    examples = schema.get("examples") or [schema.get("const", schema.get("type", "any"))]
    return str(examples[0])


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
