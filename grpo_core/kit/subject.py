"""An environment with what it was asked already: its tasks, its own answers, and their form."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from grpo_core.calls.deadline import DeadlineError, describe, within
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.judge import JudgeRequest
from grpo_core.protocol.sandbox import Program
from grpo_core.protocol.types import Rollout, Split, Task, TaskKey, Verdict
from grpo_core.verify.checks import size_of
from grpo_core.verify.engine import Verifier

TOLERANCE = 1e-6
FEW = 5
"""Tasks for the checks that ask for many verdicts of each."""
FEWER = 2
"""The same where each verdict asks a sandbox or a judge."""
QUICK_SECONDS = 0.05
"""A reference that takes longer was searched for, and is not asked for again and again."""
ENOUGH = 4
"""Tasks from which a share means something."""
_SERVICE_SECONDS = 120.0
"""A judge loads its model at its first question."""
_LONGEST_ERROR = 200
_LONGEST_ANSWER = 100  # environments cut what they show as the answer; a longer one may be cut

Attempt = tuple[Task[Any], str]


@dataclass(frozen=True, slots=True)
class Form:
    """What stands around the answer in the environment's own answers."""

    before: str = ""
    after: str = ""

    def around(self, text: str) -> str:
        return self.before + text + self.after


@dataclass
class Subject:
    """name: as task keys have it. here: the engine in this process, where tasks keep their data. verifier: the same, as a run uses it.

    tasks: training tasks, the easiest and the hardest level in turn; references: the environment's own answers to them;
    told: the verdicts on these. unavailable: why the services that it needs cannot be used, if they cannot. reference_seconds: of one;
    reference_error: why there are none, where that is a fault.
    """

    name: str
    env: Environment[Any]
    here: Verifier
    verifier: Verifier
    seed: int
    tasks: Sequence[Task[Any]] = ()
    eval_tasks: Sequence[Task[Any]] = ()
    references: Sequence[str | None] = ()
    told: Sequence[Verdict] = ()
    unavailable: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference_seconds: float = 0.0
    reference_error: str = ""

    async def make(self, key: TaskKey) -> Task[Any]:
        """Raises GrpoError if it cannot be made."""
        (task,) = await self.here.tasks([key])
        return task

    async def verdicts(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """Raises NotCheckedError where the services that a verdict needs are not there."""
        if self.unavailable:
            raise NotCheckedError(self.unavailable)
        if not attempts:
            raise NotCheckedError("there are no tasks to try it on")
        rows = await self.verifier.verify(
            [task for task, _ in attempts], [[Rollout.of(text)] for _, text in attempts]
        )
        return [row[0] for row in rows]

    @property
    def answered(self) -> list[Attempt]:
        return [
            (task, text)
            for task, text in zip(self.tasks, self.references, strict=False)
            if text is not None
        ]

    @property
    def told_answered(self) -> list[Verdict]:
        """The verdicts on `answered`."""
        return [
            verdict
            for verdict, text in zip(self.told, self.references, strict=False)
            if text is not None
        ]

    @cached_property
    def few(self) -> int:
        return FEWER if self.env.needs else FEW

    @property
    def sample(self) -> Sequence[Task[Any]]:
        """Tasks for a share of them."""
        return self.tasks[:ENOUGH] if self.env.needs else self.tasks

    @cached_property
    def answers(self) -> list[str | None]:
        """What the verifier takes out of each reference, in the order of `answered`; None where that is not known."""
        known = {id(task): verdict for task, verdict in zip(self.tasks, self.told, strict=False)}
        found = []
        for task, text in self.answered:
            answer = known[id(task)].answer if id(task) in known else None
            short = answer is not None and (len(answer) < _LONGEST_ANSWER or answer == text.strip())
            found.append(answer if short and answer and answer in text else None)
        return found

    @cached_property
    def form(self) -> Form | None:
        """What all references have around their answer; None where the answers are too few to tell."""
        texts = [text for _, text in self.answered]
        around = {
            text.rpartition(answer)[::2]
            for text, answer in zip(texts, self.answers, strict=True)
            if answer is not None
        }
        if len(around) == 1:
            return Form(*around.pop())
        if len(set(texts)) < 3:
            return None
        before = _shared_start(texts)
        after = _shared_start([text[len(before) :][::-1] for text in texts])[::-1]
        return Form(re.sub(r"[\w.+-]*\Z", "", before), re.sub(r"\A[\w.+-]*", "", after))

    def inside(self, text: str) -> list[str]:
        """`text` as a whole reply, and in the place of the answer where that is another one."""
        return list(dict.fromkeys([text, self.form.around(text)])) if self.form else [text]

    def with_answer(self, index: int, text: str) -> str | None:
        """The reference number `index` of `answered` with its answer replaced; None where that cannot be told apart."""
        reference, answer = self.answered[index][1], self.answers[index]
        if answer is not None:
            head, _, tail = reference.rpartition(answer)
            return head + text + tail
        return None

    def inner(self, index: int) -> str | None:
        """The answer in the reference number `index` of `answered`."""
        if self.answers[index] is not None:
            return self.answers[index]
        reference = self.answered[index][1]
        if self.form is None or not (self.form.before or self.form.after):
            return None
        return reference[len(self.form.before) : len(reference) - len(self.form.after)]

    async def must_fail(
        self, kind: str, attempts: Sequence[Attempt], *, floor: bool = False
    ) -> int:
        """Raises BrokenPromiseError at the first attempt without a verdict, or that passes; with `floor` also where it pays more."""
        for start in range(0, len(attempts), _AT_ONCE):
            chunk = attempts[start : start + _AT_ONCE]
            for (task, text), verdict in zip(chunk, await self.verdicts(chunk), strict=True):
                if (
                    not verdict.scored
                    or verdict.passed
                    or (floor and verdict.total > self.env.floor + TOLERANCE)
                ):
                    wanted = (
                        f"get the floor {self.env.floor:g}"
                        if floor
                        else "get a verdict, and not pass"
                    )
                    raise BrokenPromiseError(
                        f"{kind}, {shown(text)}, {got(verdict)} at {place(task)}; it must {wanted}"
                    )
        return len(attempts)


_AT_ONCE = 8


def task_keys(
    env: Environment[Any], name: str, split: Split, count: int, seed: int
) -> list[TaskKey]:
    """The easiest and the hardest level in turn."""
    size = size_of(env, split)
    count = count if size is None else min(count, size)
    return [TaskKey(name, split, index, seed, float(index % 2)) for index in range(count)]


async def prepared(bare: Subject, *, count: int, held_out: int) -> Subject:
    """`bare` with tasks, references and the verdicts on these.

    Tasks are made in this process, where their data can be compared, under the deadline of a run; raises GrpoError if they cannot.
    """
    subject = replace(bare)
    env, verifier, name, seed = subject.env, subject.verifier, subject.name, subject.seed
    await verifier.tasks(
        task_keys(env, name, "train", min(count, 1), seed)
    )  # tells clearly if none can be made, and where
    subject.tasks = [await subject.make(key) for key in task_keys(env, name, "train", count, seed)]
    subject.eval_tasks = [
        await subject.make(key) for key in task_keys(env, name, "eval", held_out, seed)
    ]
    started = time.monotonic()
    try:
        subject.references = [await verifier.reference(task) for task in subject.tasks]
    except GrpoError as error:
        subject.references, subject.reference_error = [None] * len(subject.tasks), str(error)
    subject.reference_seconds = (time.monotonic() - started) / max(1, len(subject.tasks))
    subject.unavailable = subject.unavailable or await _out_of_service(env)
    if not subject.unavailable and subject.answered:
        answered = iter(await subject.verdicts(subject.answered))
        subject.told = [
            Verdict() if text is None else next(answered) for text in subject.references
        ]
    return subject


async def _out_of_service(env: Environment[Any]) -> str:
    """Why the sandbox or a judge of `env` does not answer, if it does not."""
    try:
        return await within(_service_error(env), _SERVICE_SECONDS)
    except GrpoError as error:
        return str(error)
    except DeadlineError:
        return f"a service that it needs does not answer within {_SERVICE_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - a service may raise anything
        return f"a service that it needs does not work: {describe(error)}"


async def _service_error(env: Environment[Any]) -> str:
    if "sandbox" in env.needs:
        ((outcome,),) = await env.services.sandbox().run(
            [Program("def f(x): return x", "f", [(1,)])]
        )
        if outcome.status == "infra_error":
            return f"the sandbox does not work: {outcome.error}"
    if "judge" in env.needs:
        env.services.judge()
        for name, judge in env.services.judges.items():
            (judgement,) = await judge.judge(
                [JudgeRequest("A text.", context="Write a text. ", reference="A text.")]
            )
            if judgement.error:
                return f"the judge {name!r} does not work: {judgement.error}"
    return ""


def canary_attempts(subject: Subject, texts: Sequence[str]) -> list[Attempt]:
    return [
        (replace(task, key=replace(task.key, env=subject.name)), text)
        for task in subject.env.canaries()
        for text in texts
    ]


def _shared_start(texts: Sequence[str]) -> str:
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in columns)


def prompt_text(task: Task[Any]) -> str:
    return (
        task.prompt
        if isinstance(task.prompt, str)
        else "\n".join(message.content for message in task.prompt)
    )


def got(verdict: Verdict) -> str:
    if verdict.error is not None:
        return f"could not be judged ({verdict.error.partition('; its last output')[0][:_LONGEST_ERROR]})"
    return f"got {verdict.total:g} and {'passed' if verdict.passed else 'did not pass'}"


def shown(text: object, size: int = 60) -> str:
    full = repr(text)
    return full if len(full) <= size else f"{full[:size]}..."


def place(task: Task[Any]) -> str:
    key = task.key
    return f"{key.split} task {key.index} of level {key.level:g}"
