"""Check that exceptions and outages of services become errors, and never rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from grpo_core import (
    Environment,
    Group,
    Judgement,
    JudgeRequest,
    Limits,
    Outcome,
    Program,
    Rollout,
    SandboxError,
    Services,
    Session,
    Task,
    Verdict,
)
from grpo_core.api.calls import DeadlineError, in_thread, within
from grpo_core.api.settings import VerifyConfig
from grpo_core.api.verify import Verifier
from grpo_kit.answers.verdicts import TIMEOUT_SECONDS
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import attempt_verdicts, join_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import (
    Subject,
    describe_verdict,
    task_label,
)


class _FailureError(Exception):
    """Raised by every use of `_Poison`."""


class _Poison:
    """Data of which every use fails, like a missing file or a broken table."""

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise _FailureError("the task's data cannot be read")

    __getattr__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = (
        __getitem__
    ) = __contains__ = _fail
    __str__ = __repr__ = __format__ = __bool__ = __int__ = __float__ = __index__ = __call__ = (
        __hash__
    ) = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        __round__
    ) = __abs__ = _fail


@check(
    "verdict.swallow",
    "fault",
    asks="Does a failure inside the verifier become an error, not a low reward?",
)
async def check_swallow(subject: Subject) -> str:
    """Check that a verifier whose data cannot be read raises, instead of paying a low reward.

    The reference is judged with such data.
    """
    if subject.services:
        raise NotCheckedError("its verdicts come from services; verdict.outage checks those")
    if subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    if not subject.answered:
        raise NotCheckedError("reference() gives no answers")
    hidden_failures = []
    for task, text in subject.answered[: subject.small_count]:
        rollout = await subject.rollout(task, text)
        if subject.has_agents and rollout.error:
            raise NotCheckedError("the agent failed at a reference (see verdict.reference)")
        poisoned = replace(task, data=_Poison())
        try:
            verdict = await within(verify_directly(subject.env, poisoned, rollout), TIMEOUT_SECONDS)
        except (Exception, DeadlineError):  # noqa: BLE001 - to fail is the right reaction
            continue
        if verdict.scored and not verdict.passed:
            hidden_failures.append((task, verdict))
        elif verdict.scored:
            raise NotCheckedError("verdicts do not depend on the task's data")
    if hidden_failures:
        task, verdict = hidden_failures[0]
        raise BrokenPromiseError(
            f"with data that cannot be read the reference {describe_verdict(verdict)} at "
            f"{task_label(task)}: the failure became a reward; do not catch exceptions; the engine "
            "turns them into errors"
        )
    return "data that cannot be read end in exceptions, not in rewards"


async def verify_directly(env: Environment[Any], task: Task[Any], rollout: Rollout) -> Verdict:
    """Return the verdict of the environment's own method, without the engine."""
    method = env.rung()
    if method == "verify":
        return await in_thread(env.verify, task, rollout)
    if method == "averify":
        return await env.averify(task, rollout)
    if method == "episode":
        settings = VerifyConfig(isolation="inline", retries=0)
        turns = join_turns([each.raw for each in rollout.messages if each.role == "assistant"])
        async with Verifier(env, settings=settings, closes_env=False) as verifier:
            return (await attempt_verdicts(verifier, [(task, turns)]))[0]
    return (await env.verify_batch([Group(task, [rollout])]))[0][0]


class _NoService:
    """A sandbox and judge that is down: its calls raise, or return errors."""

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises
        self.calls = 0

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        self.calls += 1
        if self._raises:
            raise ConnectionError("the sandbox is gone")
        return [
            [Outcome("infra_error", error="the sandbox is gone") for _ in program.inputs]
            for program in programs
        ]

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> Session:
        self.calls += 1
        raise SandboxError("the sandbox is gone")

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        self.calls += 1
        if self._raises:
            raise ConnectionError("the judge is gone")
        return [Judgement(0.0, error="the judge is gone") for _ in requests]

    def fingerprint(self) -> str:
        return "gone"

    async def close(self) -> None:
        """Do nothing."""


@check(
    "verdict.outage",
    "fault",
    asks="Does a sandbox or judge that is down cause errors, not rewards?",
)
async def check_outage(subject: Subject) -> str:
    """Check that a sandbox or judge that is down gives errors, not rewards."""
    env = subject.env
    if not subject.services:
        raise NotCheckedError("it needs no services")
    if not subject.answered:
        raise NotCheckedError("reference() gives no answers")
    names = list(env.services.judges) or ["default"]
    task, text = subject.answered[0]
    settings = subject.inline_verifier.settings.model_copy(
        update={"timeout_seconds": TIMEOUT_SECONDS}
    )
    for raises in (True, False):
        down = _NoService(raises=raises)
        services = Services(
            {"default": down} if "sandbox" in env.needs else {},
            dict.fromkeys(names, down) if "judge" in env.needs else {},
            env.services.endpoints,
        )
        down_env = type(env)(env.config, services)
        async with Verifier(down_env, settings=settings) as verifier:
            (verdict,) = await attempt_verdicts(verifier, [(task, text)])
        if not down.calls:
            raise NotCheckedError("judging a reference asks no service")
        if verdict.scored:
            raise BrokenPromiseError(
                f"with its {' and '.join(sorted(subject.services))} down the reference "
                f"{describe_verdict(verdict)} at {task_label(task)}: the outage became a reward; "
                "raise, or return Verdict.failed(...), if a service gives an error"
            )
    return (
        f"with its {' and '.join(sorted(subject.services))} down there are errors, and no rewards"
    )
