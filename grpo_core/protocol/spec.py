"""Describe the components that plugins offer; a component is imported on first use."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_core.protocol.errors import MissingExtraError, PluginError, did_you_mean


@dataclass(frozen=True, slots=True)
class Spec:
    """Names a component and says where to import it from."""

    name: str
    """The name of the component: a name of its own, or "plugin/variant"."""
    target: str
    """Where the component is: "package.module:Attribute", "package:file.toml" for the content of
    a file in a package, or "/path/of/a/file.py:Attribute" for code that is not in a package."""
    summary: str | None = ""
    """A description for lists of components."""
    extra: str | None = None
    """The extra of the distribution that the component needs."""
    remote: bool = False
    """The component uses a service elsewhere, so its setting `model` never names a local file."""
    row_rewards: tuple[str, ...] = ()
    """Of an environment that makes tasks of a file of rows: the rewards by name that it pays them
    by; "*" stands for functions, FILE.py:FUNCTION. Its settings have `path` and `reward`, and
    `--data FILE --reward NAME` chooses it."""
    distribution: str = "grpo-core"
    """The distribution that offers the component, which has `extra`; grpo sets it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_rewards", tuple(self.row_rewards))  # JSON has lists alone

    def load(self) -> Any:
        """Import the target and return it; of a TOML file, return the content as a dict.

        Raises:
            MissingExtraError: a package of `extra` is missing; the message names the extra.
            PluginError: the target does not exist, or cannot be imported or read; the message
                names it or what is missing.
        """
        module_name, _, attribute = self.target.rpartition(":")
        if not module_name or not attribute:
            raise PluginError(
                f"{self.name!r} has the target {self.target!r}; "
                "write it as 'package.module:Attribute'"
            )
        try:
            if module_name.endswith(".py"):
                return _attribute_of_file(Path(module_name), attribute)
            if attribute.endswith(".toml"):
                return _read_toml(module_name, attribute)
            return getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if f"{module_name}.".startswith(f"{error.name}."):
                raise PluginError(
                    f"{self.name!r} cannot be loaded: its target {self.target!r} does not exist "
                    f"(there is no module {error.name!r}); correct the target in its Spec"
                ) from error
            if self.extra:
                raise MissingExtraError(
                    f"{self.name!r}",
                    self.extra,
                    package=error.name or "",
                    distribution=extra_owner(self.distribution, self.extra),
                ) from error
            raise PluginError(
                f"{self.name!r} cannot be loaded: {error}{_import_place(error)}; install the "
                "missing package"
            ) from error
        except AttributeError as error:
            raise PluginError(
                f"{self.name!r} cannot be loaded: {error}; its target is {self.target!r}"
            ) from error


def extra_owner(distribution: str, extra: str) -> str:
    """Return the distribution whose extra it is: grpo-core if only that one declares it."""
    import importlib.metadata

    def declares(name: str) -> bool:
        try:
            return extra in (importlib.metadata.metadata(name).get_all("Provides-Extra") or ())
        except importlib.metadata.PackageNotFoundError:
            return False

    core = "grpo-core"
    return core if declares(core) and not declares(distribution) else distribution


def _read_toml(package: str, file: str) -> dict[str, Any]:
    """Return the content of a TOML file that lies in a package."""
    import tomllib  # these two would slow down every command that reads no such file
    from importlib import resources

    try:
        return tomllib.loads((resources.files(package) / file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PluginError(f"{file!r} of {package!r} cannot be read: {error}") from error


def names_file(name: str) -> bool:
    """Return whether `name` is a file's and not that of something installed.

    It is a file's as path/to/file.py:Class, and also as path/to/file.py, which lacks the class.
    """
    return ".py:" in name or name.endswith(".py")


def _import_place(error: ImportError) -> str:
    """Return the file and the line of the import that failed, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if not frame.filename.startswith("<frozen importlib")]
    return f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""


def _attribute_of_file(path: Path, attribute: str) -> Any:
    """Return what a file defines under a name.

    Raises:
        PluginError: it defines nothing of this name.
    """
    module = _import_file(path)
    if not hasattr(module, attribute):
        names = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
            and name == getattr(value, "__qualname__", "")
        ]
        raise PluginError(
            f"{str(path)!r} defines no {attribute!r}"
            f"{did_you_mean(attribute, names).removesuffix('.')}; it defines "
            f"{', '.join(names[:8]) or 'nothing of its own'}"
        )
    return getattr(module, attribute)


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module.

    The file can import modules in its folder as if it were run as a script, except those whose
    name belongs to something installed.
    """
    if not path.is_file():
        raise PluginError(
            f"{str(path)!r} is not a file; name one that exists, as in path/to/file.py:Class"
        )
    name = f"grpo_file_{path.resolve()}".replace(
        ".", "_"
    )  # no dot, or Python would look for a parent package
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None  # the name ends in .py
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    if str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))
    sys.modules[name] = module  # a dataclass looks up its module there
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
