"""Finds what is installed without importing it, imports only what is asked for, and never lets one plugin break another."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from grpo_core.calls.isolation import ForeignError, isolated
from grpo_core.protocol import hookspecs
from grpo_core.protocol.errors import GrpoError, PluginError, UnknownNameError
from grpo_core.protocol.hookspecs import OFFER_HOOKS, PROJECT, Event, Kind
from grpo_core.protocol.spec import Spec, names_file

Offers = Mapping[Kind, tuple[Spec, ...]]


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point as its distribution declares it. target: "package" or "package.module:object"."""

    name: str
    distribution: str
    version: str
    target: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A component and the plugin it comes from."""

    spec: Spec
    plugin: Plugin


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a plugin cannot be used, and what to do."""

    plugin: Plugin
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"plugin {self.plugin.name!r} ({self.plugin.distribution} {self.plugin.version}) cannot be used: {self.reason}; {self.fix}"


class PluginHost:
    """The installed plugins by name. Making one reads metadata and imports nothing.

    disabled: names, comma-separated, or "all"; by default what GRPO_DISABLE_PLUGINS says.
    """

    def __init__(self, *, disabled: str | None = None) -> None:
        found: dict[str, Plugin] = {}
        self._failures: list[Failure] = []
        for plugin in _installed(self._failures):
            if plugin.name in found:
                self._failures.append(_duplicate(plugin, first=found[plugin.name]))
            else:
                found[plugin.name] = plugin
        self.plugins: Mapping[str, Plugin] = MappingProxyType(found)
        text = os.environ.get("GRPO_DISABLE_PLUGINS", "") if disabled is None else disabled
        off = {name.strip() for name in text.split(",")}
        self.disabled = frozenset(found if "all" in off else off & found.keys())
        self._manager = _fresh_manager()
        self._loaded: dict[str, _Loaded] = {}
        self._broken: dict[str, Failure] = {}

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What is known to be broken so far: plugins fail when they are first asked."""
        return (*self._failures, *self._broken.values())

    def get(self, kind: Kind, name: str) -> Spec:
        """The component called `name`: "plugin" or "plugin/variant", which imports that one plugin; or "path/to/file.py:Class"."""
        if names_file(name):
            return _file_spec(name)
        listing = (
            f"`grpo {'envs' if kind == 'environment' else 'plugins'}` lists what is installed."
        )
        plugin_name = name.partition("/")[0]
        if plugin_name not in self.plugins:
            raise UnknownNameError(kind, plugin_name, self.plugins, hint=listing)
        offers = self.offers(plugin_name)
        for spec in offers[kind]:
            if spec.name == name:
                return spec
        known = [spec.name for spec in offers[kind]]
        offered = ", ".join(map(repr, known)) or f"no {kind}"
        raise UnknownNameError(
            kind, name, known, hint=f"The plugin {plugin_name!r} offers {offered}. {listing}"
        )

    def load(self, kind: Kind, name: str) -> Any:
        """Import the component called `name`: the object that its target names."""
        spec = self.get(kind, name)
        try:
            return isolated(spec.load)
        except ForeignError as error:
            if isinstance(error.__cause__, GrpoError):
                raise error.__cause__ from None
            plugin = self.plugins.get(name.partition("/")[0])
            raise PluginError(
                str(_failure(plugin, error)) if plugin else f"{name!r} cannot be used: {error}"
            ) from error

    def specs(self, kind: Kind) -> list[Offer]:
        """Everything of one kind that the working plugins offer, in order of their names; the others end up in `failures`."""
        found = []
        for name in sorted(self.plugins.keys() - self.disabled):
            try:
                found += [Offer(spec, self.plugins[name]) for spec in self.offers(name)[kind]]
            except PluginError:
                continue  # kept in `failures`
        return found

    def offers(self, name: str) -> Offers:
        """All that one plugin offers; loads it if that was not done yet."""
        return self._load(name).offers

    def observers(
        self,
        names: Iterable[str],
        *,
        more: Mapping[str, object] = MappingProxyType({}),
        report: Callable[[str], None] = warnings.warn,
    ) -> Observers:
        """The event hooks of the plugins that a run names, and of `more` objects that have some; `report` gets one line about each that
        fails."""
        return Observers(
            {**{name: self._load(name).module for name in names}, **more}, report=report
        )

    def _load(self, name: str) -> _Loaded:
        if name not in self.plugins:
            raise UnknownNameError(
                "plugin", name, self.plugins, hint="`grpo plugins` lists what is installed."
            )
        if name in self.disabled:
            raise PluginError(
                f"plugin {name!r} is switched off by GRPO_DISABLE_PLUGINS; take its name out of that variable"
            )
        if name not in self._loaded and name not in self._broken:
            plugin = self.plugins[name]
            try:
                self._loaded[name] = isolated(functools.partial(_import, plugin, self._manager))
            except ForeignError as error:
                self._broken[name] = _failure(plugin, error)
        if name in self._broken:
            raise PluginError(str(self._broken[name]))
        return self._loaded[name]


class Observers:
    """Tells plugins what happens in a run. They only observe: one that raises is reported once and hears no more."""

    def __init__(self, modules: Mapping[str, object], *, report: Callable[[str], None]) -> None:
        self._managers = {name: _fresh_manager() for name in modules}
        for name, manager in self._managers.items():
            manager.register(modules[name], name)
        self._report = report

    @classmethod
    def none(cls) -> Observers:
        """Nobody watches."""
        return cls({}, report=warnings.warn)

    def notify(self, event: Event, **facts: object) -> None:
        """Call one event hook of every plugin with the arguments that `hookspecs` names for it."""
        read_only = {name: _read_only(fact) for name, fact in facts.items()}
        for name, manager in list(self._managers.items()):
            try:
                isolated(functools.partial(getattr(manager.hook, event), **read_only))
            except ForeignError as error:
                del self._managers[name]
                self._report(
                    f"plugin {name!r} failed in {event} and hears no more of this run: {error}"
                )


@dataclass(frozen=True, slots=True)
class _Loaded:
    module: object
    offers: Offers


# The hooks and nothing else: pluggy looks at every name of what it is given, for every plugin.
_HOOKS = ModuleType("hooks")
_HOOKS.__dict__.update(
    {name: value for name, value in vars(hookspecs).items() if name.startswith("grpo_")}
)


def _fresh_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(_HOOKS)
    return manager


def _import(plugin: Plugin, manager: pluggy.PluginManager) -> _Loaded:
    """Import one plugin, check its hooks and ask for everything it offers. Whatever this raises is the plugin's failure.

    manager: has no other plugin, before and after, so that no call can reach two of them.
    """
    module = importlib.metadata.EntryPoint(plugin.name, plugin.target, PROJECT).load()
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
        if not manager.get_hookcallers(module):
            raise PluginError(
                f"{plugin.target!r} implements no hook; mark its functions with @grpo_core.hookimpl"
            )
        return _Loaded(
            module,
            MappingProxyType(
                {kind: _ask(manager, plugin, hook) for kind, hook in OFFER_HOOKS.items()}
            ),
        )
    finally:
        manager.unregister(name=plugin.name)


def _ask(manager: pluggy.PluginManager, plugin: Plugin, hook: str) -> tuple[Spec, ...]:
    caller = getattr(manager.hook, hook)
    answers = caller()
    if len(answers) < len(caller.get_hookimpls()):  # pluggy leaves out None
        raise PluginError(f"{hook}() returned None; return a list of Spec")
    specs: list[Spec] = []
    for answer in answers:
        if not isinstance(answer, list | tuple) or not all(
            isinstance(spec, Spec) for spec in answer
        ):
            raise PluginError(f"{hook}() returned {answer!r:.80}; return a list of Spec")
        specs += answer
    names = [spec.name for spec in specs]
    for name in names:
        if name.partition("/")[0] != plugin.name:
            raise PluginError(
                f"{hook}() offers {name!r}; call it {plugin.name!r} or '{plugin.name}/...', after the entry point"
            )
        if names.count(name) > 1:
            raise PluginError(f"{hook}() offers {name!r} twice")
    return tuple(specs)


def _file_spec(name: str) -> Spec:
    """A component that is not packaged. Its file's folder is no part of its name, so that its tasks are the same wherever it lies."""
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py") or not attribute:
        raise PluginError(f"{name!r} names no class; write it as path/to/file.py:Class")
    return Spec(f"{Path(file).name}:{attribute}", f"{Path(file).resolve()}:{attribute}")


def _read_only(fact: object) -> object:
    if isinstance(fact, dict):
        return MappingProxyType(fact)
    return tuple(fact) if isinstance(fact, list) else fact


def _installed(failures: list[Failure]) -> Iterator[Plugin]:
    """The entry points of all distributions on sys.path, ours first, then by name of the distribution.

    One by one, unlike `importlib.metadata.entry_points`: a single broken file would hide all plugins.
    """
    found: dict[str, list[Plugin]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            if f"[{PROJECT}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name = distribution.metadata["Name"].lower().replace("_", "-")
            entries = sorted(
                distribution.entry_points.select(group=PROJECT), key=lambda entry: entry.name
            )
            plugins = [
                Plugin(entry.name, name, distribution.metadata["Version"] or "?", entry.value)
                for entry in entries
            ]
        except Exception as error:  # noqa: BLE001 - metadata of strangers
            unreadable = Plugin("?", str(getattr(distribution, "_path", "?")), "?", "")
            failures.append(
                Failure(
                    unreadable,
                    f"its metadata cannot be read: {error!r}",
                    "reinstall the distribution",
                )
            )
            continue
        found.setdefault(name, plugins)  # the first on sys.path is the one that is imported
    for name in sorted(found, key=lambda name: (name != "grpo-core", name)):
        yield from found[name]


def _duplicate(plugin: Plugin, *, first: Plugin) -> Failure:
    why = f"the name is taken by {first.distribution} {first.version}"
    return Failure(plugin, why, f"uninstall one of them: pip uninstall {plugin.distribution}")


def _failure(plugin: Plugin, error: ForeignError) -> Failure:
    cause, why = error.__cause__, str(error)
    if isinstance(cause, PluginError | pluggy.PluginValidationError):
        why = " ".join(
            str(cause).split()
        )  # these say all there is to say; the line of our own code would not help
    first = (
        "install it"
        if isinstance(cause, ModuleNotFoundError)
        else f"try `pip install --upgrade {plugin.distribution}`"
    )
    return Failure(
        plugin,
        why,
        f"{first}, or uninstall {plugin.distribution}, or set GRPO_DISABLE_PLUGINS={plugin.name}",
    )
