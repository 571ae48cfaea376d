"""Define the errors that the SDK raises on purpose.

For a UserError the command line prints one message without a traceback and exits with status 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrpoError(Exception):
    """Every error that the SDK raises on purpose is a subclass of this one."""

    exit_status = 1
    """The status with which the command line exits."""


class UserError(GrpoError):
    """The user can fix this error.

    The message says what is wrong, what was found and what to do.
    """

    exit_status = 2


class ConfigError(UserError):
    """A setting does not exist, has the wrong type or contradicts another."""


class UnknownNameError(UserError):
    """Nothing that is installed has this name.

    Args:
        kind: the kind of thing that is named, such as "environment".
        name: the name that the user gave.
        known: the names that exist, among which a similar one is suggested.
        hint: a sentence to add to the message.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        suggestion = did_you_mean(name, sorted(known))
        super().__init__(f"{kind} {name!r} is not known{suggestion} {hint}".rstrip())


class PluginError(UserError):
    """A plugin could not be found or loaded; the message carries its reason and the fix."""


class MissingExtraError(UserError):
    """A package of an optional extra is not installed.

    Args:
        what: the feature that needs the extra.
        extra: the name of the extra.
        package: the package that is missing, if it is known.
        distribution: the distribution that has the extra.
    """

    def __init__(
        self, what: str, extra: str, *, package: str = "", distribution: str = "grpo-core"
    ) -> None:
        missing = f" ({package!r} is not installed)" if package else ""
        self.package = package
        """The package that is missing, or ""."""
        self.fix = f"pip install '{distribution}[{extra}]'"
        """The command that installs the extra."""
        super().__init__(f"{what} needs the extra {extra!r}{missing}: {self.fix}")


class SandboxError(GrpoError):
    """A session of a sandbox failed by no fault of the program: the infrastructure did."""


class RunStoppedError(GrpoError):
    """The run must not go on; the steps done so far are saved.

    Reasons are too many verifier errors, non-finite updates and a full disk.
    """


class OutputError(GrpoError):
    """Writing to stdout or stderr failed: its reader is gone, or its disk is full."""

    def __init__(self, error: OSError) -> None:
        self.closed = isinstance(error, BrokenPipeError)
        """The reader is gone, as after `| head`; programs then end without a message."""
        super().__init__(f"the output cannot be written: {error.strerror or error}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: "; did you mean 'fizzbuzz'?" for a similar name, else "."."""
    similar_names = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {similar_names[0]!r}?" if similar_names else "."
