"""Join a Ray cluster, or start one on this machine that ends with the run."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grpo_core import ConfigError, MissingExtraError
from grpo_ray.config import Actors
from grpo_ray.own import OwnCluster

_logger = logging.getLogger(__name__)
SPARE_CALLS = 8
"""How many calls an actor takes besides requests: questions whether it lives, and its end."""

_KNOCK_SECONDS = 10.0
"""How long a cluster may take to accept a connection."""


class _Connection:
    """Hold what a process has only once: its connection to Ray, which several may use."""

    users = 0
    """How many have joined and not left."""
    address: str | None = None
    own: OwnCluster | None = None
    """The cluster that was started here; None if it was not."""
    is_owned = False
    """Whether the connection was made here."""


class Cluster:
    """A Ray cluster, which the executor and the sampler of a run share."""

    def __init__(self, address: str | None) -> None:
        """Prepare the connection.

        Args:
            address: address of a cluster; None: one is started on this machine.

        Raises:
            MissingExtraError: Ray is not installed.
        """
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError("the executor 'ray'", "ray", package="ray")
        self._address = address
        self._joined = False

    def join(self) -> None:
        """Connect, and start the cluster if there is none to connect to.

        A connection that the program has already is used and not closed.

        Raises:
            ConfigError: there is no cluster at the address, it cannot be started, or the run uses
                another one already.
        """
        if self._joined:
            return
        if not _Connection.users:
            _Connection.own = _connect(self._address)
            _Connection.address = self._address
        elif _Connection.address != self._address:
            raise ConfigError(
                "a run can use one Ray cluster, and its settings name "
                f"{_Connection.address or 'one of its own'} and {self._address or 'one of its own'}"
            )
        _Connection.users += 1
        self._joined = True

    def leave(self) -> None:
        """Disconnect if nobody else is left, and end the cluster if it was started here."""
        if not self._joined:
            return
        self._joined = False
        _Connection.users -= 1
        if not _Connection.users and _Connection.is_owned:
            import ray

            ray.shutdown()
            if _Connection.own is not None:
                _Connection.own.close()
                _Connection.own = None

    def room_for(self, actors: Actors) -> int:
        """Return how many such actors fit into the cluster when nothing else runs there."""
        needs = actors.needs()
        return sum(
            min(
                (
                    math.floor(node["Resources"].get(name, 0.0) / amount + 1e-9)
                    for name, amount in needs.items()
                ),
                default=1,
            )
            for node in self.nodes()
        )

    def nodes(self) -> list[dict[str, Any]]:
        """Return Ray's description of each node that is alive."""
        import ray

        return [node for node in ray.nodes() if node["Alive"]]

    def start_actor(self, actor: type, actors: Actors, *arguments: object, calls: int) -> Any:
        """Return the handle of a new actor, which waits for room if there is none.

        Args:
            actor: its class.
            actors: what it takes.
            arguments: those of its class.
            calls: most calls at once.
        """
        import ray

        remote = ray.remote(actor).options(
            num_cpus=actors.num_cpus,
            num_gpus=actors.num_gpus,
            resources=dict(actors.resources),
            max_restarts=0,
            max_concurrency=calls + SPARE_CALLS,
            scheduling_strategy="SPREAD",
        )
        return remote.remote(*arguments)

    def describe(self) -> str:
        """Return what the nodes have, for a message about room."""
        totals: dict[str, float] = {}
        for node in self.nodes():
            for name, amount in node["Resources"].items():
                if not name.startswith(("node:", "memory", "object_store_memory")):
                    totals[name] = totals.get(name, 0.0) + amount
        amounts = ", ".join(f"{amount:g} {name}" for name, amount in sorted(totals.items()))
        count = len(self.nodes())
        return f"{count} node{'s' if count != 1 else ''} with {amounts or 'no resources'}"


def _connect(address: str | None) -> OwnCluster | None:
    """Connect to Ray; return the cluster if it was started here.

    Raises:
        ConfigError: there is no cluster at the address, or it cannot be started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Actors without a GPU of their own see those of their node, as worker processes do.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    _keep_quiet()
    _Connection.is_owned = not ray.is_initialized()
    if not _Connection.is_owned:
        return None
    own = None if address else OwnCluster()
    try:
        _start(address, own)
    except BaseException:
        if own is not None:
            own.close()
        raise
    return own


def _start(address: str | None, own: OwnCluster | None) -> None:
    """Call `ray.init`, for the cluster at the address or for one in a folder of its own.

    Raises:
        ConfigError: it fails.
    """
    import ray

    try:
        _knock(address or "")
        if own is not None:
            own.prepare()
        with _own_sigterm():
            ray.init(
                address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=None if own is None else str(own.folder),
            )
    except Exception as error:  # noqa: BLE001 - Ray raises bare ones, too, as for a slow start
        place = f"at {address}" if address else "on this machine"
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"the Ray cluster {place} cannot be used: {reason:.400}; check the setting `address` "
            "and `ray status`"
        ) from None


def _keep_quiet() -> None:
    """Send to the program's log what Ray would write to its standard output.

    Ray has no switch for what its nodes report, as that many processes were started.
    """
    from ray._private import worker

    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what matters, this package says

    def log(data: Mapping[str, Any], **_: object) -> None:
        for line in data.get("lines", ()):
            _logger.info("Ray says: %s", line)

    worker.print_to_stdstream = log


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray would wait for minutes.

    Other addresses, as "auto", are Ray's to judge.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the program's handler of SIGTERM, which `ray.init` replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
