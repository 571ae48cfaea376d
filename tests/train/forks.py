"""Runs `grpo` commands as forks of this process, which imports everything first: each starts in milliseconds instead of seconds.

This process makes no thread and no tensor before a fork, which would inherit neither in a state that can be used.
"""

import atexit
import contextlib
import gc
import importlib
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = (
    *("grpo_core.cli.app", "grpo_core.cli.run", "grpo_core.cli.evaluate", "grpo_core.cli.progress"),
    *("grpo_core.train.build", "grpo_core.train.run.run", "grpo_core.train.trainer"),
    *("grpo_core.train.measure", "grpo_core.engine.policy.choose", "grpo_report.plots"),
    *("transformers.models.llama.modeling_llama", "peft.tuners.lora", "safetensors.torch"),
    *("matplotlib.pyplot", "tiny"),
)
"""What a command would spend its first seconds on; what is missing here is only slower."""


def prepare() -> None:
    """Import what commands need."""
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection of each fork would write to, and so copy, all of their memory
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"the imports have started {threads - 1} threads, which forks lack")


def forked(command: Callable[[], Any]) -> int:
    """Call it in a fork, which then ends; return the id of the process."""
    pid = os.fork()
    if pid == 0:
        _end_with(command)
    return pid


def start(
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

    def command() -> None:
        os.setpgid(0, 0)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 16)
        sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(env)
        os.umask(umask)
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        os.chdir(cwd)
        sys.argv = ["grpo", *arguments]
        importlib.import_module("grpo_core.cli").main()

    pid = forked(command)
    with contextlib.suppress(OSError):  # the child may have done it, or ended
        os.setpgid(pid, pid)
    return pid


def _stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    """Return a stream as the interpreter opens it: the inherited one remembers what this process's was."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors=errors, line_buffering=descriptor == 2
    )


def _end_with(command: Callable[[], Any]) -> None:
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
