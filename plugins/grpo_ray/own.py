"""Keep the Ray cluster that a run starts on this machine to the run alone."""

from __future__ import annotations

import os
import secrets

from grpo_core.calls.folders import remove_folder
from grpo_core.calls.private_folder import make_private_folder, usual_parent

_INNER = "r"
_SOCKET = f"/{_INNER}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path below the private folder; it is that of a socket."""
_MOST_BYTES = 107 - len(_SOCKET)
_TOKEN = secrets.token_hex(32)
"""What the processes of the cluster show each other. Ray reads it once in a process."""
_VARIABLES = {
    "RAY_AUTH_MODE": "token",
    # Else Ray takes the token from ~/.ray/auth_token, or writes it there for all to read.
    "RAY_AUTH_TOKEN": _TOKEN,
    # The name is history: unless clusters of several machines are enabled, ports are opened on the
    # loopback interface only.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class OwnCluster:
    """Hold the private folder and the variables of a cluster that this process starts.

    Raises:
        ConfigError: no folder can be made whose path is short enough.
    """

    def __init__(self) -> None:
        self._private = make_private_folder(
            "grpo-ray-",
            (os.environ.get("RAY_TMPDIR"), usual_parent(), "/tmp", "/var/tmp"),
            what_for="a Ray cluster of the run's own needs",
            remedy=f"set RAY_TMPDIR to a folder of your own with a path of at most "
            f"{_MOST_BYTES - len('/grpo-ray-12345678')} bytes",
            most_bytes=_MOST_BYTES,
        )
        self.folder = self._private / _INNER
        """Where Ray keeps its sessions. It opens it to all, so the one above is private."""
        self._previous = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update(_VARIABLES)
        self._is_open: bool | None = None

    def prepare(self) -> None:
        """Make Ray read the variables, also where it was imported before."""
        from ray import _raylet
        from ray._private import ray_constants

        self._is_open = ray_constants.ENABLE_RAY_CLUSTER
        ray_constants.ENABLE_RAY_CLUSTER = False
        _raylet.Config.initialize("")
        _raylet.AuthenticationTokenLoader.instance().reset_cache()

    def close(self) -> None:
        """Remove the folder and set the variables back, once the cluster has ended."""
        for name, text in self._previous.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text
        if self._is_open is not None:
            from ray._private import ray_constants

            ray_constants.ENABLE_RAY_CLUSTER = self._is_open
        remove_folder(self._private)
