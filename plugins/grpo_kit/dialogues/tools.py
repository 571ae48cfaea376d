"""Checks of an environment's tools: their form, and what they execute."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from grpo_core import GrpoError, Message, Task
from grpo_core.api.calls import ForeignError
from grpo_core.protocol.tools import MAX_RESULT, DescribedTool
from grpo_core.words import joined, shorten
from grpo_kit.check import check
from grpo_kit.dialogues.players import PlayClock, reply_here
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.dialogues.tool_calls import (
    Tool,
    call_text,
    described_tools,
    malformed_calls,
    usable_tools,
)
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject
from grpo_kit.tasks.topics import listed_in, names_in, numbers_in

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
_NOTHING = ("", "None", "null")


@check(
    "tool.form",
    "fault",
    asks=(
        "Do tools have a description and types, and do right calls, wrong ones and the "
        "description's examples get results that can be read?"
    ),
)
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
    _check_descriptions(tools)
    if env.needs and subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    if subject.replies.hanging:
        raise NotCheckedError(f"{subject.replies.hanging} (see reply.form)")
    task, clock = subject.tasks[0], PlayClock()
    for tool in tools:
        await _check_results(subject, task, tool)
        for kind, text in malformed_calls(tool).items():
            if not clock.up:
                await _result(subject, task, kind, text)
    return f"{len(tools)} tools are described, and answer right and wrong calls"


def _check_descriptions(tools: Sequence[Tool]) -> None:
    """Raise BrokenPromiseError if a tool is not described, or two have the same name."""
    for tool in tools:
        _check_description(tool)
    if len({tool.name for tool in tools}) < len(tools):
        raise BrokenPromiseError("two tools have the same name; a call names one of them")


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
    _check_useful(tool, [pair for pair in results if not pair[1].startswith("error: ")])
    await _check_examples(subject, task, tool)
    if all(_MISTAKES.match(result) or _REFUSED.match(result) for _, result in results):
        call, result = results[0]
        raise BrokenPromiseError(
            f"the call {call}, which the description of {tool.name} allows, gets "
            f"{shorten(result, 200)}, and so do others; fix the function or its types"
        )


def _check_useful(tool: Tool, with_result: Sequence[tuple[str, str]]) -> None:
    """Raise BrokenPromiseError if all results are cut, or all are empty."""
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


async def _check_examples(subject: Subject, task: Task[Any], tool: Tool) -> None:
    """Raise BrokenPromiseError if a call that the description gives as an example fails."""
    for call in tool.calls_of_examples(_EXAMPLE.findall(tool.description)):
        result = await _result(subject, task, "an example of the description", call) or ""
        if result.startswith("error: "):
            raise BrokenPromiseError(
                f"the call {call}, which the description of {tool.name} has as an example, gets "
                f"{shorten(result, 200)}; fix the function or its description"
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
        reply = await subject.replies.reply(task, (Message.turn(text),))
    except GrpoError as error:
        raise BrokenPromiseError(
            f"{error}, at {kind}, {shorten(text)}; tell the policy what is wrong with its call"
        ) from None
    return None if reply is None else joined(reply)


@check(
    "tool.execute", "fault", asks="Do tools not execute what the policy wrote?", second_process=True
)
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
            if "KeyError: 'kit_place'" in await reply_here(subject, task, call):
                raise BrokenPromiseError(
                    f"the call {call} is filled in as a template, which reads attributes of "
                    "whatever is put into it; use string.Template, or replace known words"
                )
        for call in tool.calls_with_text("it's", *others):
            if _SQL.search(result := await reply_here(subject, task, call)):
                raise BrokenPromiseError(
                    f"the call {call} gets {shorten(result, 120)}: what the policy wrote is a part "
                    "of a query; give it to the database as a parameter"
                )
