"""Read the config of a run from recipes and options, or from a finished run to evaluate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import (
    build_config,
    full_name,
    nested,
    parse_setting,
)
from grpo_core.config.recipe_files import SUFFIXES, read_recipe
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.documents import refuse_no_document
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.trust import Layer, checked_config

_FROM_RUN = ("level", "seed", "model", "sampling", "verify", "sandbox", "judges")
"""The settings of a run that also hold if other environments are named."""
_OF_ENVIRONMENTS = ("environment", "mixture", "env", "weights")
"""The settings of a run that hold only for its own environments."""


def read_config(
    envs: Sequence[str],
    recipes: Sequence[str],
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    trust: bool = False,
    asks: bool = True,
) -> RunConfig:
    """Return the config of a run. Later sources override earlier ones.

    The order is: recipes from left to right, then --env and other options, then --set.

    Args:
        envs: the values of --env. If there are any, the environments of the recipes that are not
            among them are removed.
        recipes: the values of --recipe.
        options: the other options, by the dotted name of the setting that each stands for.
        settings: the values of --set, KEY=VALUE.
        trust: whether the command line has --trust.
        asks: whether recipes need the user's consent; not where nothing of the config is used.

    Raises:
        ConfigError: a setting is wrong, or the user has not consented to settings of a recipe.
    """
    layers = []
    for name in recipes:
        recipe, file = _read_recipe(name)
        layers.append(Layer(_with_environments(recipe, envs) if envs else recipe, file, recipe))
    own_layers = [environments(envs), nested(options), *map(parse_setting, settings)]
    layers += map(Layer, own_layers)
    if asks:
        return checked_config(layers, trust=trust)
    return build_config([layer.settings for layer in layers])


def _with_environments(recipe: Mapping[str, Any], envs: Sequence[str]) -> dict[str, Any]:
    """Return a recipe without the environments of its mixture that --env does not name.

    Its settings of a mixture member also hold if that is the only environment.
    """
    mixture = recipe.get("mixture")
    if not isinstance(mixture, Mapping):
        return dict(recipe)
    requested = {full_name(name) for name in envs}
    kept = {name: member for name, member in mixture.items() if full_name(name) in requested}
    if len(envs) > 1:
        return {**recipe, "mixture": kept}
    of_member = {
        key: value for member in kept.values() for key, value in member.items() if key != "share"
    }
    return {**recipe, "mixture": {}, **of_member}


def read_eval_config(
    envs: Sequence[str],
    run: Path | None,
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    trust: bool,
) -> RunConfig:
    """Return the config of an evaluation.

    From a run it takes the settings that determine tasks, verdicts and sampling. Nothing is
    trained, so kl.beta is 0 and no reference policy is loaded.

    Args:
        envs: the values of --env; if empty, the environments of the run.
        run: the folder of a finished run, or None.
        options: the other options, by the dotted name of the setting that each stands for.
        settings: the values of --set.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: the run is not finished or not trusted, or a setting is wrong.
    """
    _refuse_number_of_tasks(settings)
    named, file = environments(envs), Layer({})
    if run is not None:
        record = finished_run(run, "continue it, or name its checkpoints/best by --model").config()
        own = record["mixture"] or [record["environment"]]
        # --env that names exactly the run's environments keeps the run's settings of them.
        if sorted(map(full_name, envs)) == sorted(own):
            envs = ()
            named = (
                {"mixture": {name: {} for name in own}}
                if record["mixture"]
                else {"environment": own[0]}
            )
        taken = {name: record[name] for name in (*(() if envs else _OF_ENVIRONMENTS), *_FROM_RUN)}
        stored = taken | {
            "model": record["model"] | {"name": str(run / "final"), "revision": None},
            "eval": {"temperature": record["eval"]["temperature"]},
            # Offloaded weights require gradient checkpointing.
            "trainer": {"gradient_checkpointing": record["model"].get("offload", False)},
        }
        if envs:  # the run's token budget was for its own environment
            stored["sampling"] = record["sampling"] | {"max_new_tokens": None}
        file = Layer(stored, run, record)
    own_layers = [
        {"kl": {"beta": 0.0}},
        named,
        nested(given(options)),
        *map(parse_setting, settings),
    ]
    return checked_config([file, *map(Layer, own_layers)], trust=trust)


def _refuse_number_of_tasks(settings: Sequence[str]) -> None:
    """Refuse --set eval.tasks, which is about the evaluations of a run.

    Raises:
        ConfigError: it is set.
    """
    for setting in settings:
        name, _, value = setting.partition("=")
        if name.strip() == "eval.tasks":
            raise ConfigError(
                f"--set {setting} is about the evaluations of a run, and changes nothing here; "
                f"give --tasks {value.strip()} instead"
            )


def read_rescore_config(
    run: Path, envs: Sequence[str], settings: Sequence[str], *, trust: bool
) -> RunConfig:
    """Return the config that judges the saved rollouts of a run again.

    Args:
        run: the run folder.
        envs: the environments that judge in place of the run's own; if empty, those.
        settings: the values of --set.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: the run is not trusted, or a setting is wrong.
    """
    record = RunFolder.open(run).config()
    names = (*(() if envs else _OF_ENVIRONMENTS), "level", "seed", "verify", "sandbox", "judges")
    taken = {name: record[name] for name in names}
    # A cached verdict would be no new one.
    stored = taken | {"verify": record["verify"] | {"cache": "off"}}
    own_layers = [environments(envs), *map(parse_setting, settings)]
    return checked_config([Layer(stored, run, record), *map(Layer, own_layers)], trust=trust)


def finished_run(path: Path, advice: str = "") -> RunFolder:
    """Return the folder of a finished run.

    Args:
        path: the run folder.
        advice: what to do if it is not finished; by default to continue it.

    Raises:
        ConfigError: the run is not finished.
    """
    folder = RunFolder.open(path)
    if not folder.finished:
        raise ConfigError(
            f"the run {path} is not finished (it has no final/); "
            + (advice or f"continue it with grpo run --resume {path}")
        )
    return folder


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the command line has."""
    return {key: value for key, value in options.items() if value is not None}


def environments(names: Sequence[str]) -> dict[str, Any]:
    """Return the settings for the values of --env: one environment, or a mixture of equal shares.

    Raises:
        ConfigError: an environment is named twice.
    """
    full_names = list(map(full_name, names))
    if repeated := [
        name for index, name in enumerate(names) if full_names[index] in full_names[:index]
    ]:
        raise ConfigError(
            f"--env {repeated[0]} is given twice; name each environment once "
            "(mixture.NAME.share sets its share)"
        )
    if len(names) > 1:
        return {"environment": None, "mixture": {name: {} for name in names}}
    return {"environment": names[0]} if names else {}


def _read_recipe(name: str) -> tuple[dict[str, Any], Path | None]:
    """Return the settings of a recipe, and its file; None for a plugin's recipe, by its name."""
    path = Path(name)
    if path.suffix.lower() in SUFFIXES or path.is_file():
        refuse_no_document(path, "recipe")
        return read_recipe(path), path
    return dict(PluginHost().load("recipe", name)), None
