"""Says of each plugin whether it works; on request in a process of its own, which survives even one that crashes the interpreter.

`python -m grpo_core.kit.plugins NAME` is that process: it writes one JSON object to its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from grpo_core.plugins.host import Failure, Plugin, PluginHost
from grpo_core.protocol.errors import PluginError
from grpo_core.protocol.hookspecs import Kind


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """offers: names of components by kind. import_seconds: what the import took, where that was measured."""

    name: str
    distribution: str
    version: str
    status: Literal["ok", "failed", "disabled"]
    offers: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    reason: str | None = None
    fix: str | None = None
    import_seconds: float | None = None


def all_statuses(host: PluginHost, *, timeout_seconds: float | None = None) -> list[PluginStatus]:
    """Every installed plugin, by name; with a time limit each is loaded in a process of its own, otherwise in this one."""
    unusable = [
        _failed(failure) for failure in host.failures
    ]  # duplicates and unreadable metadata, known without an import
    found = []
    for plugin in host.plugins.values():
        if plugin.name in host.disabled:
            found.append(_status(plugin, "disabled"))
        else:
            found.append(
                load_here(host, plugin)
                if timeout_seconds is None
                else load_apart(plugin, timeout_seconds=timeout_seconds)
            )
    return sorted(found + unusable, key=lambda status: (status.name, status.distribution))


def load_here(host: PluginHost, plugin: Plugin) -> PluginStatus:
    """Load in this process."""
    started = time.perf_counter()
    try:
        offers = host.offers(plugin.name)
    except PluginError:
        status = next(_failed(failure) for failure in host.failures if failure.plugin == plugin)
    else:
        names = {
            kind: tuple(spec.name for spec in specs) for kind, specs in offers.items() if specs
        }
        status = replace(_status(plugin, "ok"), offers=names)
    return replace(status, import_seconds=round(time.perf_counter() - started, 3))


def load_apart(plugin: Plugin, *, timeout_seconds: float) -> PluginStatus:
    """Load in a fresh process, which is killed with all its children when the time is up."""
    command = [sys.executable, "-m", "grpo_core.kit.plugins", plugin.name]
    with (
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as complaints,
    ):  # no pipes: a grandchild could hold them open
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            child.wait(timeout_seconds)
            why = _end(child.returncode)
        except subprocess.TimeoutExpired:
            why = f"loading took longer than {timeout_seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        answer.seek(0)
        text = answer.read()
    if text and child.returncode == 0:
        return PluginStatus(**json.loads(text))
    fix = f"uninstall {plugin.distribution}, or set GRPO_DISABLE_PLUGINS={plugin.name}"
    return replace(_status(plugin, "failed"), reason=why, fix=fix)


def _end(returncode: int) -> str:
    if returncode < 0:
        return f"loading crashed the interpreter with {signal.Signals(-returncode).name}"
    return f"loading ended the interpreter with status {returncode}"


def _status(plugin: Plugin, status: Literal["ok", "failed", "disabled"]) -> PluginStatus:
    return PluginStatus(plugin.name, plugin.distribution, plugin.version, status)


def _failed(failure: Failure) -> PluginStatus:
    return replace(_status(failure.plugin, "failed"), reason=failure.reason, fix=failure.fix)


def main() -> None:
    """Load the plugin that the command line names, with everything it prints sent to stderr, also by C code and subprocesses."""
    answer = os.dup(1)
    os.dup2(2, 1)
    host = PluginHost()
    status = load_here(host, host.plugins[sys.argv[1]])
    os.write(answer, json.dumps(asdict(status)).encode())
    os._exit(0)  # at-exit handlers of the plugin have no say


if __name__ == "__main__":
    main()
