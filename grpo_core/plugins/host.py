"""Find installed plugins without importing them, and import a plugin when it is first used.

A plugin that fails does not affect the others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from grpo_core.calls.isolation import ForeignError, isolated
from grpo_core.plugins.meant import defined_classes, hint_at_meant
from grpo_core.plugins.versions import check_versions
from grpo_core.protocol import hookspecs
from grpo_core.protocol.errors import GrpoError, PluginError, UnknownNameError
from grpo_core.protocol.hookspecs import OFFER_HOOKS, PROJECT, Kind
from grpo_core.protocol.spec import Spec, extra_owner, names_file

_BUNDLED = "grpo-core"
"""The distribution whose plugins come first."""
Offers = Mapping[Kind, tuple[Spec, ...]]
"""The components that a plugin offers, by kind."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Hold an entry point as its distribution declares it."""

    name: str
    """Name of the entry point."""
    distribution: str
    """Normalised name of the distribution."""
    version: str
    """Version of the distribution; "?" if it declares none."""
    target: str
    """What the entry point refers to: "package" or "package.module:object"."""


Component = tuple[Plugin, Kind, str]
"""A plugin, and kind and name of something that it offers."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Pair a component with the plugin that offers it."""

    spec: Spec
    plugin: Plugin


@dataclass(frozen=True, slots=True)
class Failure:
    """Explain why a plugin cannot be used."""

    plugin: Plugin
    reason: str
    """Why it cannot be used."""
    fix: str
    """What the user can do."""

    def __str__(self) -> str:
        return (
            f"plugin {self.plugin.name!r} ({self.plugin.distribution} {self.plugin.version}) "
            f"cannot be used: {self.reason}; {self.fix}"
        )


class PluginHost:
    """Hold the installed plugins by name. Creating a host reads metadata and imports nothing.

    Attributes:
        plugins: the installed plugins by name.
        disabled: the names of those that are switched off.
    """

    def __init__(self, *, disabled: str | None = None) -> None:
        """Read the metadata of the installed plugins.

        Args:
            disabled: names of plugins to switch off, separated by commas, or "all"; None: the
                value of GRPO_DISABLE_PLUGINS.
        """
        plugins: dict[str, Plugin] = {}
        self._failures: list[Failure] = []
        for plugin in _iterate_installed(self._failures):
            first = plugins.setdefault(plugin.name, plugin)
            if first is not plugin:
                self._failures.append(
                    Failure(
                        plugin,
                        f"the name is taken by {first.distribution} {first.version}",
                        f"uninstall one of them: pip uninstall {plugin.distribution}",
                    )
                )
        self.plugins: Mapping[str, Plugin] = MappingProxyType(plugins)
        text = os.environ.get("GRPO_DISABLE_PLUGINS", "") if disabled is None else disabled
        names = {name.strip() for name in text.split(",")}
        self.disabled = frozenset(plugins if "all" in names else names & plugins.keys())
        self._manager = _new_manager()
        self._loaded_plugins: dict[str, _LoadedPlugin] = {}
        self._load_failures: dict[str, Failure] = {}
        self._conflicts: dict[Component, Failure] = {}
        self._told: set[str] = set()
        """The names of plugins whose rivals were told."""

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Return the failures known so far; a plugin's own failure is known once it was loaded."""
        return (*self._failures, *self._load_failures.values(), *self._conflicts.values())

    def get(self, kind: Kind, name: str) -> Spec:
        """Return the Spec of a component.

        Args:
            kind: kind of the component.
            name: "component", "plugin/variant" or "path/to/file.py:Class".

        Raises:
            UnknownNameError: no plugin offers such a component.
            PluginError: the plugin cannot be used, or the name of the file is not complete.
        """
        return _file_spec(name) if names_file(name) else self.find(kind, name).spec

    def find(self, kind: Kind, name: str) -> Offer:
        """Return a component and the plugin that offers it.

        The plugin that bears the name is asked first, and only that one is imported if it offers
        the component. The other plugins are asked one after the other, those of grpo-core first.
        A plugin that cannot be used is skipped. If it bears the name, only plugins of grpo-core
        are asked besides it. A name with a slash belongs to the plugin before the slash.

        Raises:
            UnknownNameError: no plugin offers such a component.
            PluginError: the plugin that bears the name cannot be used.
        """
        owner, slash, _ = name.partition("/")
        for plugin in sorted(self.plugins.values(), key=lambda plugin: plugin.name != owner):
            is_stranger = plugin.name != owner and plugin.distribution != _BUNDLED
            if (slash and plugin.name != owner) or (is_stranger and owner in self._load_failures):
                break
            with contextlib.suppress(PluginError):
                for spec in self.offers(plugin.name)[kind]:
                    if spec.name == name:
                        self._tell_rivals(plugin)
                        return Offer(spec, plugin)
        if owner in self.plugins:
            self.offers(owner)  # if it cannot be used, that is the reason to report
        raise self._unknown_name(kind, name)

    def rivals(self, plugin: Plugin) -> list[str]:
        """Return a message for each other installed plugin of the same name, which is not used."""
        return [
            f"{plugin.name!r} is that of {plugin.distribution} {plugin.version}; the plugin of "
            f"{failure.plugin.distribution} {failure.plugin.version} has the same name and is not "
            f"used; {failure.fix}"
            for failure in self._failures
            if failure.plugin.name == plugin.name
        ]

    def _tell_rivals(self, plugin: Plugin) -> None:
        """Log the rivals of a plugin that is used, once."""
        if plugin.name not in self._told:
            self._told.add(plugin.name)
            for message in self.rivals(plugin):
                logging.getLogger(__name__).warning(message)

    def load(self, kind: Kind, name: str) -> Any:
        """Import a component and return the object that its target names.

        Raises:
            UnknownNameError: there is no such component.
            PluginError: its plugin cannot be used, or its import fails.
            VersionError: a package of its extra has a version that is not supported.
        """
        offer = None if names_file(name) else self.find(kind, name)
        spec = offer.spec if offer else _file_spec(name)
        if spec.extra:
            owner = extra_owner(spec.distribution, spec.extra)
            check_versions(repr(spec.name), spec.extra, distribution=owner)
        try:
            return isolated(spec.load)
        except ForeignError as error:
            if isinstance(error.__cause__, GrpoError):
                raise error.__cause__ from None
            failure = _explain_failure(offer.plugin, error) if offer else None
            raise PluginError(str(failure or f"{name!r} cannot be used: {error}")) from error

    def specs(self, kind: Kind) -> list[Offer]:
        """Return the components of one kind of all plugins, in order of the plugins' names.

        Plugins that cannot be used, and components whose name belongs to another plugin, are
        skipped and appear in `failures`.
        """
        offers = []
        for name, plugin in self.plugins.items():
            with contextlib.suppress(PluginError):
                offers += [Offer(spec, plugin) for spec in self.offers(name)[kind]]
        self._conflicts |= find_conflicts((offer.plugin, kind, offer.spec.name) for offer in offers)
        return sorted(
            (o for o in offers if (o.plugin, kind, o.spec.name) not in self._conflicts),
            key=lambda offer: offer.plugin.name,
        )

    def offers(self, name: str) -> Offers:
        """Return everything that one plugin offers; import the plugin if this was not done yet."""
        return self._load(name).offers

    def _unknown_name(self, kind: Kind, name: str) -> UnknownNameError:
        """Return the error for a name that none of the asked plugins offers."""
        owner, slash, _ = name.partition("/")
        hint = f"`grpo {'envs' if kind == 'environment' else 'plugins'}` lists what is installed."
        meant = hint_at_meant(name, self.plugins) if kind == "environment" else ""
        if meant:
            return UnknownNameError(kind, name, (), hint=f"{meant} {hint}")
        if slash and owner not in self.plugins:
            return UnknownNameError(kind, owner, self.plugins, hint=hint)
        specs = [] if slash else [offer.spec for offer in self.specs(kind)]
        unusable = ", ".join(map(repr, sorted(self.disabled | self._load_failures.keys())))
        if unusable and not slash:
            hint = f"Switched off or broken are {unusable}. {hint}"
        if owner in self.plugins:
            specs += self.offers(owner)[kind]
            names = ", ".join(repr(spec.name) for spec in self.offers(owner)[kind])
            hint = f"The plugin {owner!r} offers {names or f'no {kind}'}. {hint}"
        return UnknownNameError(kind, name, [spec.name for spec in specs], hint=hint)

    def _load(self, name: str) -> _LoadedPlugin:
        if name not in self.plugins:
            raise UnknownNameError(
                "plugin", name, self.plugins, hint="`grpo plugins` lists what is installed."
            )
        if name in self.disabled:
            raise PluginError(
                f"plugin {name!r} is switched off by GRPO_DISABLE_PLUGINS; "
                "remove its name from that variable"
            )
        if name not in self._loaded_plugins and name not in self._load_failures:
            plugin = self.plugins[name]
            try:
                self._loaded_plugins[name] = isolated(
                    functools.partial(_import, plugin, self._manager)
                )
            except ForeignError as error:
                self._load_failures[name] = _explain_failure(plugin, error)
        if name in self._load_failures:
            raise PluginError(str(self._load_failures[name]))
        return self._loaded_plugins[name]


@dataclass(frozen=True, slots=True)
class _LoadedPlugin:
    """Hold an imported plugin and what it offers."""

    module: object
    offers: Offers


# A module with the hooks only: pluggy inspects every name in it again for every plugin.
_HOOK_SPECS = ModuleType("hooks")
_HOOK_SPECS.__dict__.update(
    {name: value for name, value in vars(hookspecs).items() if name.startswith("grpo_")}
)


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(_HOOK_SPECS)
    return manager


def _import(plugin: Plugin, manager: pluggy.PluginManager) -> _LoadedPlugin:
    """Import one plugin, check its hooks and collect everything it offers.

    Every exception that this raises is a failure of the plugin.

    Args:
        plugin: the plugin to import.
        manager: a plugin manager that holds no plugin before and after this call, so that no call
            of a hook can reach two plugins.
    """
    module = importlib.metadata.EntryPoint(plugin.name, plugin.target, PROJECT).load()
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
        if not manager.get_hookcallers(module):
            raise PluginError(
                f"{plugin.target!r} implements no hook; mark its functions with @grpo_core.hookimpl"
            )
        return _LoadedPlugin(
            module,
            MappingProxyType(
                {
                    kind: _call_offer_hook(manager, plugin, hook)
                    for kind, hook in OFFER_HOOKS.items()
                }
            ),
        )
    finally:
        manager.unregister(name=plugin.name)


def _call_offer_hook(manager: pluggy.PluginManager, plugin: Plugin, hook: str) -> tuple[Spec, ...]:
    """Return what the plugin offers through one hook; raise PluginError if that is not valid."""
    caller = getattr(manager.hook, hook)
    results = caller()
    if len(results) < len(caller.get_hookimpls()):  # pluggy drops results that are None
        raise PluginError(f"{hook}() returned None; return a list of Spec")
    specs: list[Spec] = []
    for result in results:
        if not isinstance(result, list | tuple) or not all(
            isinstance(spec, Spec) for spec in result
        ):
            raise PluginError(f"{hook}() returned {result!r:.80}; return a list of Spec")
        specs += [replace(spec, distribution=plugin.distribution) for spec in result]
    names = [spec.name for spec in specs]
    for name in names:
        if "/" in name and name.partition("/")[0] != plugin.name:
            raise PluginError(
                f"{hook}() offers {name!r}; "
                f"what stands before a slash is the entry point's name: '{plugin.name}/...'"
            )
        if names.count(name) > 1:
            raise PluginError(f"{hook}() offers {name!r} twice")
    return tuple(specs)


def _file_spec(name: str) -> Spec:
    """Return the Spec of a component in a file, given as FILE.py:CLASS.

    The folder of the file is not part of the component's name, so that its tasks do not depend on
    where the file is stored.
    """
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py") or not attribute:
        classes = defined_classes(Path(name))
        found = f" (it defines {', '.join(classes[:8])})" if classes else ""
        form = f"{name}:{classes[0]}" if classes else "path/to/file.py:Class"
        raise PluginError(f"{name!r} does not name a class{found}; write it as {form}")
    return Spec(f"{Path(file).name}:{attribute}", f"{Path(file).resolve()}:{attribute}")


def _iterate_installed(failures: list[Failure]) -> Iterator[Plugin]:
    """Yield the entry points of all distributions on sys.path.

    Those of grpo-core come first, the others follow by the name of their distribution.

    Distributions are read one by one, unlike in `importlib.metadata.entry_points`, where a single
    broken file would hide all plugins.

    Args:
        failures: receives a Failure for each distribution whose metadata cannot be read.
    """
    plugins_by_distribution: dict[str, list[Plugin]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            if f"[{PROJECT}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name = distribution.metadata["Name"].lower().replace("_", "-")
            entries = distribution.entry_points.select(group=PROJECT)
            plugins = [
                Plugin(entry.name, name, distribution.metadata["Version"] or "?", entry.value)
                for entry in sorted(entries, key=lambda entry: entry.name)
            ]
        except Exception as error:  # noqa: BLE001 - metadata of other projects may hold anything
            failures.append(
                Failure(
                    Plugin("?", str(getattr(distribution, "_path", "?")), "?", ""),
                    f"its metadata cannot be read: {error!r}",
                    "reinstall the distribution",
                )
            )
            continue
        # Python imports the distribution that comes first on sys.path.
        plugins_by_distribution.setdefault(name, plugins)
    for name in sorted(plugins_by_distribution, key=lambda name: (name != _BUNDLED, name)):
        yield from plugins_by_distribution[name]


def find_conflicts(components: Iterable[Component]) -> dict[Component, Failure]:
    """Return the components whose name belongs to another plugin, each with a failure.

    A name belongs to the plugin that bears it, else to the first plugin that offers it.

    Args:
        components: what the plugins offer, in order of the plugins.
    """
    ranked = sorted(components, key=lambda component: component[0].name != component[2])
    owners = {(kind, name): plugin for plugin, kind, name in reversed(ranked)}
    return {
        (plugin, kind, name): Failure(
            plugin,
            f"it offers the {kind} {name!r}, but this name belongs to the plugin {owner.name!r} "
            f"of {owner.distribution} {owner.version}",
            f"to use this {kind} instead, set GRPO_DISABLE_PLUGINS={owner.name}",
        )
        for plugin, kind, name in ranked
        if (owner := owners[kind, name]) != plugin
    }


def _explain_failure(plugin: Plugin, error: ForeignError) -> Failure:
    cause, reason = error.__cause__, str(error)
    if isinstance(cause, PluginError | pluggy.PluginValidationError):
        # The text of these is complete. The line number in our own code would not help.
        reason = " ".join(str(cause).split())
    first_advice = (
        "install it"
        if isinstance(cause, ModuleNotFoundError)
        else f"try `pip install --upgrade {plugin.distribution}`"
    )
    return Failure(
        plugin,
        reason,
        f"{first_advice}, or uninstall {plugin.distribution}, "
        f"or set GRPO_DISABLE_PLUGINS={plugin.name}",
    )
