"""The main sandbox: each jail is a hardened Docker container.

The supervisor is the container's process 1 and communicates over one attached stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core import SESSION_PORT, ConfigError, MissingExtraError
from grpo_core.plugins.versions import check_versions
from grpo_sandbox import image
from grpo_sandbox.bridge import SHOWN_AT, Bridge, settings_of
from grpo_sandbox.bundle import command
from grpo_sandbox.jail import SCAN_SECONDS, START_SECONDS, Jail, JailLostError, SupervisorEnd
from grpo_sandbox.pool import PATIENCE_SECONDS, JailPool
from grpo_sandbox.reach import INODES, SESSION_INODES, first_jail, forbidden_packages
from grpo_sandbox.sessions import SESSIONS

_log = logging.getLogger(__name__)

FOLDER = "/work/call"
SESSION_FOLDER = "/home/user"
LABEL = "grpo.sandbox"
UIDS = range(200_000, 2_000_000_000, 2)
"""Range of uids for calls. Processes are counted per uid on the whole machine, so each container's
calls run under a uid that no other process has. The next uid is that of its forwarder."""
API_SECONDS = 20
REMOVAL_SECONDS = 20
"""How long `close` tries to remove containers that a daemon is slow to give up."""
_NO_TERMINALS = {"/dev/pts": "size=64k,mode=0755,noexec,nosuid,nodev"}
"""Mount that hides terminals, since a call could see when earlier calls used one."""


_SMALL_BUFFERS = dict.fromkeys(("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"), "4096 65536 262144")
"""Buffers of TCP that programs cannot enlarge."""


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """Settings of the sandbox `docker`."""

    jails: int | None = None
    """Number of containers that run at once; None for two per core."""
    image: str = "grpo-sandbox"
    """The image, which `grpo sandbox build` makes."""
    python: str = "python3"
    """The interpreter inside the image."""
    runtime: str | None = None
    """A runtime that Docker has, such as "runsc"; None for its default."""
    memory_mb: int = 512
    """Memory of a container, above which the kernel kills the program in it."""
    folder_mb: int = 16
    """How much a call may write, in MB."""
    sessions: int = SESSIONS
    """Number of sessions that are open at once; each has a container of its own."""
    session_mb: int = 64
    """How much a session may hold, in MB."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long programs wait for a daemon that cannot run any."""


class Docker(JailPool):
    """A pool of jails that are Docker containers.

    Raises:
        ConfigError: Docker, its image or its runtime is missing, a first container cannot be
            started, or the package of an environment is visible in it.
    """

    Config = DockerConfig

    def __init__(self, config: DockerConfig | None = None) -> None:
        self.config = config or DockerConfig()
        self._client = _client()
        _require_image(self._client, self.config.image)
        runtimes = self._client.info()["Runtimes"]
        if self.config.runtime and self.config.runtime not in runtimes:
            raise ConfigError(
                f"Docker has no runtime {self.config.runtime!r}; "
                f"it has {', '.join(sorted(runtimes))}"
            )
        _sweep(self._client, _log.info)
        self._id = secrets.token_hex(8)
        self._left: list[Any] = []
        super().__init__(
            self._jail,
            size=2 * len(os.sched_getaffinity(0))
            if self.config.jails is None
            else self.config.jails,
            start_session=lambda image, forbidden, bridge: self._jail(
                forbidden, image or self.config.image, session=True, bridge=bridge
            ),
            sessions=self.config.sessions,
            name="the sandbox docker",
            patience_seconds=self.config.patience_seconds,
        )
        self.keep_spare(first_jail(lambda: self._jail(forbidden_packages()), "docker"))

    def _jail(
        self,
        forbidden: tuple[str, ...] = (),
        image: str | None = None,
        *,
        session: bool = False,
        bridge: Bridge | None = None,
    ) -> Jail:
        import docker
        import requests

        try:
            if image is not None:
                _require_image(self._client, image)
            container = self._client.containers.create(
                image or self.config.image,
                **self._settings(forbidden, session=session, bridge=bridge),
            )
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise JailLostError(f"Docker could not make a container: {error}") from error
        self._remove_left()
        stream = None
        try:
            stream = self._client.api.attach_socket(
                container.id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            container.start()
            channel: socket.socket = getattr(stream, "_sock", stream)
            return Jail(
                f"container {container.short_id}",
                writer=channel.fileno(),
                reader=channel.fileno(),
                end=lambda: self._end(container, stream),
                interrupt=lambda: _hang_up(channel),
                multiplexed=True,
                start_seconds=SCAN_SECONDS if forbidden else START_SECONDS,
                supervisor=lambda: _process_of(container),
            )
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            self._end(container, stream)
            raise JailLostError(f"Docker could not start a container: {error}") from error

    def _end(self, container: Any, stream: Any) -> SupervisorEnd:
        """Remove a container; if Docker cannot remove it now, it is removed with a later one."""
        end = SupervisorEnd()
        if stream is not None:
            with contextlib.suppress(OSError):
                _hang_up(getattr(stream, "_sock", stream))
                stream.close()
        with contextlib.suppress(Exception):  # also what breaks inside a stream of events
            end = self._end_of(container)
        self._remove(container)
        return end

    def _end_of(self, container: Any) -> SupervisorEnd:
        """Return what Docker knows about the end of a container.

        A container that has ended is soon removed with its state; its events stay for a while.
        """
        import docker

        filters = {"container": container.id, "event": ["oom", "die"]}
        events = list(
            self._client.api.events(
                since="0", until=f"{time.time():.9f}", filters=filters, decode=True
            )
        )
        out_of_memory = any(event["Action"] == "oom" for event in events)
        statuses = [
            event["Actor"]["Attributes"].get("exitCode")
            for event in events
            if event["Action"] == "die"
        ]
        try:
            container.reload()
            state = container.attrs["State"]
            out_of_memory = out_of_memory or state["OOMKilled"]
            statuses += [] if state["Running"] else [state["ExitCode"]]
        except docker.errors.NotFound:
            pass
        if not statuses:
            return SupervisorEnd(out_of_memory=out_of_memory)
        return SupervisorEnd(
            f"status {statuses[0]}{', out of memory' if out_of_memory else ''}", out_of_memory
        )

    def _remove_left(self) -> None:
        """Remove containers that could not be removed before, now that Docker answers again."""
        with self._lock:
            left, self._left = self._left, []
        for container in left:
            self._remove(container)

    def _remove(self, container: Any) -> None:
        import docker
        import requests

        try:
            container.remove(force=True)
        except docker.errors.NotFound:
            pass
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            if "already in progress" not in str(error):
                with self._lock:
                    self._left.append(container)

    def _labels(self) -> dict[str, str]:
        """Return what tells later whose container it is, and whether its owner still lives."""
        return {
            LABEL: str(os.getpid()),
            f"{LABEL}.started": str(int(time.time())),
            f"{LABEL}.host": socket.gethostname(),
            f"{LABEL}.namespace": _namespace(),
            f"{LABEL}.pool": self._id,
        }

    def _settings(
        self, forbidden: tuple[str, ...], *, session: bool, bridge: Bridge | None
    ) -> dict[str, Any]:
        memory = f"{self.config.memory_mb}m"
        folder = SESSION_FOLDER if session else FOLDER
        room = (
            f"size={self.config.session_mb}m,nr_inodes={SESSION_INODES},exec"
            if session
            else f"size={self.config.folder_mb}m,nr_inodes={INODES},noexec"
        )
        settings = {
            "uid": secrets.choice(UIDS),
            "folder": folder,
            "forbidden": forbidden,
            "session": session,
            "bridge": settings_of(bridge, SESSION_PORT),
        }
        return {
            "command": command(self.config.python, settings),
            "environment": {
                "HOME": folder,
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "LANG": "C.UTF-8",
            },
            "user": "0:0",
            "working_dir": "/",
            "hostname": "jail",
            "stdin_open": True,
            "auto_remove": True,
            "network_mode": "none",
            "ipc_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "cap_add": ["SETUID", "SETGID"],
            "security_opt": ["no-new-privileges:true"],
            "mem_limit": memory,
            "memswap_limit": memory,
            "nano_cpus": 1_000_000_000,
            "pids_limit": 128,
            "tmpfs": {
                os.path.dirname(folder): f"{room},mode=0755,nosuid,nodev",
                **_NO_TERMINALS,
            },
            "sysctls": {
                "kernel.shmmni": "0",
                "kernel.msgmni": "0",
                "kernel.sem": "0 0 0 0",
                **({} if bridge is None else _SMALL_BUFFERS),
            },
            "mounts": [] if bridge is None else [_mount(bridge)],
            "oom_score_adj": 500,
            "log_config": {"Type": "none", "Config": {}},
            "labels": self._labels(),
            **({"runtime": self.config.runtime} if self.config.runtime else {}),
        }

    async def close(self) -> None:
        await super().close()
        with self._lock:
            in_use = bool(self._living()) or self._sessions.is_used
        if not in_use:
            pool, self._id = self._id, secrets.token_hex(8)  # `run` may be called again meanwhile
            await asyncio.to_thread(self._remove_all, pool)
            self._client.close()

    def _remove_all(self, pool: str) -> None:
        """Remove every container with the label of `pool`, also those that are not known here.

        A daemon that dies while it makes a container gives no answer, but may keep the container;
        one that has just started again may need several attempts to remove what it had.
        """
        import docker
        import requests

        filters = {"label": f"{LABEL}.pool={pool}"}
        deadline, reason = time.monotonic() + REMOVAL_SECONDS, ""
        gone = set[str]()  # a daemon that was killed may list containers that it does not have
        while True:
            try:
                listed = {
                    container["Id"]
                    for container in self._client.api.containers(
                        all=True, quiet=True, filters=filters
                    )
                } - gone
            except (docker.errors.DockerException, requests.RequestException, OSError) as error:
                _log.warning(
                    "Docker does not answer, so its containers could not be removed: %s; they end "
                    "by themselves, and 'grpo sandbox prune' removes what remains",
                    error,
                )
                return
            if not listed:
                return
            if time.monotonic() > deadline:
                names = ", ".join(container[:12] for container in listed)
                _log.warning(
                    "Docker could not remove the containers %s%s; remove them by 'grpo sandbox "
                    "prune'",
                    names,
                    reason,
                )
                return
            for container in listed:
                try:
                    self._client.api.remove_container(container, force=True)
                except docker.errors.NotFound:
                    gone.add(container)
                except (docker.errors.DockerException, requests.RequestException, OSError) as error:
                    reason = f": {error}"
            time.sleep(0.1)

    @classmethod
    def build(cls, origin: str | None, *, mirror: str | None, say: Callable[[str], None]) -> None:
        """Make the image.

        Args:
            origin: "registry", "debian" or the path of an archive; None for the registry, or Debian
                if no registry can be reached.
            mirror: Debian mirror; None for the one of this system's apt, or debootstrap's own.
            say: Shows a message to the user.
        """
        client, tag = _client(), DockerConfig().image
        import docker

        ids_before = {listed.id for listed in client.images.list(tag)}
        try:
            if origin in ("registry", None):
                try:
                    image.from_registry(client, tag, say)
                except docker.errors.DockerException as error:
                    if origin is not None:
                        raise ConfigError(f"the image could not be built: {error}") from None
                    say(f"no registry: {error}")
                    image.from_debian(client, tag, say, mirror=mirror)
            elif origin == "debian":
                image.from_debian(client, tag, say, mirror=mirror)
            else:
                image.from_archive(client, tag, say, Path(origin))
            for replaced in ids_before - {listed.id for listed in client.images.list(tag)}:
                with contextlib.suppress(docker.errors.APIError):  # a trainer may still be using it
                    if not client.images.get(replaced).tags:
                        client.images.remove(replaced)
        finally:
            client.close()

    @classmethod
    def prune(cls, *, say: Callable[[str], None]) -> None:
        """Remove the containers of trainers of this machine that no longer run."""
        client = _client()
        try:
            _sweep(client, say)
        finally:
            client.close()


def _process_of(container: Any) -> int | None:
    """Return the first process of a container, or None if this process sees it under no number.

    A daemon on another machine, or in another pid namespace, has numbers of its own.
    """
    container.reload()
    pid: int = container.attrs["State"]["Pid"]
    with contextlib.suppress(OSError):
        return pid if container.id in Path(f"/proc/{pid}/cgroup").read_text() else None
    return None


def _mount(bridge: Bridge) -> Any:
    import docker

    return docker.types.Mount(SHOWN_AT, str(bridge.folder), type="bind", read_only=True)


def _client() -> Any:
    check_versions("the sandbox 'docker'", "sandbox")
    try:
        import docker
    except ModuleNotFoundError:
        raise MissingExtraError("the sandbox 'docker'", "sandbox", package="docker") from None
    try:
        client = docker.from_env(timeout=API_SECONDS, max_pool_size=64)
        client.ping()
    except docker.errors.DockerException as error:
        raise ConfigError(
            f"Docker does not answer ({error}); start its daemon, or set DOCKER_HOST"
        ) from None
    return client


def _require_image(client: Any, name: str) -> None:
    import docker

    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        raise ConfigError(
            f"Docker has no image {name!r}; make it with `grpo sandbox build`, or name one that "
            "it has"
        ) from None


def _sweep(client: Any, say: Callable[[str], None]) -> None:
    """Remove containers whose owner, a process of this machine, no longer runs.

    They end by themselves, unless the daemon was not running at that time.
    """
    import docker

    for container in client.containers.list(
        all=True, filters={"label": LABEL}, ignore_removed=True
    ):
        owner = container.labels[LABEL]
        if (
            container.labels.get(f"{LABEL}.host") == socket.gethostname()
            and container.labels.get(f"{LABEL}.namespace", _namespace()) == _namespace()
            and not Path(f"/proc/{owner}").exists()
        ):
            say(f"removing {container.short_id} of process {owner}")
            with contextlib.suppress(docker.errors.APIError):  # it was already being removed
                container.remove(force=True)


def _namespace() -> str:
    """Return the name of the process namespace, in which alone a process id has its meaning."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _hang_up(channel: socket.socket) -> None:
    """Close the connection to a supervisor, which then ends, for all threads that use it."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)
