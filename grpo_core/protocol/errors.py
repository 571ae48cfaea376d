"""The errors that the SDK raises on purpose. A UserError prints one message without a traceback and exits with status 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrpoError(Exception):
    """The root of everything the SDK raises on purpose. exit_status: what the command line returns."""

    exit_status = 1


class UserError(GrpoError):
    """Something the user can mend: the message says what is wrong, what was found and what to do."""

    exit_status = 2


class ConfigError(UserError):
    """A setting that does not exist, has the wrong type or contradicts another."""


class UnknownNameError(UserError):
    """A name that nothing installed answers to."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        known = sorted(known)
        message = f"{kind} {name!r} is not known{did_you_mean(name, known)}"
        super().__init__(f"{message} {hint}".rstrip())


class PluginError(UserError):
    """A plugin could not be found or loaded; the message carries its reason and the fix."""


class MissingExtraError(UserError):
    """A package of an optional extra is not installed."""

    def __init__(self, what: str, extra: str, *, package: str = "") -> None:
        found = f" ({package!r} is not installed)" if package else ""
        super().__init__(
            f"{what} needs the extra {extra!r}{found}: pip install 'grpo-core[{extra}]'"
        )


class RunStoppedError(GrpoError):
    """A run that must not go on: too many verifier errors, non-finite updates, a full disk. What was done is saved."""


class OutputError(GrpoError):
    """stdout or stderr cannot be written: its reader is gone, or its disk is full.

    Attributes:
        closed: whether the reader is gone, as after `| head`; programs then end without a word.
    """

    def __init__(self, error: OSError) -> None:
        self.closed = isinstance(error, BrokenPipeError)
        super().__init__(f"the output cannot be written: {error.strerror or error}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'fizzbuzz'?" for a near miss, else "." """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else "."
