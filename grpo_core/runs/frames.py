"""Make tables of lines of a run's logs, with pandas or polars where one of them is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from grpo_core.protocol.errors import ConfigError

LIBRARIES = ("pandas", "polars")
"""The libraries that make tables; the first one that is installed does."""


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the rows as a DataFrame; a row without a column has no value in it.

    Raises:
        ConfigError: neither library is installed.
    """
    for name in LIBRARIES:
        if find_spec(name) is not None:
            library = import_module(name)
            return (
                library.DataFrame(list(rows))
                if name == "pandas"
                else library.DataFrame(list(rows), infer_schema_length=None, strict=False)
            )
    raise ConfigError(
        "a DataFrame needs pandas or polars, and neither is installed: pip install pandas; "
        "without them read trainer.folder.metric_lines() and trainer.folder.rollout_lines()"
    )


def flat(line: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a line by dotted names, without mappings inside."""
    values: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, Mapping) and value:
            values.update(flat(value, f"{prefix}{name}."))
        else:
            values[f"{prefix}{name}"] = value
    return values
