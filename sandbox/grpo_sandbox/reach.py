"""Keeps reference answers away from programs: no environment's package may be visible in a jail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points

from grpo_core import ConfigError
from grpo_sandbox.jail import Jail, JailLostError

ENTRY_POINT_GROUP = "grpo"
OURS = ("grpo_core", "grpo_sandbox")
INODES = 1024
"""Number of files and folders that a call may make."""
SESSION_INODES = 8192
"""Number of files and folders that a session may hold."""
_SHOWN = 3


def forbidden_packages() -> tuple[str, ...]:
    """Return the names of the packages that offer components, and of the core.

    A program that can read an environment's code can return the reference answers.
    """
    offered = {
        point.value.partition(":")[0].partition(".")[0]
        for point in entry_points(group=ENTRY_POINT_GROUP)
    }
    return tuple(sorted({*offered, *OURS} - sys.stdlib_module_names))


def first_jail(start: Callable[[], Jail], name: str) -> Jail:
    """Start a first jail and return it.

    Args:
        start: Makes the jail.
        name: Name of the sandbox in messages.

    Raises:
        ConfigError: The jail does not start, or a forbidden package is visible in it.
    """
    try:
        jail = start()
    except JailLostError as error:
        raise ConfigError(f"the sandbox {name} cannot run a program: {error}") from None
    require_hidden(jail, name)
    return jail


def require_hidden(jail: Jail, name: str) -> None:
    """Close the jail and raise ConfigError if a forbidden package is visible in it."""
    if jail.visible:
        shown = ", ".join(jail.visible[:_SHOWN])
        jail.close()
        raise ConfigError(
            f"programs in the sandbox {name} could read the answers: its jails show {shown}; "
            "use an image or a Python (sandbox.settings) in which no environment is installed"
        )
