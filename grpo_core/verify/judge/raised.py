"""Tell the failures of a verifier that an answer may be blamed for from all others."""

from __future__ import annotations

import math
import os
import time

from grpo_core.verify.judge.checks import BrokenContractError

CPU_LIMIT = "CPU limit"
"""The kind of the failure of a verifier that does not end."""
_OF_ANSWERS = (ValueError, TypeError, ArithmeticError, RecursionError, SyntaxError)
"""What code raises at a text that it cannot read."""
_OF_MACHINES = (OSError, MemoryError)
"""What is never the fault of an answer, also where a class derives from one of the others."""


class VerifierRaisedError(BrokenContractError):
    """A verifier raised in a worker.

    Attributes:
        kind: what an answer may be blamed for; "" if it may not.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: BaseException) -> str:
    """Return the name of the exception that an answer may be blamed for; "" if it may not."""
    if isinstance(error, _OF_MACHINES):
        return ""
    return next((kind.__name__ for kind in _OF_ANSWERS if isinstance(error, kind)), "")


def limit_cpu(seconds: float) -> None:
    """Make the kernel end this process after this many more seconds of CPU time.

    They are rounded up to whole seconds.
    """
    import resource  # which Windows lacks

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # the signal would leave a file
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), hard))


def ended_by_cpu_limit(wait_status: int) -> bool:
    """Return whether a process was ended by `limit_cpu`."""
    import signal

    return os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal.SIGXCPU
