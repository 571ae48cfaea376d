"""Implement `grpo config`, which shows, explains and describes the settings of a run."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from pydantic import PydanticUserError, TypeAdapter

from grpo_core.calls.printable import printable_json
from grpo_core.cli.completion import environment_names, set_values, setting_keys
from grpo_core.cli.output import print_json, print_line, prints_to_stderr, remark
from grpo_core.cli.run_config import read_config
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import find_setting, flat
from grpo_core.config.sizes import DEVICE_SETTINGS, OPTIONS
from grpo_core.plugins.environments import environment_class
from grpo_core.plugins.environments import settings_of as check_settings
from grpo_core.plugins.explained import settings_of_config
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, did_you_mean
from grpo_core.protocol.hookspecs import Kind
from grpo_core.verify.sources import Sources

app = typer.Typer()

CHOSEN_LATER = {
    **dict.fromkeys(OPTIONS, "by the model's size"),
    **dict.fromkeys(DEVICE_SETTINGS, "by the device"),
}
"""How `grpo config show` describes the defaults that are chosen once the model is loaded."""

_KINDS: Mapping[str, Kind] = {
    "judges.NAME": "judge",
    "sandbox": "sandbox",
    "sampler": "sampler",
    "verify.executor": "executor",
    "endpoint": "endpoint",
}
"""The kind of component that a section of a config names."""
_PLUGIN_TABLE = re.compile(r"(judges\.[^.]+|sandbox|sampler|verify\.executor|endpoint)\.settings\.")
Recipes = Annotated[
    list[str] | None,
    typer.Option("--recipe", "--config", help="As for `grpo run`; may be repeated."),
]
Envs = Annotated[
    list[str] | None,
    typer.Option("--env", help="As for `grpo run`.", autocompletion=environment_names),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="As for `grpo run`; may be repeated.",
        autocompletion=set_values,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as config.json holds it.")]


@app.command(epilog="Example: grpo config show --env arithmetic --set kl.beta=0")
def show(
    env: Envs = None, recipe: Recipes = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print every setting that `grpo run` would use, with the default if it differs.

    Names and values of settings that `grpo run` refuses are refused here, too.
    """
    names = env or (
        []
        if recipe or any(text.startswith(("environment", "mixture")) for text in settings or [])
        else [""]
    )
    config = read_config(names, recipe or [], {}, settings or [], asks=False)
    if names != [""]:
        _check_environments(config, names, recipe or [], settings or [])
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


def _check_environments(
    config: RunConfig, names: Sequence[str], recipes: Sequence[str], settings: Sequence[str]
) -> None:
    """Check the settings of the environments as a run does.

    This runs their code, so a recipe of somebody else that names such code is shown unchecked. An
    environment is made only where weights are set, as it alone knows its reward parts: others
    would fetch their data only to be looked at.

    Raises:
        UserError: a run would be refused.
    """
    try:
        read_config(names, recipes, {}, settings)
    except ConfigError as error:
        remark(f"not checked, as this would run code of the recipe: {error}")
        return
    host = PluginHost()
    with prints_to_stderr():
        for name, member in config.members().items():
            check_settings(environment_class(host, name), name, member.env, prefix="env")
        if any(member.weights for member in config.members().values()):
            Sources.of(config, {}, host=host)


@app.command(epilog="Example: grpo config explain kl.beta")
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A setting such as kl.beta, or a section such as kl.",
            show_default=False,
            autocompletion=setting_keys,
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
    plugin: Annotated[
        str | None,
        typer.Option(
            "--plugin",
            metavar="NAME",
            help="Explain the settings of this judge, sandbox, sampler, executor or endpoint.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Explain a setting: its meaning, the values that it takes and its default.

    The settings of an environment or plugin are those of its Config: `config explain env --env
    NAME` and `config explain judges.default.settings --plugin llm` list all of them.
    """
    if key.partition(".")[0] == "env" and env is not None:
        with prints_to_stderr():
            config_class = environment_class(PluginHost(), env).Config
        _explain_config(key, config_class, env, prefix="env")
        return
    if plugin is not None:
        _explain_plugin(key, plugin)
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


def _explain_plugin(key: str, name: str) -> None:
    """Explain one setting of a plugin's component, or all of them if `key` is their table.

    Raises:
        ConfigError: the key is not in a table of a plugin's settings, or is not known.
        UnknownNameError: no plugin offers such a component under this name.
    """
    table = _PLUGIN_TABLE.match(f"{key}.")
    if table is None:
        raise ConfigError(
            f"--plugin explains the settings of a plugin, and {key!r} is not among them; use "
            f"{', '.join(f'{section}.settings' for section in _KINDS)}"
        )
    section = "judges.NAME" if table[1].startswith("judges.") else table[1]
    with prints_to_stderr():
        component: Any = PluginHost().load(_KINDS[section], name)
    _explain_config(key, component.Config, name, prefix=f"{table[1]}.settings")


def _explain_config(key: str, config_class: Any, name: str, *, prefix: str) -> None:
    """Explain one setting of a component, or all of them if `key` is their prefix.

    Raises:
        ConfigError: it has no such setting.
    """
    every = list(settings_of_config(config_class, prefix))
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
