"""Read the config of `grpo eval`: from a finished run, or from options alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.cli.run_config import environments
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, full_name, nested, parse_setting, split_setting
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.trust import require_trust

_FROM_RUN = ("level", "seed", "model", "sampling", "verify", "sandbox", "judges")
"""The settings of a run that also hold if other environments are named."""
_OF_ENVIRONMENTS = ("environment", "mixture", "env", "weights")
"""The settings of a run that hold only for its own environments."""


def read_config(
    envs: Sequence[str],
    run: Path | None,
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    trust: bool,
) -> RunConfig:
    """Return the config of the evaluation.

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
    stored: dict[str, Any] = {}
    if run is not None:
        record = _config_of_finished(run)
        own = record["mixture"] or [record["environment"]]
        named = [*map(full_name, envs), *(split_setting(text)[0] for text in settings)]
        # --env that names exactly the run's environments keeps the run's settings of them.
        if sorted(map(full_name, envs)) == sorted(own):
            envs = ()
        taken = {name: record[name] for name in (*(() if envs else _OF_ENVIRONMENTS), *_FROM_RUN)}
        require_trust(run, record, used=taken, named=named, trust=trust)
        stored = taken | _changed_settings(record, run)
        if envs:  # the run's token budget was for its own environment
            stored["sampling"] = record["sampling"] | {"max_new_tokens": None}
    given = {key: value for key, value in options.items() if value is not None}
    return build_config(
        [
            stored,
            {"kl": {"beta": 0.0}},
            environments(envs),
            nested(given),
            *map(parse_setting, settings),
        ]
    )


def _config_of_finished(run: Path) -> dict[str, Any]:
    """Return the settings of a run.

    Raises:
        ConfigError: the run is not finished.
    """
    opened = RunFolder.open(run)
    if not opened.finished:
        raise ConfigError(
            f"the run {run} is not finished (it has no final/); continue it, "
            "or name its checkpoints/best by --model"
        )
    return opened.config()


def _changed_settings(record: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the settings in which the evaluation of a run differs from the run.

    Args:
        record: the settings of the run.
        run: the folder of the run, which holds the trained model.
    """
    return {
        "model": record["model"] | {"name": str(run / "final"), "revision": None},
        "eval": {"temperature": record["eval"]["temperature"]},
        # Offloaded weights require gradient checkpointing.
        "trainer": {"gradient_checkpointing": record["model"].get("offload", False)},
    }
