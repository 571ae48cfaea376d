"""The jail of one session, which is made again when it is lost.

A session is a list of steps: the files that were written and the commands that were run. If its
jail is lost, the steps are applied again in a fresh one. Who is to blame is decided as for a call:
a step that ends its jail, or ends as if something outside had ended it, runs again after a passing
probe, and after FAILURES such failures the program is to blame.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_sandbox.blame import BlameGate, UnavailableError
from grpo_sandbox.jail import Jail, JailLostError
from grpo_sandbox.runs import FAILURES, MAX_LOST_STARTS, is_suspicious, stretch, stretched

Reply = dict[str, Any]
"""What `Jail.request` returns."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a session."""

    kind: Literal["exec", "write", "read"]
    """The kind of request."""
    body: bytes
    """What the child that serves it reads."""
    limits: Mapping[str, Any]
    """Its limits, in the form that a supervisor takes."""

    def is_suspicious(self, reply: Reply) -> bool:
        """Return whether the infrastructure may be the cause of what a supervisor reports."""
        if self.kind == "exec":
            return is_suspicious(reply, self.limits)
        return bool(reply["status"] != "ended" or reply["exit"] != 0)


@dataclass(frozen=True, slots=True)
class StepReply:
    """The reply to a step."""

    reply: Reply
    """What the supervisor reports."""
    suspected: bool = False
    """The reply rests on repeated failures, not on evidence."""


class ProgramFaultError(Exception):
    """The commands of a session have ended it.

    Attributes:
        status: The status of the command that did.
        suspected: Whether this rests on repeated failures, not on evidence.
    """

    def __init__(self, status: str, reason: str, *, suspected: bool = True) -> None:
        super().__init__(reason)
        self.status, self.suspected = status, suspected


@dataclass(frozen=True, slots=True)
class _Failure:
    """A step that failed and has no answer yet."""

    reason: str
    """Why it failed."""
    reply: Reply | None = None
    """What the supervisor reported, if it did."""
    blamed: bool = True
    """Whether the program may have been the reason."""
    stretch: float = 1.0
    """By what to multiply the wall time of the next attempt."""


class ReplayedJail:
    """The jail of one session. Thread-safe; steps run one at a time.

    Args:
        take: Returns a jail that is ready for a session's first step, or raises JailLostError.
        gate: Decides when suspects run again.
        total_seconds: The wall time of all commands together.
        repeatable: Whether commands may run again. Those that reach a socket may not: what they
            asked there cannot be taken back. If their jail is lost, so is the session.

    Attributes:
        rebuilt: Whether steps were ever applied again; a command may then have had other results
            than those that the policy has seen.
        spent_seconds: The wall time of all commands so far.
    """

    def __init__(
        self,
        take: Callable[[], Jail],
        gate: BlameGate,
        total_seconds: float,
        *,
        repeatable: bool = True,
    ) -> None:
        self._take, self._gate, self._total_seconds = take, gate, total_seconds
        self._repeatable = repeatable
        self._has_begun = False
        """Whether a command was begun, also one that never ended."""
        self._jail: Jail | None = None
        self._history: list[Step] = []
        self._applied = 0
        self._ran_out = False
        self._replayed_seconds = 0.0
        self._running = threading.Lock()
        self.rebuilt = False
        self.spent_seconds = 0.0

    @property
    def has_run(self) -> bool:
        """Return whether a command has run."""
        return any(step.kind == "exec" for step in self._history)

    def open(self, cancelled: Callable[[], bool]) -> None:
        """Take a jail; the arguments and errors are those of `run`."""
        with self._running:
            self._repeat(None, cancelled)

    def run(self, step: Step, cancelled: Callable[[], bool]) -> StepReply:
        """Run a step until it has an answer.

        Args:
            cancelled: Returns whether the answer is no longer needed; see `interrupt`.

        Raises:
            ProgramFaultError: The program is to blame for the loss of its jail.
            UnavailableError: The infrastructure is unavailable, or the answer is not needed.
        """
        with self._running:
            try:
                return self._repeat(step, cancelled)
            except ProgramFaultError:
                self._drop()
                raise

    def interrupt(self) -> None:
        """Make a step that runs in another thread fail soon; its `cancelled` must be true."""
        jail = self._jail
        if jail is not None and self._running.locked():
            jail.interrupt()
        self._gate.wake()

    def give_up(self) -> Jail | None:
        """End the session; return its jail if that is as clean as before, for another session."""
        with self._running:
            jail, self._jail = self._jail, None
        if jail is None:
            return None
        with contextlib.suppress(JailLostError):
            if not self._ran_out and jail.is_alive and jail.request("end")["clean"]:
                return jail
        jail.close()
        return None

    def _repeat(self, step: Step | None, cancelled: Callable[[], bool]) -> StepReply:
        failures, lost_starts, factor = 0, 0, 1.0
        while True:
            attempt = self._attempt(step, cancelled, suspect=failures + lost_starts > 0, by=factor)
            if not isinstance(attempt, _Failure):
                return StepReply(attempt)
            self._gate.wait(cancelled)
            if attempt.reply is not None and step is not None and not self._may_repeat:
                return self._convict(step, attempt)
            failures += attempt.blamed
            lost_starts += not attempt.blamed
            factor = attempt.stretch
            if step and (failures >= FAILURES or (attempt.blamed and self._is_out_of_time(step))):
                return self._convict(step, attempt)
            if lost_starts >= MAX_LOST_STARTS:
                raise UnavailableError(
                    f"{lost_starts} jails could not be started: {attempt.reason}"
                )
            self._drop()

    def _attempt(
        self, step: Step | None, cancelled: Callable[[], bool], *, suspect: bool, by: float
    ) -> Reply | _Failure:
        """Run a step once, in the jail of this session or a new one, `by` times as long."""
        if self._jail is not None and not self._jail.is_alive:
            self._drop()
        _check(cancelled)
        if self._jail is None:
            if not self._may_repeat:
                raise UnavailableError(
                    "the jail of a session with a socket was lost, and its commands are not run "
                    "again, since what they asked there cannot be taken back"
                )
            try:
                self._jail = self._take()
            except JailLostError as error:
                return _Failure(str(error), blamed=False)
        jail = self._jail
        try:
            self._replay(jail, cancelled)
            if step is None:
                return {}
            self._has_begun |= step.kind == "exec"
            with self._gate.suspect_running() if suspect else contextlib.nullcontext():
                reply = jail.request(step.kind, step.body, stretched(step.limits, by))
        except JailLostError as error:
            ran_out = self._ran_out  # Docker would report an earlier lack of memory again
            self._drop()
            if error.out_of_memory and not ran_out:
                reason = f"it used more than its jail's memory: {error}"
                raise ProgramFaultError("oom", reason, suspected=False) from None
            return _Failure(str(error))
        self._ran_out |= reply["ran_out"]
        if step.kind == "exec":
            self.spent_seconds += reply["wall_seconds"]
        if step.is_suspicious(reply):
            reason = f"it ended with {reply['status']}"
            return _Failure(reason, reply, stretch=stretch(reply))
        self._record(step, reply)
        return reply

    def _replay(self, jail: Jail, cancelled: Callable[[], bool]) -> None:
        """Apply the steps that `jail` has not had yet; how they end is not judged again."""
        while self._applied < len(self._history):
            _check(cancelled)
            self.rebuilt = True
            step = self._history[self._applied]
            reply = jail.request(step.kind, step.body, step.limits)
            self._ran_out |= reply["ran_out"]
            self._applied += 1
            self._replayed_seconds += reply["wall_seconds"]
            if self._replayed_seconds > FAILURES * self._total_seconds:
                raise ProgramFaultError(
                    "timeout_wall",
                    f"its commands took more than {FAILURES} x {self._total_seconds:g} s when they "
                    "ran again after failures",
                )

    @property
    def _may_repeat(self) -> bool:
        """Return whether the steps so far may be applied again."""
        return self._repeatable or not self._has_begun

    def _is_out_of_time(self, step: Step) -> bool:
        return step.kind == "exec" and self.spent_seconds >= self._total_seconds

    def _convict(self, step: Step, failure: _Failure) -> StepReply:
        """Return the last reply of a command to blame, or end the session if there is none."""
        if failure.reply is not None and step.kind == "exec":
            self._record(step, failure.reply)
            return StepReply(failure.reply, suspected=True)
        raise ProgramFaultError(
            "signal",
            f"it failed {FAILURES} times where a known-good program ran; the last time: "
            f"{failure.reason}",
        )

    def _record(self, step: Step, reply: Reply) -> None:
        if step.kind != "read":
            self._history.append(step)
            self._applied += 1
        if not reply["clean"]:
            self._drop()

    def _drop(self) -> None:
        """Close the jail; the next step gets a new one, with everything before applied again."""
        jail, self._jail = self._jail, None
        self._applied, self._ran_out = 0, False
        if jail is not None:
            jail.close()


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise UnavailableError("the request was cancelled, or the session closed")
