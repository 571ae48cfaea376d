"""Check that no tool hands out the answer, or holds what the task hides."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from grpo_core import Environment, Task
from grpo_core.words import prompt_text, shorten
from grpo_core.words.hostile_texts import INTEGERS
from grpo_kit.check import check
from grpo_kit.dialogues.players import PlayClock, reply_here
from grpo_kit.dialogues.reply_secrets import holds, known_answers, tells
from grpo_kit.dialogues.tool_calls import Tool, call_text, usable_tools
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Subject, task_label

_GREEDY_WORDS = ("", "answer", "the answer", "solution", "hint")
"""Texts with which a policy that does not know the task asks a tool for the answer."""
_SAME_QUESTION = 0.6
"""The share of a prompt's words that a record of its question holds, and a whole sentence of it.

A document on the same subject holds most of its words, too.
"""
_SENTENCE = 3
"""The least words of a sentence that are not found elsewhere by chance."""
_LEAVES = 3
"""The least texts and numbers of a task's data that are the data, and not an answer."""
_SHORT = 60
"""Characters beside the answer in a result that is the answer, and not a document."""


@check("tool.secret", "fault", asks="Do tools not hand out the answer?")
async def check_secret(subject: Subject) -> str:
    """Check that no tool hands out the answer, or holds what the task hides."""
    tools = usable_tools(subject.env)
    if not tools:
        raise NotCheckedError("it has no tools")
    if subject.env.needs:
        raise NotCheckedError("its tools may use services")
    if subject.replies.hanging:
        raise NotCheckedError(f"{subject.replies.hanging} (see reply.form)")
    known = known_answers(subject)
    right = [answer for _, answer in known]
    tasks = [subject.answered[number][0] for number, _ in known]
    results: dict[str, list[str]] = {}
    held: list[set[str]] = []
    records: list[str] = []
    clock = PlayClock()
    for task in tasks:
        if clock.up and len(held) >= MIN_TASKS_FOR_SHARE:
            break
        # one after the other, as state of one dialogue is what may show in the next
        current = await _current_tools(subject, task)
        held.append({place for tool in current for place in _places_of(tool, task)})
        for tool in tools:
            for call in _greedy_calls(tool):
                result = await reply_here(subject, task, call)
                results.setdefault(call, []).append(result)
            records += await _records(subject, task, tool, right[len(held) - 1])
    _refuse_results_with_answers(results, tasks, right)
    if len(records) >= MIN_TASKS_FOR_SHARE:
        raise BrokenPromiseError(
            f"a tool that is given the prompt returns it with its answer, such as "
            f"{shorten(records[0], 120)}, in {len(records)} of {len(held)} tasks: it searches the "
            "rows of the tasks; keep the answers out of what it searches"
        )
    distinct = len({repr(task.data) for task in tasks[: len(held)]}) >= MIN_TASKS_FOR_SHARE
    if distinct and (places := set.intersection(*held)):
        raise BrokenPromiseError(
            f"{min(places)} is what the verifier keeps of the task that is played, so a tool can "
            "give it away, and dialogues that go on at the same time mix; keep nothing of a task "
            "on self"
        )
    return f"{len(tools)} tools do not hand out the answers of {len(held)} tasks"


def _refuse_results_with_answers(
    results: Mapping[str, list[str]], tasks: Sequence[Task[Any]], right: Sequence[str]
) -> None:
    """Raise BrokenPromiseError if short results of a call hold the answers of their tasks."""
    for call, texts in results.items():
        short = [
            text
            if len(text) <= len(answer) + _SHORT
            or text.startswith("error: ")
            or _holds_all(text, task.data)
            else ""
            for text, answer, task in zip(texts, right, tasks, strict=False)
        ]
        if tells(short, right[: len(short)]):
            index = next(i for i, text in enumerate(short) if holds(text, right[i]))
            raise BrokenPromiseError(
                f"the call {call} hands out the answer, {shorten(short[index])} at "
                f"{task_label(tasks[index])}, whatever is asked; a tool may help, and not answer"
            )


async def _records(subject: Subject, task: Task[Any], tool: Tool, answer: str) -> list[str]:
    """Return results of a tool that is given the prompt if they hold the prompt and the answer."""
    prompt = prompt_text(task)
    sentences = [_words(sentence) for sentence in re.split(r"[.:?!]\s|\n", prompt)]
    words, found = set(_words(prompt)), []
    for call in tool.calls_with_text(prompt):
        result = await reply_here(subject, task, call)
        told = _words(result.replace(answer, " "))
        if (
            holds(result, answer)
            and len(words.intersection(told)) >= _SAME_QUESTION * len(words)
            and any(_has_sentence(told, sentence) for sentence in sentences)
        ):
            found.append(result)
    return found[:1]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _has_sentence(told: Sequence[str], sentence: Sequence[str]) -> bool:
    """Return whether the words of a sentence stand in a row."""
    return len(sentence) >= _SENTENCE and f" {' '.join(sentence)} " in f" {' '.join(told)} "


def _holds_all(text: str, data: object) -> bool:
    """Return whether a result holds all that the environment keeps of a task."""
    kept, words = set(_leaves(data)), set(re.findall(r"[\w.-]+", text))
    return len(kept) >= _LEAVES and all(set(re.findall(r"[\w.-]+", leaf)) <= words for leaf in kept)


def _leaves(value: object) -> Iterator[str]:
    """Yield the texts and numbers inside a value."""
    if isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _leaves(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _leaves(getattr(value, part.name))
    elif isinstance(value, BaseModel):
        yield from _leaves(value.model_dump())


def _greedy_calls(tool: Tool) -> Iterator[str]:
    """Return calls of a policy that does not know the task and wants the answer."""
    calls = [call_text(tool.name, arguments) for arguments in tool.samples()]
    calls.append(call_text(tool.name, tool.required(tool.samples()[0])))
    calls += [call for text in _GREEDY_WORDS for call in tool.calls_with_text(text)]
    calls += [call for number in INTEGERS.values() for call in tool.calls_with_number(number)]
    return iter(dict.fromkeys(calls))


async def _current_tools(subject: Subject, task: Task[Any]) -> Sequence[Callable[..., object]]:
    """Return the tools as they are when `task` was made and its dialogue has begun."""
    await subject.make_task(task.key)
    await reply_here(subject, task, "banana")
    return list(subject.env.tools())


def _places_of(function: Callable[..., object], task: Task[Any]) -> Iterator[str]:
    """Return where a tool holds the task or its data, as a name in a message."""
    name = getattr(function, "__name__", "a tool")
    for place, value in _reachable(function):
        if _is_task(value, task):
            yield f"{place} of the tool {name}"


def _is_task(value: object, task: Task[Any]) -> bool:
    """Return whether a value is the task or its data."""
    if isinstance(value, Task):
        return value.key == task.key
    try:
        return type(value) is type(task.data) and bool(value == task.data)
    except Exception:  # noqa: BLE001 - comparing runs code of the environment
        return value is task.data


def _reachable(function: Callable[..., object]) -> Iterator[tuple[str, object]]:
    """Return what a function holds: closure, defaults, and the attributes that its code names."""
    if isinstance(function, partial):
        yield from ((f"argument {number}", value) for number, value in enumerate(function.args, 1))
        yield from function.keywords.items()
        function = function.func
    owner = getattr(function, "__self__", None)
    plain: Any = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(plain, "__code__", None)
    if code is None:
        return
    cells = dict(zip(code.co_freevars, plain.__closure__ or (), strict=False))
    held: dict[str, object] = {}
    for name, cell in cells.items():
        try:
            held[name] = cell.cell_contents
        except ValueError:  # it is empty
            continue
    defaults: Mapping[str, object] = plain.__kwdefaults__ or {}
    held |= {f"a default {number}": value for number, value in enumerate(plain.__defaults__ or ())}
    held |= defaults
    yield from held.items()
    for holder in [owner, *held.values()]:
        attributes = getattr(holder, "__dict__", {})
        for name in code.co_names:
            if isinstance(holder, Environment) and name in attributes:
                yield f"self.{name}", attributes[name]
