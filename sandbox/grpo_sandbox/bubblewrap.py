"""The sandbox for Linux without Docker: each jail is a supervisor under `bwrap`.

It needs no daemon, no image and no root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import Any

from grpo_core import SESSION_PORT, ConfigError
from grpo_sandbox.bridge import SHOWN_AT, Bridge, settings_of
from grpo_sandbox.bundle import command
from grpo_sandbox.clock import only_child
from grpo_sandbox.inside.places import HOME
from grpo_sandbox.interpreter import Interpreter
from grpo_sandbox.jail import SCAN_SECONDS, START_SECONDS, Jail, JailLostError, SupervisorEnd
from grpo_sandbox.pool import PATIENCE_SECONDS, JailPool
from grpo_sandbox.reach import INODES, SESSION_INODES, first_jail, forbidden_packages
from grpo_sandbox.root import links, root_of_host, root_of_image
from grpo_sandbox.sessions import SESSIONS

FOLDER = "/work"
SESSION_FOLDER = "/home/user"
VERIFIER_HOME = f"/home/{HOME}"
ROOT_UIDS = range(200_000, 2_000_000_000)
_REAP_SECONDS = 5.0
_STDERR_BYTES = 2000
_START = 'echo 1000 >/proc/self/oom_score_adj; exec bwrap "$@"'
"""A machine that is short of memory should kill a jail and not the trainer. This is set outside,
since there is no /proc inside."""


@dataclass(frozen=True, slots=True)
class BubblewrapConfig:
    """Settings of the sandbox `bubblewrap`."""

    jails: int | None = None
    """Number of jails that run at once; None for two per core."""
    python: str = "/usr/bin/python3"
    """The interpreter inside, which is bound with its standard library and nothing else."""
    folder_mb: int = 16
    """How much a call may write, in MB."""
    sessions: int = SESSIONS
    """Number of sessions that are open at once; each has a jail of its own."""
    session_mb: int = 64
    """How much a session may hold, in MB."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long programs wait for a sandbox that cannot run any."""


class Bubblewrap(JailPool):
    """A pool of jails made by bubblewrap.

    Raises:
        ConfigError: Bubblewrap or the interpreter is missing, a first jail cannot be started, or
            the package of an environment is visible in it.
    """

    Config = BubblewrapConfig

    def __init__(self, config: BubblewrapConfig | None = None) -> None:
        self.config = config or BubblewrapConfig()
        if shutil.which("bwrap") is None:
            raise ConfigError(
                "bubblewrap is not installed: apt install bubblewrap (or your system's package of "
                "that name)"
            )
        self._interpreter = Interpreter.of(self.config.python)
        super().__init__(
            self._jail,
            size=2 * len(os.sched_getaffinity(0))
            if self.config.jails is None
            else self.config.jails,
            start_session=self._session_jail,
            sessions=self.config.sessions,
            name="the sandbox bubblewrap",
            patience_seconds=self.config.patience_seconds,
        )
        self.keep_spare(first_jail(lambda: self._jail(forbidden_packages()), "bubblewrap"))

    def _session_jail(
        self, image: str | None, forbidden: tuple[str, ...], bridge: Bridge | None
    ) -> Jail:
        if image is None:
            python, root = str(self._interpreter.executable), root_of_host(self._interpreter)
        else:
            python, root = root_of_image(image)
        settings = {
            "folder": SESSION_FOLDER,
            "folder_mb": self.config.session_mb,
            "inodes": SESSION_INODES,
            "forbidden": forbidden,
            "session": True,
            "bridge": settings_of(bridge, SESSION_PORT),
        }
        return _start(root, python, settings, bridge)

    def _jail(self, forbidden: tuple[str, ...] = ()) -> Jail:
        root = [*self._interpreter.options(), *links()]
        settings = {
            "folder": FOLDER,
            "folder_mb": self.config.folder_mb,
            "inodes": INODES,
            "forbidden": forbidden,
            "session": False,
            "bridge": None,
        }
        return _start(root, str(self._interpreter.executable), settings)


def _start(
    root: list[str], python: str, settings: dict[str, Any], bridge: Bridge | None = None
) -> Jail:
    """Start a jail; the arguments are those of `_command`, and its bridge, if it has one."""
    if bridge is not None:
        root = [*root, "--ro-bind", str(bridge.folder), SHOWN_AT]
    # RLIMIT_NPROC does not apply to root; it does to an unused uid, whose processes are
    # counted separately from all others.
    uid = secrets.choice(ROOT_UIDS) if os.geteuid() == 0 else None
    identity = {} if uid is None else {"user": uid, "group": uid, "extra_groups": ()}
    try:
        if bridge is not None and uid is not None:
            bridge.give_to(uid)
        process = subprocess.Popen(
            _command(root, python, settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd="/",
            env={},
            **identity,  # type: ignore[call-overload]
        )
    except OSError as error:  # no more processes, memory or open files
        raise JailLostError(f"bubblewrap could not be started: {error}") from error
    assert process.stdin
    assert process.stdout
    try:
        return Jail(
            f"bwrap {process.pid}",
            writer=process.stdin.fileno(),
            reader=process.stdout.fileno(),
            end=lambda: _end(process),
            interrupt=lambda: _kill(process),
            start_seconds=SCAN_SECONDS if settings["forbidden"] else START_SECONDS,
            supervisor=lambda: only_child(process.pid),
        )
    except JailLostError:
        _end(process)
        raise


def _command(root: list[str], python: str, settings: dict[str, Any]) -> list[str]:
    """Return the command line of bwrap.

    Args:
        root: The options that put files into the jail.
        python: Path of the interpreter in the jail.
        settings: See `inside.supervisor.main`.
    """
    folder = settings["folder"]
    # The supervisor keeps one capability, over its own namespaces only, to give each call a
    # folder of its own. No call has it. There are no terminals, since the next call could see
    # when a terminal was used.
    return [
        "/bin/sh", "-c", _START, "sh",
        "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
        "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--hostname", "jail",
        *root, "--dev", "/dev", "--tmpfs", "/dev/pts",
        "--remount-ro", "/dev/pts", "--remount-ro", "/dev",
        "--dir", folder, *(["--dir", VERIFIER_HOME] * settings["session"]), "--remount-ro", "/",
        "--setenv", "HOME", folder, "--setenv", "PATH", "/usr/bin",
        "--setenv", "LANG", "C.UTF-8",
        *command(python, {"uid": None, **settings}),
    ]  # fmt: skip


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill bwrap: the pid namespace, and so everything in the jail, goes with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> SupervisorEnd:
    """Kill bwrap and return how it ended, with the beginning of what it wrote to stderr."""
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
    _kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)
    text = ""
    if process.stderr is not None and not process.stderr.closed:
        os.set_blocking(process.stderr.fileno(), False)
        text = (process.stderr.read(_STDERR_BYTES) or b"").decode(errors="replace").strip()
        process.stderr.close()
    return SupervisorEnd(f"status {process.returncode}{f': {text}' if text else ''}")
