"""What a verdict must be: whole, right for the environment's own answer, the same again, and an error where something failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from grpo_core.calls.deadline import DeadlineError, in_thread, within
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import TOLERANCE, Attempt, Subject, got, place, prompt_text, shown
from grpo_core.kit.texts import JUNK
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.judge import Judgement, JudgeRequest
from grpo_core.protocol.sandbox import Outcome, Program
from grpo_core.protocol.types import Group, Rollout, Task, Verdict
from grpo_core.verify.engine import Verifier

_SECONDS = 10.0


def ordinary(subject: Subject) -> list[Attempt]:
    """Right answers, wrong ones in the right form, the prompt and junk: what a policy says every day."""
    answered = subject.answered[: subject.few]
    others = [
        (task, text)
        for (task, _), (_, text) in zip(answered, [*answered[1:], *answered[:1]], strict=True)
    ]
    few = subject.tasks[: subject.few]
    return [
        *answered,
        *others,
        *((task, prompt_text(task)) for task in few),
        *((task, text) for task in few for text in list(JUNK.values())[1:3]),
    ]


async def form(subject: Subject) -> str:
    attempts = ordinary(subject)
    for (task, text), verdict in zip(attempts, await subject.verdicts(attempts), strict=True):
        if not verdict.scored:
            raise BrokenPromiseError(
                f"the answer {shown(text)} {got(verdict)} at {place(task)}; any text gets a verdict"
            )
    return f"{len(attempts)} right and wrong answers got verdicts with every part"


async def reference(subject: Subject) -> str:
    if subject.reference_error:
        raise BrokenPromiseError(subject.reference_error)
    if subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    if not subject.answered:
        raise NotCheckedError(
            "reference() gives no answers; write it, so that the verifier is known to accept what is right"
        )
    low, top = subject.env.reward_range
    least = low if subject.env.open_ended else top
    for (task, text), verdict in zip(subject.answered, subject.told_answered, strict=True):
        if not verdict.scored or not verdict.passed or verdict.total < least - TOLERANCE:
            wanted = "" if subject.env.open_ended else f" with {top:g}"
            raise BrokenPromiseError(
                f"the reference {shown(text)} of {task.key} {got(verdict)}; it must pass{wanted}"
            )
    return f"{len(subject.answered)} references pass{'' if subject.env.open_ended else f' with {top:g}'}"


async def repeat(subject: Subject) -> str:
    if not subject.env.deterministic:
        raise NotCheckedError("the environment says that it is not deterministic")
    attempts = ordinary(subject)
    first, second = await subject.verdicts(attempts), (await subject.verdicts(attempts[::-1]))[::-1]
    before = subject.told_answered[
        : subject.few
    ]  # a verifier may change only once it has seen an answer
    for (task, text), one, two in [
        *zip(attempts, before, first, strict=False),
        *zip(attempts, first, second, strict=True),
    ]:
        if _content(one) != _content(two):
            raise BrokenPromiseError(
                f"the answer {shown(text)} at {place(task)} first {got(one)} and then {got(two)}"
                f"{'' if one.rewards != two.rewards or one.passed != two.passed else f', taken as {one.answer!r} and {two.answer!r}'}; "
                "mend it or set deterministic = False"
            )
    return f"{len(attempts)} attempts got the same verdict twice, in another order"


def _content(verdict: Verdict) -> tuple[object, ...]:
    return verdict.rewards, verdict.passed, verdict.answer, verdict.error


class _FailureError(Exception):
    """What the poisoned data raises."""


class _Poison:
    """Data of which every use fails, as a file that is gone or a table that is broken would."""

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


async def swallow(subject: Subject) -> str:
    """The reference is judged with data that cannot be read: a verifier that then pays a low reward hides its failures."""
    env = subject.env
    if env.needs:
        raise NotCheckedError("its verdicts come from services; verdict.outage looks at those")
    if not subject.answered:
        raise NotCheckedError("reference() gives no answers")
    wrong = []
    for task, text in subject.answered[: subject.few]:
        try:
            verdict = await within(judged(env, replace(task, data=_Poison()), text), _SECONDS)
        except (Exception, DeadlineError):  # noqa: BLE001 - to fail is what is asked of it
            continue
        if verdict.scored and not verdict.passed:
            wrong.append((task, verdict))
        elif verdict.scored:
            raise NotCheckedError("verdicts do not depend on the task's data")
    if wrong:
        task, verdict = wrong[0]
        raise BrokenPromiseError(
            f"with data that cannot be read the reference {got(verdict)} at {place(task)}: the failure became a reward; "
            "let exceptions out, the engine turns them into errors"
        )
    return "data that cannot be read end in exceptions, not in rewards"


async def judged(env: Environment[Any], task: Task[Any], text: str) -> Verdict:
    """By the environment itself, without the engine."""
    rollout = Rollout.of(text)
    rung = env.rung()
    if rung == "verify":
        return await in_thread(env.verify, task, rollout)
    if rung == "averify":
        return await env.averify(task, rollout)
    return (await env.verify_batch([Group(task, [rollout])]))[0][0]


class _NoSandbox:
    """A daemon that stopped: half of its calls raise, the others say so."""

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        if self._raises:
            raise ConnectionError("the sandbox is gone")
        return [
            [Outcome("infra_error", error="the sandbox is gone") for _ in program.inputs]
            for program in programs
        ]

    async def close(self) -> None:
        """Nothing to give back."""


class _NoJudge:
    """A judge whose endpoint is down."""

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        if self._raises:
            raise ConnectionError("the judge is gone")
        return [Judgement(0.0, error="the judge is gone") for _ in requests]

    def fingerprint(self) -> str:
        return "gone"

    async def close(self) -> None:
        """Nothing to give back."""


async def outage(subject: Subject) -> str:
    env = subject.env
    if not env.needs:
        raise NotCheckedError("it needs no services")
    if not subject.answered:
        raise NotCheckedError("reference() gives no answers")
    names = list(env.services.judges) or ["default"]
    (task, text), settings = (
        subject.answered[0],
        replace(subject.here.settings, timeout_seconds=_SECONDS),
    )
    for raises in (True, False):
        services = Services(
            {"default": _NoSandbox(raises=raises)} if "sandbox" in env.needs else {},
            {name: _NoJudge(raises=raises) for name in names} if "judge" in env.needs else {},
        )
        async with Verifier(type(env)(env.config, services), settings=settings) as without:
            ((verdict,),) = await without.verify([task], [[Rollout.of(text)]])
        if verdict.scored:
            raise BrokenPromiseError(
                f"with its {' and '.join(sorted(env.needs))} down the reference {got(verdict)} at {place(task)}: the outage became a "
                "reward; raise, or return Verdict.failed(...), if a service gives an error"
            )
    return f"with its {' and '.join(sorted(env.needs))} down there are errors, and no rewards"
