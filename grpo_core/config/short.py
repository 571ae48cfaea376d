"""Make the config of a run from what a line of Python says: `Trainer(environment, steps=20)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, did_you_mean

Given: TypeAlias = RunConfig | Environment[Any] | type[Environment[Any]] | str | Path
"""What the first argument of a trainer may be: a config, an environment, its name or class, or a
file of rows."""

OPTIONS = {
    "model": "model.name",
    "steps": "steps",
    "epochs": "epochs",
    "group_size": "group_size",
    "prompts_per_step": "prompts_per_step",
    "max_new_tokens": "sampling.max_new_tokens",
    "lr": "optimizer.lr",
    "beta": "kl.beta",
    "level": "level",
    "seed": "seed",
    "device": "model.device",
    "dtype": "model.dtype",
    "eval_every": "eval.every",
}
"""The settings that the options of a trainer stand for, which are called as those of `grpo run`."""
OTHERS = ("reward", "settings")
"""What may be given besides: how rows are rewarded, and any settings by their dotted names."""

Rewards: TypeAlias = str | Callable[..., Any] | Sequence[str | Callable[..., Any]]


def config_of(
    given: Given, options: Mapping[str, Any]
) -> tuple[RunConfig, Environment[Any] | None]:
    """Return the config of a run, and its environment if that was given as an object or a class.

    Args:
        given: the first argument of the trainer.
        options: its options, by the names in `OPTIONS` and `OTHERS`.

    Raises:
        ConfigError: an option is not known, does not fit, or has a wrong value.
    """
    unknown = next((name for name in options if name not in OPTIONS and name not in OTHERS), None)
    known = ["folder", *OPTIONS, *OTHERS]
    if unknown is not None:
        raise ConfigError(
            f"Trainer has no option {unknown!r}{did_you_mean(unknown, known)} "
            f"Options are {', '.join(known)} (folder as --out); any other setting "
            'is given as settings={"sampling.temperature": 0.9}'
        )
    if isinstance(given, RunConfig):
        if options:
            raise ConfigError(
                f"{', '.join(options)}: a config holds all settings, so build_config takes them; "
                "options are for a trainer that is given an environment"
            )
        return given, None
    own = _own_environment(given)
    if own is not None and "reward" in options:
        raise ConfigError(
            f"reward is for a file of rows, and {type(own).__name__} has a verifier; remove it"
        )
    name = str(given) if own is None else type(own).__name__
    settings = {OPTIONS[option]: options[option] for option in OPTIONS if option in options}
    rewards = _reward_names(options.get("reward", ()))
    layers = [
        {"environment": name, **({"env": {"reward": rewards}} if rewards else {})},
        nested(settings),
        nested(options.get("settings", {})),
    ]
    if any(reward.startswith("__main__:") for reward in rewards):
        layers.insert(0, {"verify": {"isolation": "inline"}})  # no other process has the function
    return build_config(layers), own


def _own_environment(given: object) -> Environment[Any] | None:
    """Return the environment if it is an object, or a class that is made without arguments.

    Raises:
        ConfigError: it is neither, nor a name or a path.
    """
    if isinstance(given, Environment):
        return given
    if isinstance(given, type) and issubclass(given, Environment):
        return given()
    if isinstance(given, str | Path):
        return None
    raise ConfigError(
        "a trainer is given a config, an environment (an object, a class or a name) or a file of "
        f"rows, and this is a {type(given).__name__}"
    )


def _reward_names(rewards: Rewards) -> list[str]:
    """Return the names by which the environment of rows finds rewards."""
    several = [rewards] if isinstance(rewards, str) or callable(rewards) else rewards
    return [reward if isinstance(reward, str) else _function_name(reward) for reward in several]


def _function_name(function: Callable[..., Any]) -> str:
    """Return FILE.py:NAME of a function, or __main__:NAME in a notebook or script.

    Raises:
        ConfigError: it is no function at the top level of a module.
    """
    name = getattr(function, "__qualname__", "")
    if not name.isidentifier():
        raise ConfigError(
            f"the reward {name or function!r} has no name at the top level of a module; define it "
            "there by def"
        )
    if function.__module__ == "__main__":
        return f"__main__:{name}"
    return f"{inspect.getsourcefile(function) or function.__module__}:{name}"


def by_name(
    config: RunConfig, env: Environment[Any] | Mapping[str, Environment[Any]] | None
) -> dict[str, Environment[Any]]:
    """Return the environments that the caller has made, by their names in the config."""
    if not isinstance(env, Environment):
        return dict(env or {})
    names = list(config.members()) if config.environment is None else [config.environment]
    if len(names) != 1:
        raise ConfigError(
            f"this run has the environments {', '.join(names) or '(none)'}; give yours by name: "
            f"Trainer(config, {{{names[0] if names else 'NAME'!r}: env}})"
        )
    return {names[0]: env}


def names_given(
    stored: Mapping[str, Any], env: Environment[Any] | Mapping[str, Environment[Any]] | None
) -> Collection[str]:
    """Return the names, in a recorded config, of the environments that the caller has made."""
    return [str(stored.get("environment"))] if isinstance(env, Environment) else [*(env or ())]
