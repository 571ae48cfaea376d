"""Play hostile turns: the dialogue goes on, and replies stay messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_core import Task
from grpo_core.api.verify import NOT_TEXT
from grpo_core.extract import is_text
from grpo_core.words import shorten
from grpo_core.words.hostile_texts import (
    CHARACTERS,
    INTEGERS,
    LARGE,
    NESTED,
    NUMBERS,
    PATTERNS,
    SEARCHES,
)
from grpo_kit.check import check
from grpo_kit.dialogues.dialogues import check_messages
from grpo_kit.dialogues.players import (
    PlayClock,
    continued,
    played,
    require_dialogue,
)
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.dialogues.tool_calls import Tool, usable_tools
from grpo_kit.result import BrokenPromiseError
from grpo_kit.subject import Subject, task_label

_OWN_TURNS = 3
"""Turns of references in which numbers are replaced by large ones."""

_HOSTILE_SECONDS = 5.0
"""No further hostile text is tried after this time."""


@check(
    "reply.hostile",
    "fault",
    asks="Do 1 MB, NUL, surrogates, nested JSON and patterns get a reply within the deadline?",
)
async def check_hostile(subject: Subject) -> str:
    """Check that hostile turns get a reply of the right form within the deadline."""
    require_dialogue(subject)
    clock, count, task = PlayClock(_HOSTILE_SECONDS), 0, subject.tasks[0]
    for kind, text in _hostile_turns(subject):
        if clock.up:
            break
        await _say(subject, task, kind, text)
        count += 1
    return (
        f"{count} hostile turns got replies within {subject.replies.seconds:g} s, or ended the "
        "dialogue"
    )


async def _say(subject: Subject, task: Task[Any], kind: str, text: str) -> None:
    """Say a hostile text in two turns; raise BrokenPromiseError if a reply to it fails."""
    talk = await played(subject, task, continued(text), most=min(subject.env.max_turns, 3))
    where = f"after a turn that is {kind}, {shorten(text)}, at {task_label(task)}"
    if talk.rollout.error:
        subject.replies.try_again()
        if not is_text(text) and NOT_TEXT in talk.rollout.error:
            return  # it quotes what no policy can write, as tokens are whole characters
        raise BrokenPromiseError(
            f"{talk.rollout.error}, {where}; a policy writes anything, so read it with linear and "
            "bounded code, and answer"
        )
    for reply in talk.replies:
        check_messages(reply, where)


def _hostile_turns(subject: Subject) -> Iterator[tuple[str, str]]:
    """Return hostile turns with their kinds: bare, in the form of an answer, and in tool calls."""
    integers = {kind: str(number) for kind, number in INTEGERS.items()}
    kinds = {**PATTERNS, **integers, **LARGE, **NESTED, **NUMBERS, **CHARACTERS}
    tools = usable_tools(subject.env)
    lead = split_turns(subject.answers.form.before)[-1]
    for kind, number in INTEGERS.items():
        for tool in tools:
            for call in tool.calls_with_number(number):
                yield f"a call of {tool.name} with {kind}", call
    yield from _right_turns_with(integers, subject)
    for kind, text in SEARCHES.items():
        yield from _calls_with(kind, text, tools)
    for kind, text in kinds.items():
        yield from _calls_with(kind, text, tools)
        yield kind, text
        for variant in dict.fromkeys([*subject.answers.reply_variants(text)[1:], lead + text]):
            if variant != text:
                yield f"{kind} in the form of an answer", split_turns(variant)[-1]
    for kind, text in {
        "1 MB of tool calls": '<tool_call>{"name": "x", "arguments": {}}</tool_call>' * 20_000,
        "1 MB of opened tool calls": "<tool_call>" * 90_000,
    }.items():
        yield kind, text


def _right_turns_with(integers: Mapping[str, str], subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield turns of right answers with another number in place of each of theirs."""
    turns = dict.fromkeys(turn for _, text in subject.answered[:2] for turn in split_turns(text))
    for turn in list(turns)[:_OWN_TURNS]:
        for number in dict.fromkeys(re.findall(r"\d+", turn, re.ASCII)):
            for kind, large in integers.items():
                yield f"a right turn with {kind}", turn.replace(number, large.lstrip("-"), 1)


def _calls_with(kind: str, text: str, tools: Sequence[Tool]) -> Iterator[tuple[str, str]]:
    """Yield calls of all tools with a text as an argument."""
    for tool in tools:
        for call in tool.calls_with_text(text):
            yield f"a call of {tool.name} with {kind}", call
