"""Report for each installed plugin whether it works.

On request each plugin is loaded in a process of its own, so that the report is complete even if one
crashes the interpreter. `python -m grpo_core.kit.plugins NAME` is that process: it writes one JSON
object to its standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

from grpo_core.calls.child import Child, signal_name
from grpo_core.plugins.host import Failure, Plugin, PluginHost, find_conflicts
from grpo_core.protocol.errors import PluginError
from grpo_core.protocol.hookspecs import Kind


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """The state of one installed plugin."""

    name: str
    distribution: str
    version: str
    status: Literal["ok", "failed", "disabled"]
    offers: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    """The names of its components by kind."""
    reason: str | None = None
    """Why it failed."""
    fix: str | None = None
    """What the user can do about it."""
    import_seconds: float | None = None
    """How long the import took, where that was measured."""


def all_statuses(host: PluginHost, *, timeout_seconds: float | None = None) -> list[PluginStatus]:
    """Return the status of every installed plugin, sorted by name.

    Args:
        host: The host that lists the plugins.
        timeout_seconds: Load each plugin in a process of its own, for at most this long; by default
            they are loaded in this process.
    """
    failures = list(host.failures)  # duplicates and unreadable metadata need no import
    load = (
        partial(load_here, host)
        if timeout_seconds is None
        else partial(load_apart, timeout_seconds=timeout_seconds)
    )
    statuses = [
        _status(plugin, "disabled") if plugin.name in host.disabled else load(plugin)
        for plugin in host.plugins.values()
    ]
    failures += find_conflicts(
        (host.plugins[status.name], kind, name)
        for status in statuses
        for kind, names in status.offers.items()
        for name in names
    ).values()
    statuses += map(_failed_status, failures)
    return sorted(statuses, key=lambda status: (status.name, status.distribution))


def load_here(host: PluginHost, plugin: Plugin) -> PluginStatus:
    """Load `plugin` in this process and return its status."""
    started = time.perf_counter()
    try:
        names = {
            kind: tuple(spec.name for spec in specs)
            for kind, specs in host.offers(plugin.name).items()
            if specs
        }
        status = replace(_status(plugin, "ok"), offers=names)
    except PluginError:
        status = next(
            _failed_status(failure) for failure in host.failures if failure.plugin == plugin
        )
    return replace(status, import_seconds=round(time.perf_counter() - started, 3))


def load_apart(plugin: Plugin, *, timeout_seconds: float) -> PluginStatus:
    """Load `plugin` in a fresh process, which is killed with its children after the timeout."""
    with Child([sys.executable, "-m", "grpo_core.kit.plugins", plugin.name]) as child:
        ending = child.communicate(seconds=timeout_seconds)
    if ending.status == 0 and ending.output and not ending.problem:
        return PluginStatus(**json.loads(ending.output))
    if ending.status is None:
        reason = f"loading took longer than {timeout_seconds:g} s"
    elif ending.problem:
        reason = ending.problem
    elif ending.status < 0:
        reason = f"loading crashed the interpreter with {signal_name(-ending.status)}"
    else:
        reason = f"loading ended the interpreter with status {ending.status}"
    fix = f"uninstall {plugin.distribution}, or set GRPO_DISABLE_PLUGINS={plugin.name}"
    return replace(_status(plugin, "failed"), reason=reason, fix=fix)


def _status(plugin: Plugin, status: Literal["ok", "failed", "disabled"]) -> PluginStatus:
    """Return a status with the plugin's name and version."""
    return PluginStatus(plugin.name, plugin.distribution, plugin.version, status)


def _failed_status(failure: Failure) -> PluginStatus:
    """Return the status of a plugin that could not be loaded."""
    return replace(_status(failure.plugin, "failed"), reason=failure.reason, fix=failure.fix)


def main() -> None:
    """Load the plugin that the command line names and write its status as JSON.

    Everything that the plugin prints goes to standard error, also from C code and subprocesses.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    host = PluginHost()
    status = load_here(host, host.plugins[sys.argv[1]])
    os.write(output, json.dumps(asdict(status)).encode())
    os._exit(0)  # without running exit handlers of the plugin


if __name__ == "__main__":
    main()
