"""Planted faults: what a verdict says (the second fresh half)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bases_fresh2 import (
    ColumnName,
    DayAfter,
    FractionSum,
    Invoice,
    KilnSwing,
    MostCoins,
    NetworkOf,
    PrimeFactors,
    Seconds,
    SummitSentence,
    same_fact,
)
from catalogue import fault

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.protocol.environment import Services
from grpo_core.protocol.judge import JudgeRequest
from grpo_core.protocol.sandbox import Outcome, Program
from grpo_core.protocol.types import Group
from grpo_core.testing import FakeJudge, FakeSandbox


@fault("passed is a text", "verdict.form", "verdict.passed")
class TextPassed(FractionSum):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        passed: Any = "yes" if verdict.passed else "no"
        return replace(verdict, passed=passed)


@fault("details cannot be written as JSON", "verdict.form")
class SetDetail(PrimeFactors):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        given = {str(item) for item in answer} if isinstance(answer, list) else set[str]()
        return replace(verdict, detail={"missing": {str(prime) for prime in task.data} - given})


@fault("a metric is not a number", "verdict.form")
class DatedMetric(DayAfter):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        metrics: dict[str, Any] = {"year": str(answer)[:4] if answer else None}
        return replace(super().judged(task, answer), metrics=metrics)


@fault("the answer that was extracted is no text", "verdict.form")
class NumberAnswer(Seconds):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        return replace(super().judged(task, answer), answer=answer)


@fault(
    "a wrong answer is reported as an error",
    "verdict.form",
    "floor.junk",
    "floor.empty",
    "floor.spelling",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.digits",
    "floor.text",
    "floor.nested",
    "floor.large",
)
class ErrorForWrong(NetworkOf):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        if answer is None:
            return Verdict.failed("the reply is no address")
        return super().judged(task, answer)


@fault("verify is a coroutine", "verdict.form", "verdict.reference")
class AsyncVerify(ColumnName):
    async def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.judged(task, self.read(rollout.text))


@fault(
    "a branch of verify returns nothing",
    "verdict.form",
    "floor.junk",
    "floor.empty",
    "floor.spelling",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.digits",
    "floor.text",
    "floor.nested",
    "floor.large",
)
class MissingReturn(Invoice):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict: Any = None
        answer = self.read(rollout.text)
        if isinstance(answer, dict):
            verdict = self.judged(task, answer)
        return verdict  # type: ignore[no-any-return]


@fault(
    "an unfinished method hides the one that works",
    "verdict.reference",
    "verdict.form",
)
class UnfinishedBatch(DayAfter):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        zero = Verdict({"reward": Reward(0.0)})
        return [[zero for _ in group.rollouts] for group in groups]


@fault("the verdicts of a batch are not grouped", "verdict.form", "verdict.reference")
class FlatBatch(MostCoins):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        verdicts: list[Any] = [
            self.verify(group.task, rollout) for group in groups for rollout in group.rollouts
        ]
        return verdicts


@fault(
    "a batch leaves out what it cannot read",
    "verdict.form",
    "floor.junk",
    "floor.empty",
    "floor.spelling",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.digits",
    "floor.text",
    "floor.nested",
    "floor.large",
)
class FilteredBatch(FractionSum):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        return [
            [
                self.judged(group.task, answer)
                for answer in map(self.read, (rollout.text for rollout in group.rollouts))
                if answer is not None
            ]
            for group in groups
        ]


@fault("a batch is judged by its first task", "verdict.reference", "verdict.repeat", "floor.other")
class FirstTaskBatch(NetworkOf):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        task = groups[0].task
        return [[self.verify(task, rollout) for rollout in group.rollouts] for group in groups]


@fault(
    "verdicts of a group come back in another order",
    "verdict.repeat",
    "verdict.reference",
    "verdict.form",
)
class SortedBatch(ColumnName):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        return [
            [self.verify(group.task, rollout) for rollout in self.ordered(group.rollouts)]
            for group in groups
        ]

    def ordered(self, rollouts: Iterable[Rollout]) -> list[Rollout]:
        return sorted(rollouts, key=lambda rollout: (len(rollout.text), rollout.text))


@fault("the reference is not in lowest terms", "verdict.reference")
class UnreducedReference(FractionSum):
    def asked(self, key: TaskKey, a: int, b: int, c: int, d: int) -> Task[Any]:
        task = super().asked(key, a, b, c, d)
        return replace(task, data=(task.data, f"{a * d + c * b}/{b * d}"))

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(truth[0], answer)

    def reference(self, task: Task[Any]) -> str:
        return str(task.data[1])


@fault("the reference counts the first day, too", "verdict.reference")
class InclusiveReference(DayAfter):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        start, days = content
        return replace(super().asked(key, *content), data=(start, days))

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(self.solved(*truth), answer)

    def reference(self, task: Task[Any]) -> str:
        start, days = task.data
        return self.solved(start, days - 1)


@fault("silence costs less than a wrong answer", "floor.empty", "floor.junk", "floor.echo")
class SilentSeconds(Seconds):
    reward_range = (-1.0, 1.0)
    floor = -1.0

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        value = 0.0 if answer is None else 1.0 if verdict.passed else -1.0
        return replace(verdict, rewards={"reward": Reward(value)})


@fault("a smoothed share pays for nothing", "floor.empty", "verdict.reference", "floor.junk")
class SmoothedInvoice(Invoice):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        given = answer if isinstance(answer, dict) else {}
        right = sum(given.get(name) == value for name, value in task.data.items())
        return replace(verdict, rewards={"reward": Reward((right + 1) / (len(task.data) + 2))})


@fault("a length penalty is paid by the best answer, too", "verdict.reference")
class PenalisedLength(KilnSwing):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        value = float(verdict.passed) * max(0.0, 1 - len(rollout.text) / 1000)
        return replace(verdict, rewards={"reward": Reward(value)})


@fault("passed compares a sum of floats with 1", "verdict.passed", "verdict.reference")
class FloatPassed(Invoice):
    parts: ClassVar[Mapping[str, float]] = {"total": 0.6, "net": 0.3, "tax": 0.1}

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        given = answer if isinstance(answer, dict) and set(answer) == set(task.data) else {}
        rewards = {
            name: Reward(float(type(given.get(name)) is int and given[name] == task.data[name]))
            for name in self.parts
        }
        total = 0.0
        for name, weight in self.parts.items():
            total += weight * rewards[name].value
        return Verdict(rewards, passed=total >= 1, answer=json.dumps(given)[:100])


@fault("weights are applied twice", "verdict.reference")
class TwiceWeighted(KilnSwing):
    parts: ClassVar[Mapping[str, float]] = {"form": 0.2, "exact": 0.8}

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        right = self.accepts(task.data, answer)
        rewards = {
            "form": Reward(self.parts["form"] * (answer is not None)),
            "exact": Reward(self.parts["exact"] * right),
        }
        return Verdict(rewards, passed=right, answer=str(answer)[:100])


class FormedNetwork(NetworkOf):
    """The form of an address is paid a part."""

    parts: ClassVar[Mapping[str, float]] = {"form": 0.1, "exact": 0.9}

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        right = self.accepts(task.data, answer)
        rewards = {"form": Reward(float(answer is not None)), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=answer)


@fault("a cheat earns the part for its form", "floor.cheats")
class FormedCheat(FormedNetwork):
    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return "0.0.0.0", "255.255.255.255", "127.0.0.1"


@fault(
    "passed ignores the part that counts most",
    "verdict.passed",
    "floor.junk",
    "floor.other",
    "floor.near",
    "floor.constant",
    "floor.suffix",
)
class FormPassed(FormedNetwork):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        return replace(verdict, passed=any(part.value for part in verdict.rewards.values()))


@fault("a canary's truth is None, and so is what cannot be read", "floor.canaries", "floor.empty")
class NoneCanary(Seconds):
    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth)

    def canaries(self) -> Sequence[Task[Any]]:
        prompt = (Message("user", "How many seconds are five metres? Reply with a number."),)
        return (Task(TaskKey("seconds", "eval", 0), prompt, None),)


def likes_length(request: JudgeRequest) -> float:
    """Score as a judge does that takes length for quality."""
    same = request.candidate == request.reference
    return 1.0 if same else min(1.0, len(request.candidate) / 200)


def judged_by(environment: type[Environment[Any]], score: Any) -> Any:
    """Return what makes the environment with a judge."""
    return lambda: environment(services=Services(judges={"default": FakeJudge(score)}))


@fault(
    "the error of a judgement is not looked at",
    "verdict.outage",
    "verdict.swallow",
    build=lambda: judged_by(UnreadError, same_fact)(),
)
class UnreadError(SummitSentence):
    async def score(self, task: Task[Any], answer: str) -> float:
        (judgement,) = await self.services.judge().judge([self.request(task, answer)])
        return 0.0 if judgement.error else judgement.score


@fault(
    "exceptions that are gathered are wrong answers",
    "verdict.outage",
    "verdict.swallow",
    build=lambda: judged_by(LateJudge, same_fact)(),
)
class LateJudge(SummitSentence):
    async def score(self, task: Task[Any], answer: str) -> float:
        asked = self.services.judge().judge([self.request(task, answer)])
        (result,) = await asyncio.gather(asked, return_exceptions=True)
        if isinstance(result, BaseException):
            return 0.0
        (judgement,) = result
        if judgement.error is not None:
            raise RuntimeError(judgement.error)
        return judgement.score


@fault(
    "a judge that likes length has no guards",
    "floor.judge",
    "floor.large",
    "floor.junk",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.constant",
    "floor.digits",
    "floor.nested",
    build=lambda: judged_by(LongWinded, likes_length)(),
)
class LongWinded(SummitSentence):
    pass


def claimed(program: Program, inputs: Sequence[Any]) -> Outcome:
    """Return what a sandbox would claim of a program that computes the formula of the task."""
    try:
        value = int(program.source.removeprefix("def f(n):\n    return n + "))
    except ValueError:
        return Outcome("exception", error="SyntaxError")
    return Outcome("ok", value=inputs[0] + value)


@fault(
    "a sandbox that fails is taken for a program that does",
    "verdict.outage",
    "verdict.swallow",
    build=lambda: BlindToSandbox(services=Services(sandboxes={"default": FakeSandbox(claimed)})),
)
class BlindToSandbox(Seconds):
    needs = frozenset({"sandbox"})

    def question(self, hours: int, minutes: int, seconds: int) -> str:
        span = f"{hours} h {minutes} min {seconds} s"
        return f"Write a Python function f(n) that adds {span} to n seconds, without a fence."

    def read(self, text: str) -> str:  # type: ignore[override]
        return text.strip()

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        inputs = [[task.rng().randrange(10_000)] for _ in range(3)]
        program = Program(self.read(rollout.text), "f", inputs)
        (outcomes,) = await self.services.sandbox().run([program])
        right = all(
            outcome.status == "ok" and outcome.value == given + task.data
            for outcome, (given,) in zip(outcomes, inputs, strict=True)
        )
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[Any]) -> str:
        return f"def f(n):\n    return n + {task.data}"


@fault("a failure to look the truth up is a wrong answer", "verdict.swallow")
class SoftLookup(PrimeFactors):
    def accepts(self, truth: Any, answer: Any) -> bool:
        try:
            rest = self.wanted(truth)
            return super().accepts(rest, answer)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            return False

    def wanted(self, truth: Any) -> list[int]:
        return [int(prime) for prime in truth]


@fault(
    "a part that only right answers have",
    "verdict.form",
    "floor.junk",
    "floor.empty",
    "floor.other",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.digits",
    "floor.text",
    "floor.nested",
    "floor.large",
)
class EmptyRewards(MostCoins):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        return verdict if verdict.passed else replace(verdict, rewards={})
