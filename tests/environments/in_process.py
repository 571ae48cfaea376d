"""A sandbox without walls, for programs that tests write themselves: thousands of verdicts in seconds."""

import signal
from collections.abc import Sequence
from typing import Any

from grpo_core import Outcome, Program

SECONDS = 1.0
"""The CPU time of all calls of a program together."""


class OutOfTimeError(BaseException):
    """Ends a program that runs for too long; no `except Exception` of it catches this."""


class InProcess:
    """Runs each program in the process of the test, one after the other, on all its inputs."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        self.programs += programs
        return [run_program(program) for program in programs]

    async def close(self) -> None:
        """Nothing to give back."""


def run_program(program: Program, *, seconds: float = SECONDS) -> list[Outcome]:
    """Return the outcome of each call; after one that ran out of time, the others count as late."""
    outcomes: list[Outcome] = []
    previous = signal.signal(signal.SIGVTALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        namespace: dict[str, Any] = {}
        exec(compile(program.source, "<program>", "exec"), namespace)
        for arguments in program.inputs:
            try:
                outcomes.append(Outcome("ok", namespace[program.entry](*arguments)))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise what it likes
                outcomes.append(Outcome("exception", error=repr(error)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it may not even load
        outcomes = [Outcome("exception", error=repr(error))] * len(program.inputs)
    except OutOfTimeError:
        outcomes += [Outcome("timeout_cpu")] * (len(program.inputs) - len(outcomes))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    return outcomes


def _out_of_time(*_: object) -> None:
    raise OutOfTimeError
