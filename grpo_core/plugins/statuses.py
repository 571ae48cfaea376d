"""Report for each installed plugin whether it works.

On request each plugin is loaded in a process of its own with everything that it offers, so that
the report is complete even if one crashes the interpreter. That process is
`python -m grpo_core.plugins.statuses NAME`: it writes one JSON object to its standard output.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from grpo_core.calls.child import Child, signal_name
from grpo_core.calls.isolation import ForeignError, isolated
from grpo_core.plugins.host import Failure, Offers, Plugin, PluginHost, find_conflicts
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError, MissingExtraError, PluginError, UnknownNameError
from grpo_core.protocol.hookspecs import OFFER_HOOKS, Kind
from grpo_core.protocol.spec import Spec

_NAMED = 3
"""How many components with the same fault are named."""
_ARGUMENTS: Mapping[Kind, tuple[tuple[int, ...], str]] = {
    "algorithm": (
        (2, 4),
        "(rewards, config) for an advantage, or (log_ratio_BT, logprob_BT, advantage_BT, config) "
        "for a loss",
    ),
    "sampler": ((2,), "(settings, model)"),
    "executor": ((1,), "(settings)"),
    "endpoint": ((1,), "(settings)"),
    "tracker": ((1,), "(run_dir)"),
    "listener": ((0,), "()"),
    "checks": ((0,), "()"),
}
"""How many positional arguments a component is called with, and which, for the user."""


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
    """How long the import of the plugin took, without its components, where that was measured."""


def all_statuses(
    host: PluginHost, names: Sequence[str] = (), *, timeout_seconds: float | None = None
) -> list[PluginStatus]:
    """Return the status of every installed plugin, sorted by name.

    Args:
        host: The host that lists the plugins.
        names: The plugins to report on; all of them if empty.
        timeout_seconds: Load each plugin, and the components that it offers, in a process of its
            own, for at most this long; by default the plugins are loaded in this process, and
            their components are not.

    Raises:
        UnknownNameError: A name is not that of an installed plugin.
    """
    for name in names:
        if name not in host.plugins:
            raise UnknownNameError(
                "plugin", name, host.plugins, hint="`grpo plugins` lists what is installed."
            )
    failures = list(host.failures)  # duplicates and unreadable metadata need no import
    load = (
        partial(load_here, host)
        if timeout_seconds is None
        else partial(load_apart, timeout_seconds=timeout_seconds)
    )
    statuses = [
        _status(plugin, "disabled") if plugin.name in host.disabled else load(plugin)
        for plugin in host.plugins.values()
        if not names or plugin.name in names
    ]
    failures += find_conflicts(
        (host.plugins[status.name], kind, name)
        for status in statuses
        for kind, names in status.offers.items()
        for name in names
    ).values()
    statuses += [
        _failed_status(failure) for failure in failures if not names or failure.plugin.name in names
    ]
    return sorted(statuses, key=lambda status: (status.name, status.distribution))


def load_here(host: PluginHost, plugin: Plugin, *, components: bool = False) -> PluginStatus:
    """Load `plugin` in this process and return its status.

    Args:
        host: The host that lists the plugin.
        plugin: The plugin to load.
        components: Also import every component that it offers.
    """
    started = time.perf_counter()
    try:
        names = {
            kind: tuple(spec.name for spec in specs)
            for kind, specs in host.offers(plugin.name).items()
            if specs
        }
        status = replace(
            _status(plugin, "ok"),
            offers=names,
            import_seconds=round(time.perf_counter() - started, 3),
        )
    except PluginError:
        status = next(
            _failed_status(failure) for failure in host.failures if failure.plugin == plugin
        )
        return replace(status, import_seconds=round(time.perf_counter() - started, 3))
    return _with_components(status, host.offers(plugin.name)) if components else status


def _with_components(status: PluginStatus, offers: Offers) -> PluginStatus:
    """Return the status of a plugin after the import of everything that it offers."""
    faults: dict[tuple[Kind, str, str], list[str]] = {}
    for kind, specs in offers.items():
        for spec in specs:
            if fault := component_fault(kind, spec):
                faults.setdefault((kind, *fault), []).append(spec.name)
    if not faults:
        return status
    reasons = [f"{_format_names(kind, names)}: {why}" for (kind, why, _), names in faults.items()]
    fixes = dict.fromkeys(fix for *_, fix in faults)
    return replace(status, status="failed", reason="; ".join(reasons), fix="; ".join(fixes))


def component_fault(kind: Kind, spec: Spec) -> tuple[str, str] | None:
    """Return what is wrong with a component and what to do, or None if it can be imported."""
    change = f"correct it in {spec.distribution}"
    try:
        component = isolated(spec.load)
    except ForeignError as error:
        cause = error.__cause__
        if isinstance(cause, MissingExtraError):
            package = f" ({cause.package!r} is not installed)" if cause.package else ""
            return f"the extra {spec.extra!r} is missing{package}", cause.fix
        if isinstance(cause, GrpoError):
            return str(cause).removeprefix(f"{spec.name!r} cannot be loaded: "), change
        return f"cannot be imported: {error}", change
    if kind == "environment":
        is_right = isinstance(component, type) and issubclass(component, Environment)
        wanted = "a subclass of grpo_core.Environment"
    elif kind == "recipe":
        is_right, wanted = isinstance(component, Mapping), "a mapping of settings"
    else:
        is_right, wanted = callable(component), "callable"
    if is_right:
        return _call_fault(kind, spec, component)
    return f"its target is {spec.target!r}, and that is {component!r:.60}, not {wanted}", change


def _call_fault(kind: Kind, spec: Spec, component: Any) -> tuple[str, str] | None:
    """Return what is wrong if a component cannot take the arguments that it will be called with."""
    counts, wanted = _ARGUMENTS.get(kind, ((), ""))
    try:
        signature = inspect.signature(component)
    except (TypeError, ValueError):
        return None  # written in C, without a signature
    if not counts or any(_takes(signature, count) for count in counts):
        return None
    return (
        f"its target {spec.target!r} takes {signature!s:.80}, and is called with {wanted}",
        f"correct it in {spec.distribution}",
    )


def _takes(signature: inspect.Signature, count: int) -> bool:
    """Return whether a callable of this signature can be called with `count` arguments."""
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _format_names(kind: Kind, names: Sequence[str]) -> str:
    """Return the kind and the names of some components; of many only the first and the number."""
    if len(names) == 1:
        return f"the {kind} {names[0]!r}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = ", ".join(map(repr, names[:_NAMED]))
    return f"the {OFFER_HOOKS[kind].removeprefix('grpo_')} {listed}{more}"


def load_apart(plugin: Plugin, *, timeout_seconds: float) -> PluginStatus:
    """Load `plugin` in a fresh process, which is killed with its children after the timeout."""
    with Child([sys.executable, "-m", "grpo_core.plugins.statuses", plugin.name]) as child:
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
    status = load_here(host, host.plugins[sys.argv[1]], components=True)
    os.write(output, json.dumps(asdict(status)).encode())
    os._exit(0)  # without running exit handlers of the plugin


if __name__ == "__main__":
    main()
