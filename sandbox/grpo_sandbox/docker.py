"""The main sandbox: each jail is a hardened container with the supervisor as its process 1, on one attached stream."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core import ConfigError
from grpo_sandbox import image, supervisor
from grpo_sandbox.jail import Jail, JailLostError
from grpo_sandbox.pool import JailPool

FOLDER = "/work"
LABEL = "grpo.sandbox"
UIDS = range(200_000, 2_000_000_000)
"""Processes are counted per uid on the whole machine, so each container's calls run under a number that nobody shares."""
API_SECONDS = 30


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """jails: containers at once; None: two per core. image: what `grpo sandbox build` makes. runtime: such as "runsc", where Docker
    has it. memory_mb: of a container, beyond which the kernel ends the program in it. folder_mb: what a call may write."""

    jails: int | None = None
    image: str = "grpo-sandbox"
    python: str = "python3"
    runtime: str | None = None
    memory_mb: int = 512
    folder_mb: int = 16


class Docker(JailPool):
    """Jails by Docker."""

    Config = DockerConfig

    def __init__(self, config: DockerConfig | None = None) -> None:
        import docker

        self.config = config or DockerConfig()
        self._client = _client()
        try:
            self._client.images.get(self.config.image)
        except docker.errors.ImageNotFound:
            raise ConfigError(f"Docker has no image {self.config.image!r}; make it with `grpo sandbox build`") from None
        runtimes = self._client.info()["Runtimes"]
        if self.config.runtime and self.config.runtime not in runtimes:
            raise ConfigError(f"Docker has no runtime {self.config.runtime!r}; it has {', '.join(sorted(runtimes))}")
        _sweep(self._client, logging.getLogger(__name__).info)
        super().__init__(self._jail, size=self.config.jails or 2 * len(os.sched_getaffinity(0)))

    def _jail(self) -> Jail:
        import docker
        import requests

        try:
            container = self._client.containers.create(self.config.image, **self._settings())
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise JailLostError(f"Docker could not make a container: {error}") from error
        try:
            stream = self._client.api.attach_socket(container.id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            container.start()
            channel: socket.socket = getattr(stream, "_sock", stream)
            return Jail(
                f"container {container.short_id}",
                writer=channel.fileno(),
                reader=channel.fileno(),
                end=lambda: _end(container, stream),
                multiplexed=True,
            )
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            _end(container, None)
            raise JailLostError(f"Docker could not start a container: {error}") from error
        except JailLostError:
            _end(container, None)
            raise

    def _settings(self) -> dict[str, Any]:
        memory = f"{self.config.memory_mb}m"
        source = Path(supervisor.__file__).read_text(encoding="utf-8")
        settings = json.dumps({"uid": secrets.choice(UIDS), "folder": FOLDER})
        return {
            "command": [self.config.python, "-I", "-S", "-c", source, settings],
            "environment": {"HOME": FOLDER, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
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
            "tmpfs": {FOLDER: f"size={self.config.folder_mb}m,mode=0777,nr_inodes=1024,noexec,nosuid,nodev"},
            "sysctls": {"kernel.shmmni": "0", "kernel.msgmni": "0", "kernel.sem": "0 0 0 0"},
            "oom_score_adj": 500,
            "log_config": {"Type": "none", "Config": {}},
            "labels": {LABEL: str(os.getpid()), f"{LABEL}.started": str(int(time.time())), f"{LABEL}.host": socket.gethostname()},
            **({"runtime": self.config.runtime} if self.config.runtime else {}),
        }

    async def close(self) -> None:
        await super().close()
        self._client.close()

    @classmethod
    def build(cls, origin: str | None, *, mirror: str | None, say: Callable[[str], None]) -> None:
        """Make the image. origin: "registry", "debian", the path of an archive; None: the registry, or Debian if that cannot be reached."""
        import docker

        client, tag = _client(), DockerConfig().image
        before = {found.id for found in client.images.list(tag)}
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
            for replaced in before - {found.id for found in client.images.list(tag)}:
                with contextlib.suppress(docker.errors.APIError):  # a trainer may still be using it
                    if not client.images.get(replaced).tags:
                        client.images.remove(replaced)
        finally:
            client.close()

    @classmethod
    def prune(cls, *, say: Callable[[str], None]) -> None:
        """Remove the containers of trainers of this machine that are no more."""
        client = _client()
        try:
            _sweep(client, say)
        finally:
            client.close()


def _client() -> Any:
    import docker

    try:
        client = docker.from_env(timeout=API_SECONDS, max_pool_size=64)
        client.ping()
    except docker.errors.DockerException as error:
        raise ConfigError(f"Docker does not answer ({error}); start its daemon, or set DOCKER_HOST") from None
    return client


def _sweep(client: Any, say: Callable[[str], None]) -> None:
    """Remove containers whose owner, a process of this machine, is no more. They end by themselves, unless the daemon was away."""
    import docker

    for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
        owner = container.labels[LABEL]
        if container.labels.get(f"{LABEL}.host") == socket.gethostname() and not Path(f"/proc/{owner}").exists():
            say(f"removing {container.short_id} of process {owner}")
            with contextlib.suppress(docker.errors.APIError):  # it was on its way out by itself
                container.remove(force=True)


def _end(container: Any, stream: Any) -> str:
    import docker
    import requests

    how = ""
    with contextlib.suppress(docker.errors.DockerException, requests.RequestException, OSError):
        container.reload()
        state = container.attrs["State"]
        how = f"status {state['ExitCode']}{', out of memory' if state['OOMKilled'] else ''}" if not state["Running"] else ""
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()
    with contextlib.suppress(docker.errors.DockerException, requests.RequestException, OSError):
        container.remove(force=True)
    return how
