"""Checks of an environment's tools: their form, what they execute, and what they give away."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from grpo_core.calls.isolation import ForeignError
from grpo_core.kit.players import Clock
from grpo_core.kit.reply_secrets import holds, known_answers, tells
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.scripts import split_turns
from grpo_core.kit.second_process import SecondProcess
from grpo_core.kit.subject import MIN_TASKS_FOR_SHARE, Subject, task_label
from grpo_core.kit.texts import INTEGERS
from grpo_core.kit.tool_calls import (
    Tool,
    call_text,
    described_tools,
    malformed_calls,
    usable_tools,
)
from grpo_core.kit.topics import listed_in, names_in, numbers_in
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.tools import MAX_RESULT, DescribedTool
from grpo_core.protocol.types import Message, Task
from grpo_core.report.floors import prompt_text, shorten

_MISTAKES = re.compile(
    r"error: (?:TypeError|AttributeError|NameError|UnboundLocalError|NotImplementedError|"
    r"ImportError|ModuleNotFoundError)\b"
)
"""Results of a tool that has a mistake of its own, whatever it was called with."""
_ADDRESS = re.compile(r"<[\w.]+ (?:object )?(?:[\w.<>]+ )?at 0x[0-9a-f]+>")
"""How Python shows an object that has no text of its own, such as a generator."""
_EXAMPLE = re.compile(r"""(?<!\w)['"`]([^'"`\n]{1,40})['"`]""")
"""An example that a description quotes."""
_REFUSED = re.compile(r"error: (?:there is no tool|\w+ was called wrongly)")
"""Results of calls that what the policy is told does not allow."""
_SQL = re.compile(r"unrecognized token|near \".*\": syntax error|OperationalError|ProgrammingError")
"""What a database says of a query that it cannot read."""
_UNWRITABLE = re.compile(r"Circular reference detected|is not JSON serializable")
"""Errors of a result that cannot be written."""
_GREEDY_WORDS = ("", "answer", "the answer", "solution", "hint")
"""Texts with which a policy that does not know the task asks a tool for the answer."""
_NOTHING = ("", "None", "null")
_SAME_QUESTION = 0.6
"""The share of a prompt's words that a record of its question holds."""
_SHORT = 60
"""Characters beside the answer in a result that is the answer, and not a document."""


async def check_form(subject: Subject) -> str:
    """Check that tools are described, and that right and wrong calls get results."""
    env = subject.env
    try:
        tools = described_tools(env)
    except ForeignError as error:
        raise BrokenPromiseError(str(error)) from None
    if not tools:
        raise NotCheckedError("it has no tools")
    if env.max_turns < 2:
        raise BrokenPromiseError(
            f"there are tools, but max_turns is {env.max_turns}, so no call can be answered; set "
            "max_turns to 2 or more"
        )
    for tool in tools:
        _check_description(tool)
    if len({tool.name for tool in tools}) < len(tools):
        raise BrokenPromiseError("two tools have the same name; a call names one of them")
    if env.needs and subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    if subject.replies.hanging:
        raise NotCheckedError(f"{subject.replies.hanging} (see reply.form)")
    task, clock = subject.tasks[0], Clock()
    for tool in tools:
        await _check_results(subject, task, tool)
        for kind, text in malformed_calls(tool).items():
            if not clock.up:
                await _result(subject, task, kind, text)
    return f"{len(tools)} tools are described, and answer right and wrong calls"


def _check_description(tool: Tool) -> None:
    """Raise BrokenPromiseError if the policy is not told what a tool does and takes."""
    is_served = isinstance(tool.function, DescribedTool)  # its server names and checks
    if not tool.name.strip() or (not is_served and not tool.name.isidentifier()):
        raise BrokenPromiseError(
            f"a tool has the name {tool.name!r}, by which a policy cannot call it; write a function"
        )
    if not tool.description.strip():
        raise BrokenPromiseError(
            f"the tool {tool.name} has no docstring; its first paragraph tells the policy what it "
            "does"
        )
    if is_served:
        return
    kinds = {parameter.kind for parameter in inspect.signature(tool.function).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise BrokenPromiseError(
            f"the tool {tool.name} takes any arguments (* or **), so the policy is not told what "
            "to give; name its parameters, with their types"
        )
    for name, schema in tool.properties.items():
        if schema.keys() - {"title", "description", "default"}:
            continue
        if name == "self":
            raise BrokenPromiseError(
                f"the tool {tool.name} is a method without its object; return self.{tool.name} in "
                "tools(), or make it a static method"
            )
        raise BrokenPromiseError(
            f"the parameter {name!r} of the tool {tool.name} has no type, so the policy is not "
            f"told what to give and calls are not checked; write `{name}: str`, for instance"
        )


async def _check_results(subject: Subject, task: Task[Any], tool: Tool) -> None:
    """Raise BrokenPromiseError if calls that the description allows are not answered."""
    results, talk = [], await _result(subject, task, "a word", "banana")
    # a call may be the answer, as that of a tool that submits one
    ends = any(f'"{tool.name}"' in split_turns(text)[-1] for _, text in subject.answered)
    for arguments in tool.samples():
        call = call_text(tool.name, arguments)
        result = await _result(subject, task, "an ordinary call", call)
        if result is None and ends:
            return
        if unwritable := _UNWRITABLE.search(result or ""):
            raise _unwritable(call, unwritable[0])
        if result is None or result == talk:
            answered = "not answered" if result is None else f"answered as any text, {result!r:.50}"
            raise BrokenPromiseError(
                f"the call {call} is {answered}, although {tool.name} is one of tools(); let "
                "reply() return what super().reply() returns for calls"
            )
        _check_readable(call, result)
        results.append((call, result))
    told = "\n".join([tool.description, *(result for _, result in results)])
    names = dict.fromkeys([*names_in(subject, task), *listed_in(told)])
    calls = tool.calls_with_words(list(names))
    calls += [call for number in numbers_in(task) for call in tool.calls_with_number(number)]
    for call in calls:
        result = await _result(subject, task, "a call with words of the prompt", call) or ""
        if unwritable := _UNWRITABLE.search(result):
            raise _unwritable(call, unwritable[0])
        if not result.startswith("error: "):
            results.append((call, result))
            _check_readable(call, result)
    with_result = [pair for pair in results if not pair[1].startswith("error: ")]
    if with_result and all(len(result) >= MAX_RESULT for _, result in with_result):
        raise BrokenPromiseError(
            f"the result of {with_result[0][0]} is cut after {MAX_RESULT:,} characters, as are "
            f"those of other calls of {tool.name}; return less"
        )
    if with_result and all(result.strip() in _NOTHING for _, result in with_result):
        raise BrokenPromiseError(
            f"the calls of {tool.name}, such as {with_result[0][0]}, get {with_result[0][1]!r}: it "
            "returns nothing that a policy could read; return a result"
        )
    for call in tool.calls_of_examples(_EXAMPLE.findall(tool.description)):
        result = await _result(subject, task, "an example of the description", call) or ""
        if result.startswith("error: "):
            raise BrokenPromiseError(
                f"the call {call}, which the description of {tool.name} has as an example, gets "
                f"{shorten(result, 200)}; fix the function or its description"
            )
    if all(_MISTAKES.match(result) or _REFUSED.match(result) for _, result in results):
        call, result = results[0]
        raise BrokenPromiseError(
            f"the call {call}, which the description of {tool.name} allows, gets "
            f"{shorten(result, 200)}, and so do others; fix the function or its types"
        )


def _unwritable(call: str, error: str) -> BrokenPromiseError:
    """Return the error for a result that cannot be written as JSON."""
    return BrokenPromiseError(
        f"the call {call} gets {shorten(error)}; return a text, a number, a list or a dict of these"
    )


def _check_readable(call: str, result: str) -> None:
    """Raise BrokenPromiseError if a result is an object that has no text of its own."""
    if address := _ADDRESS.search(result):
        raise BrokenPromiseError(
            f"the call {call} gets {shorten(address[0])}, which tells a policy nothing; return a "
            "text, a number, a list or a dict"
        )


async def _result(subject: Subject, task: Task[Any], kind: str, text: str) -> str | None:
    """Return the reply to a call as a text; None if it ends the dialogue.

    Raises:
        BrokenPromiseError: reply() fails.
    """
    try:
        reply = await subject.replies.reply(task, (Message("assistant", text),))
    except GrpoError as error:
        raise BrokenPromiseError(
            f"{error}, at {kind}, {shorten(text)}; tell the policy what is wrong with its call"
        ) from None
    return None if reply is None else "\n".join(message.content for message in reply)


async def check_executed(process: SecondProcess, subject: Subject) -> str:
    """Check that tools do not execute the policy's text, as observed in the second process."""
    tools = usable_tools(subject.env)
    if not tools:
        raise NotCheckedError("it has no tools")
    if not any(tool.calls_with_text("") for tool in tools):
        raise NotCheckedError("no tool takes a text")
    effects = (await process.report())["tool_effects"]
    await _check_templates(subject, tools)
    if use := effects.get("network"):
        raise BrokenPromiseError(
            f"a tool used the network ({use}); bring the data along, or ask a service"
        )
    if execution := effects.get("eval"):
        raise BrokenPromiseError(
            f"a tool executed what the policy wrote ({execution}): no eval(), exec(), os.system() "
            "or shell=True on arguments; parse them, or run programs in a sandbox"
        )
    if opened := effects.get("file"):
        raise BrokenPromiseError(
            f"a tool opened a file that the policy named ({opened}); choose from names that are "
            "known, or use a sandbox"
        )
    return f"arguments of {len(tools)} tools that are code were not executed"


async def _check_templates(subject: Subject, tools: Sequence[Tool]) -> None:
    """Raise BrokenPromiseError if a tool takes a text as a template or as a part of a query."""
    task = subject.tasks[0]
    others = names_in(subject, task)[:1]
    for tool in tools:
        for call in tool.calls_with_text("{kit_place}", *others):
            if "KeyError: 'kit_place'" in await _call(subject, task, call):
                raise BrokenPromiseError(
                    f"the call {call} is filled in as a template, which reads attributes of "
                    "whatever is put into it; use string.Template, or replace known words"
                )
        for call in tool.calls_with_text("it's", *others):
            if _SQL.search(result := await _call(subject, task, call)):
                raise BrokenPromiseError(
                    f"the call {call} gets {shorten(result, 120)}: what the policy wrote is a part "
                    "of a query; give it to the database as a parameter"
                )


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
    clock = Clock()
    for task in tasks:
        if clock.up and len(held) >= MIN_TASKS_FOR_SHARE:
            break
        # one after the other, as state of one dialogue is what may show in the next
        current = await _current_tools(subject, task)
        held.append({place for tool in current for place in _places_of(tool, task)})
        for tool in tools:
            for call in _greedy_calls(tool):
                result = await _call(subject, task, call)
                results.setdefault(call, []).append(result)
            records += await _records(subject, task, tool, right[len(held) - 1])
    for call, texts in results.items():
        short = [
            text if len(text) <= len(answer) + _SHORT or text.startswith("error: ") else ""
            for text, answer in zip(texts, right, strict=False)
        ]
        if tells(short, right[: len(short)]):
            index = next(i for i, text in enumerate(short) if holds(text, right[i]))
            raise BrokenPromiseError(
                f"the call {call} hands out the answer, {shorten(short[index])} at "
                f"{task_label(tasks[index])}, whatever is asked; a tool may help, and not answer"
            )
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


async def _records(subject: Subject, task: Task[Any], tool: Tool, answer: str) -> list[str]:
    """Return results of a tool that is given the prompt if they hold the prompt and the answer."""
    prompt = prompt_text(task)
    words, found = set(re.findall(r"\w+", prompt.casefold())), []
    for call in tool.calls_with_text(prompt):
        result = await _call(subject, task, call)
        own = words & set(re.findall(r"\w+", result.replace(answer, " ").casefold()))
        if holds(result, answer) and len(own) >= _SAME_QUESTION * len(words):
            found.append(result)
    return found[:1]


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
    await _call(subject, task, "banana")
    return list(subject.env.tools())


async def _call(subject: Subject, task: Task[Any], text: str) -> str:
    """Return the environment's reply in this process as a text, "" if there is none."""
    try:
        reply = await subject.replies_here.reply(task, (Message("assistant", text),))
    except GrpoError:  # the subject of tool.form
        return ""
    return "\n".join(message.content for message in reply or ())


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
