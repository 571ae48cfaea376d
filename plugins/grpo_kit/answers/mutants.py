"""Check that answers that are almost right do not pass: the author's mutants, and changed programs.

A policy that learns is lazy: it finds the cheapest answer that passes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core import Environment, Program, Task, TaskKey
from grpo_core.api.verify import check_reference, size_of
from grpo_core.programs import CodeEnvironment, same_value
from grpo_core.words import shorten
from grpo_kit.answers.syntax_mutants import syntax_mutants
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import TOLERANCE, Attempt, Subject, describe_verdict, task_label

_TASKS = 10
_FEW_TASKS = 4
"""The tasks, of levels from 0 to 1, where verdicts need a service, or an agent has to run."""
_MUTANTS = 15
"""The mutants, or changed programs, of each of these few tasks."""
_CHUNK = 8
_DOMAIN = 480
"""The inputs on which a changed program that passes is compared with the solution."""
_MOST_ALIKE = 0.25
"""The share of changed programs that may pass, as some changes make no difference.

It is a tenth of long programs, and up to a fifth of those of one or two lines.
"""
_SHOWN = 400
"""The characters of a program in a message."""
_BLOCK = re.compile(r"```(?:python|py|python3)\n(.*?)\n```", re.DOTALL | re.IGNORECASE)


@check("floor.mutants", "fault", asks="Do the author's mutants, which are almost right, fail?")
async def check_mutants(subject: Subject) -> str:
    """Check that no mutant of the author passes or earns the whole reward."""
    if type(subject.env).mutants is Environment.mutants:
        raise NotCheckedError(
            "mutants() gives no answers; list what is almost right, such as a bound off by one"
        )
    high = subject.env.reward_range[1]
    tasks = await _tasks_of_all_levels(subject)
    count = 0
    for task in tasks:
        named = list(_mutants_of(subject, task).items())
        if subject.services or subject.has_agents:
            named = task.key.rng("mutants").sample(named, min(_MUTANTS, len(named)))
        attempts = [(task, text) for _, text in named]
        verdicts = await _verdicts(subject, attempts)
        for (mistake, text), verdict in zip(named, verdicts, strict=True):
            if not verdict.scored or verdict.passed or verdict.total >= high - TOLERANCE:
                raise BrokenPromiseError(
                    f"the mutant {mistake!r}, {shorten(text)}, {describe_verdict(verdict)} at "
                    f"{task_label(task)}; it must get a verdict, not pass, and earn less than "
                    f"{high:g}"
                )
        count += len(named)
    if not count:
        raise NotCheckedError(f"mutants() gives no answers for {len(tasks)} tasks")
    return f"{count} mutants of {len(tasks)} tasks do not pass"


@check(
    "floor.changed",
    "warning",
    asks="Does a program fail in which a constant, a comparison, a branch or an order is changed?",
)
async def check_changed(subject: Subject) -> str:
    """Check that small changes of programs make them fail.

    A change may make no difference. Where the environment is a `CodeEnvironment`, a program that
    passes is compared with the solution on edge cases and many others, and is no finding if it
    agrees on all.
    """
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("it runs no programs")
    tried = 0
    passing: list[_Passing] = []
    for task in await _tasks_of_all_levels(subject):
        reference = await subject.verifier.reference(task)
        if reference is None or not (programs := _changed_programs(join_turns(reference))):
            continue
        chosen = task.key.rng("changed").sample(programs, min(_MUTANTS, len(programs)))
        verdicts = await _verdicts(subject, [(task, text) for _, _, text in chosen])
        tried += len(chosen)
        for (what, source, _), verdict in zip(chosen, verdicts, strict=True):
            if verdict.passed:
                seen = await _difference(subject.env, task, source)
                passing.append(_Passing(task, what, source, seen))
    if not tried:
        raise NotCheckedError("its references are no Python programs")
    summary = f"{len(passing)} of {tried} small changes of references pass"
    worst = max(passing, key=lambda program: bool(program.difference), default=None)
    if worst is None:
        return summary
    example = (
        f"such as {shorten(worst.source, _SHOWN)} ({worst.what}) at {task_label(worst.task)}"
        f"{worst.difference}"
    )
    compared = isinstance(subject.env, CodeEnvironment)
    if not worst.difference and (compared or len(passing) <= _MOST_ALIKE * tried):
        ground = f"they agree on {_DOMAIN} inputs" if compared else "so few may be equivalent"
        return f"{summary}, {example}; {ground}"
    raise BrokenPromiseError(
        f"{summary}, {example}; each is either equivalent to its reference or not told apart from "
        "it: draw inputs that tell them apart, at bounds and where rules meet"
    )


@dataclass(frozen=True, slots=True)
class _Passing:
    """A changed program that passes."""

    task: Task[Any]
    what: str
    """What was changed."""
    source: str
    difference: str
    """For which arguments it returns something else than the solution; "" if that is not known."""


async def _tasks_of_all_levels(subject: Subject) -> Sequence[Task[Any]]:
    """Return a few tasks, of evenly spaced levels."""
    count = _FEW_TASKS if subject.services or subject.has_agents else _TASKS
    size = size_of(subject.env, "train")
    count = count if size is None else min(count, size)
    return [
        await subject.make_task(
            TaskKey(subject.name, "train", index, subject.seed, index / max(1, count - 1))
        )
        for index in range(count)
    ]


def _mutants_of(subject: Subject, task: Task[Any]) -> dict[str, str]:
    """Return the mutants of a task by their mistakes, the turns of a dialogue joined.

    Raises:
        BrokenPromiseError: they are not answers by name.
    """
    mutants = subject.env.mutants(task)
    if not isinstance(mutants, Mapping) or not all(isinstance(name, str) for name in mutants):
        raise BrokenPromiseError(
            f"mutants() returned a {type(mutants).__name__}; it must return a dict of answers by "
            "the name of their mistake"
        )
    texts = {}
    for mistake, script in mutants.items():
        checked = check_reference(script)
        if checked is None:
            raise BrokenPromiseError(f"the mutant {mistake!r} is None; leave it out of mutants()")
        texts[mistake] = join_turns(checked)
    return texts


async def _verdicts(subject: Subject, attempts: Sequence[Attempt]) -> list[Any]:
    """Return the verdict on each attempt, so few at once that one that hangs ends the check."""
    verdicts = []
    for start in range(0, len(attempts), _CHUNK):
        verdicts += await subject.verdicts(attempts[start : start + _CHUNK])
    return verdicts


def _changed_programs(reference: str) -> list[tuple[str, str, str]]:
    """Return what was changed, the changed program, and the reference with it.

    The program is the first block of Python of a reference, or all of it.
    """
    block = _BLOCK.search(reference)
    source = reference if block is None else block[1]
    start, end = (0, len(reference)) if block is None else block.span(1)
    try:
        if not any(isinstance(node, ast.FunctionDef) for node in ast.parse(source).body):
            return []
    except (SyntaxError, ValueError):  # of NUL characters
        return []
    return [
        (what, changed, reference[:start] + changed + reference[end:])
        for what, changed in syntax_mutants(source)
    ]


async def _difference(env: Environment[Any], task: Task[Any], source: str) -> str:
    """Return where a program differs from the solution, as the end of a sentence, or ""."""
    if not isinstance(env, CodeEnvironment):
        return ""
    rng = task.key.rng("domain")
    cases = [*env.edge_cases(task.data, rng), *env.cases(task.data, rng, _DOMAIN)]
    program = Program(source, task.data.entry, [case.arguments for case in cases])
    ((*outcomes,),) = await env.services.sandbox().run([program])
    for case, outcome in zip(cases, outcomes, strict=True):
        if outcome.status == "infra_error":
            break
        if outcome.status != "ok" or not same_value(outcome.value, case.expected):
            return f", which fails for {shorten(repr(case.arguments))}"
    return ""
