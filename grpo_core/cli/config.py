"""Implement `grpo config`, which shows, explains and describes the settings of a run."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from pydantic import PydanticUserError, TypeAdapter

from grpo_core.calls.printable import printable_json
from grpo_core.cli.output import print_json, print_line, prints_to_stderr
from grpo_core.cli.run_config import read_config
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import find_setting, flat
from grpo_core.config.sizes import DEVICE_SETTINGS, OPTIONS
from grpo_core.plugins.environments import environment_class
from grpo_core.plugins.explained import settings_of_config
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, did_you_mean

app = typer.Typer()

CHOSEN_LATER = {
    **dict.fromkeys(OPTIONS, "by the model's size"),
    **dict.fromkeys(DEVICE_SETTINGS, "by the device"),
}
"""How `grpo config show` describes the defaults that are chosen once the model is loaded."""

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
        default = CHOSEN_LATER.get(key) or _to_json(defaults.get(key))
        note = f"  # default: {default}" if changed else ""
        if key in CHOSEN_LATER and value is None:
            note = f"  # {CHOSEN_LATER[key]}"
        print_line(f"{key} = {_to_json(value)}{note}", bold=changed)


@app.command(epilog="Example: grpo config explain kl.beta")
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A setting such as kl.beta, or a section such as kl.", show_default=False
        ),
    ],
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Explain the settings env.KEY of this environment.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Explain a setting: its meaning, the values that it takes and its default.

    The settings of an environment are those of its Config: `config explain env --env NAME` lists
    all of them.
    """
    if key.partition(".")[0] == "env" and env is not None:
        _explain_environment(key, env)
        return
    if key.startswith("env."):
        raise ConfigError(
            f"{key!r} is a setting of an environment; name it, as in "
            f"`grpo config explain {key} --env dataset`"
        )
    for name, info in find_setting(key):
        default = (
            "without a default"
            if info.is_required()
            else f"default {_to_json(info.get_default(call_default_factory=True))}"
        )
        annotation = info.rebuild_annotation()
        print_line(f"  {_format_type(annotation)}, {default}", lead=name, bold=True)
        print_line(f"  {' '.join((info.description or '').split())}")


def _explain_environment(key: str, name: str) -> None:
    """Explain one setting of an environment, or all of them if `key` is "env".

    Raises:
        ConfigError: the environment has no such setting.
    """
    with prints_to_stderr():
        config_class = environment_class(PluginHost(), name).Config
    every = list(settings_of_config(config_class, "env"))
    settings = [setting for setting in every if f"{setting.key}.".startswith(f"{key}.")]
    if not every:
        print_line(f"{name} has no settings")
    elif not settings:
        known = [setting.key for setting in every]
        raise ConfigError(
            f"{key!r} is not a setting of {name!r}{did_you_mean(key, known)} "
            f"It has {', '.join(known)}"
        )
    for setting in settings:
        has_default = setting.default is not dataclasses.MISSING
        default = f"default {_to_json(setting.default)}" if has_default else "without a default"
        print_line(f"  {_format_type(setting.hint)}, {default}", lead=setting.key, bold=True)
        print_line(f"  {setting.meaning or '(its Config does not say what it does)'}")


@app.command(epilog="Example: grpo config schema > run.schema.json")
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check them."""
    print_json(RunConfig.model_json_schema())


def _to_json(value: Any) -> str:
    return printable_json(json.dumps(value, ensure_ascii=False, default=str))


def _format_type(annotation: Any) -> str:
    """Return the type and bounds of a setting in short form, Literal['a', 'b'] as "a | b"."""
    try:
        schema = TypeAdapter(annotation).json_schema()
    except PydanticUserError:  # a type of the author's own, which JSON does not know
        return getattr(annotation, "__name__", str(annotation))
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
