"""`grpo config`: what a run would be set to, what a setting means, and all of them as a JSON schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.calls.printable import printable_json
from grpo_core.cli.output import print_json, print_line

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

config_app = typer.Typer(
    no_args_is_help=True, help="Show, explain and describe the settings of a run."
)

Recipes = Annotated[
    list[str] | None, typer.Option("--recipe", help="As for `grpo run`; may be repeated.")
]
Envs = Annotated[list[str] | None, typer.Option("--env", help="As for `grpo run`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="As for `grpo run`; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as config.json holds it.")]


@config_app.command(epilog="Example: grpo config show --env arithmetic --set kl.beta=0")
def show(
    env: Envs = None, recipe: Recipes = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print every setting that `grpo run` would use, and the default where it differs."""
    from grpo_core.cli.training import read_config
    from grpo_core.config.overrides import flat

    names = env or (
        []
        if recipe or any(text.startswith(("environment", "mixture")) for text in settings or [])
        else [""]
    )
    config = read_config(names, recipe or [], {}, settings or [])
    if as_json:
        print_json(config.model_dump(mode="json"))
        return
    defaults = _defaults()
    for key, value in flat(config).items():
        changed = key in defaults and defaults[key] != value
        note = f"  # default: {_text(defaults[key])}" if changed else ""
        print_line(f"{key} = {_text(value)}{note}", bold=changed)


@config_app.command(epilog="Example: grpo config explain kl.beta")
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A setting such as kl.beta, or a section such as kl.", show_default=False
        ),
    ],
) -> None:
    """Say what a setting means, which values it takes and what its default is."""
    from grpo_core.config.overrides import find_setting

    for name, info in find_setting(key):
        print_line(
            f"  {_type(info)}, default {_text(info.get_default(call_default_factory=True))}",
            lead=name,
            bold=True,
        )
        print_line(f"  {' '.join((info.description or '').split())}")


@config_app.command(epilog="Example: grpo config schema > run.schema.json")
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check them."""
    from grpo_core.config.config import RunConfig

    print_json(RunConfig.model_json_schema())


def _defaults() -> dict[str, Any]:
    from grpo_core.config.config import RunConfig
    from grpo_core.config.overrides import flat

    return flat(RunConfig(environment=""))


def _text(value: Any) -> str:
    return printable_json(json.dumps(value, ensure_ascii=False, default=str))


def _type(info: FieldInfo) -> str:
    """The type as a person writes it: Literal['a', 'b'] as a | b."""
    from pydantic import TypeAdapter

    found = TypeAdapter(info.rebuild_annotation()).json_schema()
    kinds = found.get("anyOf", [found])
    names = [
        " | ".join(map(str, kind["enum"])) if "enum" in kind else _kind(kind) for kind in kinds
    ]
    bounds = [
        f"{sign} {kind[name]:g}" for kind in kinds for name, sign in _BOUNDS.items() if name in kind
    ]
    return " or ".join("unset" if name == "null" else name for name in names) + "".join(
        f", {bound}" for bound in bounds
    )


def _kind(kind: dict[str, Any]) -> str:
    examples = kind.get("examples") or [kind.get("const", kind.get("type", "any"))]
    return str(examples[0])


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
