"""Runs `grpo` commands as forks of one process that has imported everything: each starts in milliseconds instead of seconds.

`python zygote.py FD` serves on an inherited socket; `Zygote` is the other end. The server makes no
thread and no tensor, as a fork would inherit neither in a state that can be used.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = (
    *("grpo_core.cli.app", "grpo_core.cli.run", "grpo_core.cli.evaluate", "grpo_core.cli.progress"),
    *("grpo_core.train.build", "grpo_core.train.run.run", "grpo_core.train.trainer"),
    *("grpo_core.train.measure", "grpo_core.train.policy.choose", "grpo_core.report.plots"),
    *("transformers.models.llama.modeling_llama", "peft.tuners.lora", "safetensors.torch"),
    *("matplotlib.pyplot", "tiny"),
)
"""What a command would spend its first seconds on; what is missing here is only slower."""

_MESSAGE_BYTES = 1 << 18


class Zygote:
    """A server of forks, in a session of its own, so that Ctrl-C reaches only who asked."""

    def __init__(self) -> None:
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command, fd = [sys.executable, __file__, str(other.fileno())], other.fileno()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        more = {"stdin": subprocess.DEVNULL, "start_new_session": True, "env": env}
        self._server = subprocess.Popen(command, pass_fds=[fd], **more)
        other.close()
        self._socket = mine
        self._ask({"do": "wait"})

    def start(
        self,
        arguments: Sequence[str],
        *,
        out: int,
        err: int,
        env: Mapping[str, str],
        cwd: Path,
        uid: int | None = None,
        umask: int = 0o022,
        plots: bool = True,
    ) -> int:
        """Run `grpo` with `arguments` in a process group of its own; returns its id. plots: whether pictures are drawn, for a second."""
        command = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}
        wish = {"do": "start", **command, "uid": uid, "umask": umask, "plots": plots}
        return int(self._ask(wish, [out, err]))

    def poll(self, pid: int) -> int | None:
        """Return the exit status of a process that has ended, as a negative number if a signal ended it."""
        status: int | None = self._ask({"do": "poll", "pid": pid})
        return status

    def save_tiny(self, folder: Path) -> None:
        """Write the tiny model, which needs torch."""
        self._ask({"do": "tiny", "folder": str(folder)})

    def close(self) -> None:
        """End the server and with it all that it has started."""
        self._socket.close()
        self._server.wait()

    def _ask(self, wish: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        socket.send_fds(self._socket, [json.dumps(wish).encode()], list(descriptors))
        answer = self._socket.recv(_MESSAGE_BYTES)
        if not answer:
            raise RuntimeError("the server of forks has ended")
        return json.loads(answer)


def _serve(channel: socket.socket) -> None:
    gc.disable()
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # else the first collection of each fork would write to, and so copy, all of their memory
    gc.enable()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"the imports have started {threads - 1} threads, which forks lack")
    running: set[int] = set()
    try:
        while message := socket.recv_fds(channel, _MESSAGE_BYTES, 2):
            data, descriptors = message[:2]
            if not data:
                break
            answer = _answer(json.loads(data), descriptors, running, channel)
            channel.send(json.dumps(answer).encode())
    finally:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _answer(
    wish: dict[str, Any], descriptors: list[int], running: set[int], channel: socket.socket
) -> Any:
    if wish["do"] == "start":
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become(wish, descriptors)
        with contextlib.suppress(OSError):  # the child may have done it, or ended
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        running.add(pid)
        return pid
    if wish["do"] == "poll":
        ended, status = os.waitpid(wish["pid"], os.WNOHANG)
        if not ended:
            return None
        running.discard(ended)
        return os.waitstatus_to_exitcode(status)
    if wish["do"] == "tiny":
        pid = os.fork()
        if pid == 0:
            _end_with(lambda: importlib.import_module("tiny").save_tiny(Path(wish["folder"])))
        return os.waitpid(pid, 0)[1]
    return None


def _become(wish: dict[str, Any], descriptors: list[int]) -> None:
    """Turn this fork into the command; never returns."""

    def command() -> None:
        os.setpgid(0, 0)
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(wish["env"])
        os.umask(wish["umask"])
        if wish["uid"] is not None:
            os.setgroups([])
            os.setgid(wish["uid"])
            os.setuid(wish["uid"])
        os.chdir(wish["cwd"])
        if not wish["plots"]:
            importlib.import_module("grpo_core.cli.training").draw_plots = lambda run: []
        sys.argv = ["grpo", *wish["arguments"]]
        importlib.import_module("grpo_core.cli").main()

    _end_with(command)


def _stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    """Return a stream as the interpreter opens it: the inherited one remembers what the server's was."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors=errors, line_buffering=descriptor == 2
    )


def _end_with(command: Any) -> None:
    """Do it and end the process as the interpreter would, without the long clean-up of what was imported."""
    status = 1
    try:
        command()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - the interpreter's own status for it
        status = 120
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
