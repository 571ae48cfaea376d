"""The sandbox for Linux without Docker: each jail is a supervisor under `bwrap`, which needs no daemon, no image and no root."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from grpo_core import ConfigError
from grpo_sandbox import supervisor
from grpo_sandbox.jail import Jail, JailLostError
from grpo_sandbox.pool import JailPool

FOLDER = "/work"
ROOT_UIDS = range(200_000, 2_000_000_000)
_REAP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BubblewrapConfig:
    """jails: how many run at once; None: two per core. python: the interpreter inside, below /usr. folder_mb: what a call may write."""

    jails: int | None = None
    python: str = "/usr/bin/python3"
    folder_mb: int = 16


class Bubblewrap(JailPool):
    """Jails by bubblewrap."""

    Config = BubblewrapConfig

    def __init__(self, config: BubblewrapConfig | None = None) -> None:
        self.config = config or BubblewrapConfig()
        if shutil.which("bwrap") is None:
            raise ConfigError("bubblewrap is not installed: apt install bubblewrap (or your system's package of that name)")
        super().__init__(self._jail, size=self.config.jails or 2 * len(os.sched_getaffinity(0)))

    def _jail(self) -> Jail:
        # Root's own processes are beyond RLIMIT_NPROC; a uid that nobody has is not, and shares its count with nobody.
        user = secrets.choice(ROOT_UIDS) if os.geteuid() == 0 else None
        who = {} if user is None else {"user": user, "group": user, "extra_groups": ()}
        try:
            process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                cwd="/",
                env={},
                **who,  # type: ignore[call-overload]
            )
        except OSError as error:  # no more processes, memory or open files
            raise JailLostError(f"bubblewrap could not be started: {error}") from error
        assert process.stdin
        assert process.stdout
        try:
            return Jail(f"bwrap {process.pid}", writer=process.stdin.fileno(), reader=process.stdout.fileno(), end=lambda: _end(process))
        except JailLostError:
            _end(process)
            raise

    def _command(self) -> list[str]:
        links = [option for name in ("bin", "sbin", "lib", "lib32", "lib64") for option in _place(name)]
        size = str(self.config.folder_mb << 20)
        return [
            "/usr/bin/env", "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL",
            "--hostname", "jail", "--ro-bind", "/usr", "/usr", *links, "--dev", "/dev", "--remount-ro", "/dev",
            "--size", size, "--tmpfs", FOLDER, "--remount-ro", "/",
            "--setenv", "HOME", FOLDER, "--setenv", "PATH", "/usr/bin", "--setenv", "LANG", "C.UTF-8",
            self.config.python, "-I", "-S", "-c", Path(supervisor.__file__).read_text(encoding="utf-8"),
            json.dumps({"uid": None, "folder": FOLDER}),
        ]  # fmt: skip


def _place(name: str) -> list[str]:
    """/lib and its like, which are links into /usr on today's systems and folders on older ones."""
    path = Path("/", name)
    if path.is_symlink():
        return ["--symlink", os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []


def _end(process: subprocess.Popen[bytes]) -> str:
    """Kill bwrap: the pid namespace, and so everything in the jail, goes with it."""
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)
    said = ""
    if process.stderr is not None and not process.stderr.closed:
        os.set_blocking(process.stderr.fileno(), False)
        said = (process.stderr.read(2000) or b"").decode(errors="replace").strip()
        process.stderr.close()
    return f"status {process.returncode}{f': {said}' if said else ''}"
