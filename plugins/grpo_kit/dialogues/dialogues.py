"""Checks of the environment's side of a dialogue, which scripted policies talk to.

They ask whether reply() answers any talk in the right form and in time, ends, and depends on the
dialogue alone. What it gives away is the subject of `grpo_kit.dialogues.reply_secrets`.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from grpo_core import Environment, Message, Task
from grpo_core.api.verify import Played, play, scripted
from grpo_core.words import joined, shorten
from grpo_kit.check import check
from grpo_kit.dialogues.players import (
    Exchange,
    PlayClock,
    Recorder,
    affordable_turns,
    always,
    answers_by_itself,
    is_endless,
    ordinary_players,
    played,
    refuse_agents,
    require_dialogue,
    texts_of,
)
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.dialogues.tool_calls import sample_calls, usable_tools
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject, task_label
from grpo_kit.tasks.tasks import are_equal
from grpo_kit.tasks.topics import names_in

_TURNS = 6
"""Turns of an ordinary dialogue; an error in a later one is rare."""
_ENDLESS_TURNS = 100
"""Turns after which talk counts as endless where the environment sets no lower limit."""
_ENDLESS_TASKS = 2
_GROWING_TURNS, _GROWTH = 3, 1.5
"""Replies multiply if each of so many is longer than the one before by at least this factor."""
_QUOTE_MARKS = re.compile(r"^[>\s]+", re.MULTILINE)
_REPEATS = 4
"""How often each reply is asked for again."""
_CALLS = 10
"""Calls of tools that are repeated."""
_ROLES = ("user", "tool")
"""Roles of a reply; many templates refuse a system message behind the first place."""


@check(
    "reply.form",
    "fault",
    asks="Does reply() answer ordinary and silent turns with new messages, without raising?",
)
async def check_form(subject: Subject) -> str:
    """Check that reply() answers ordinary and silent turns with new messages, without raising."""
    refuse_agents(subject)
    _check_declared(subject.env)
    if subject.replies.hanging:
        raise BrokenPromiseError(
            f"{subject.replies.hanging}; it is asked in an ordinary dialogue, and has to answer or "
            "to end it"
        )
    require_dialogue(subject)
    clock, dialogues = PlayClock(), 0
    for index, task in enumerate(subject.tasks[: subject.small_count]):
        for kind, player in ordinary_players(subject, index).items():
            if clock.up and dialogues:
                break
            most = min(subject.env.max_turns, _TURNS)
            talk = await played(subject, task, player, most=most)
            dialogues += 1
            where = f"in a dialogue of {kind} at {task_label(task)}"
            if talk.rollout.error:
                raise BrokenPromiseError(
                    f"{talk.rollout.error}, {where}; it must answer any text, or end the dialogue "
                    "by returning None"
                )
            for reply in talk.replies:
                check_messages(reply, where)
    return f"{dialogues} dialogues got replies of the right form"


def _check_declared(env: Environment[Any]) -> None:
    """Raise BrokenPromiseError if a dialogue is declared that cannot take place."""
    has_reply = answers_by_itself(env)
    of_class = type(env).__dict__.get("max_turns", getattr(type(env), "max_turns", 1))
    if has_reply and env.max_turns == 1 == of_class and "max_turns" not in vars(env):
        raise BrokenPromiseError(
            "reply() is never asked, since max_turns is 1; set max_turns to the most turns of the "
            "policy"
        )
    if not has_reply and env.max_turns > 1 and not usable_tools(env):
        raise BrokenPromiseError(
            f"max_turns is {env.max_turns}, but there are no tools and reply() is not written, so "
            "every dialogue ends after its first turn; write reply(), or remove max_turns"
        )


def check_messages(reply: Sequence[Message], where: str) -> None:
    """Raise BrokenPromiseError if a reply is none that a chat can go on with."""
    if not reply:
        raise BrokenPromiseError(
            f"reply() returned no message and did not end the dialogue, {where}; return a message, "
            "or None"
        )
    for message in reply:
        if message.role not in _ROLES:
            raise BrokenPromiseError(
                f"reply() returned a message of the role {message.role!r}, "
                f"{shorten(message.content)}, {where}; what is the policy's has the role "
                f"'assistant', and a reply is of {', '.join(map(repr, _ROLES))} and holds new "
                "messages only"
            )


def _check_growth(talk: Played, to_what: str, task: Task[Any], limit: int) -> None:
    """Raise BrokenPromiseError if replies take ever longer, or repeat ever more.

    Raises:
        NotCheckedError: A reply failed early for another reason.
    """
    if "exceeded its deadline" in talk.rollout.error and len(talk.replies) > 1:
        raise BrokenPromiseError(
            f"{talk.rollout.error}, at reply number {len(talk.replies) + 1} {to_what} at "
            f"{task_label(task)}, while earlier ones were quick; let each turn take as "
            "long as the one before"
        )
    if talk.rollout.error and len(talk.replies) < limit - 1:
        raise NotCheckedError(f"a reply failed (see reply.form): {talk.rollout.error}")
    sizes = [sum(map(len, texts_of([reply]))) for reply in talk.replies]
    if sizes and (is_endless(talk.replies[-1]) or _multiply(talk.replies)):
        raise BrokenPromiseError(
            f"reply number {len(sizes)} {to_what} has {sizes[-1]:,} characters, and the "
            f"first one had {sizes[0]:,}, at {task_label(task)}; do not repeat the "
            "dialogue, the policy has read it"
        )


@check(
    "reply.ends",
    "warning",
    asks="Does endless talk stop at a limit, and does reply() end a dialogue that is over?",
)
async def check_ends(subject: Subject) -> str:
    """Check that endless talk comes to an end, and that some dialogue is ended by reply()."""
    require_dialogue(subject)
    env = subject.env
    limit = min(env.max_turns, _ENDLESS_TURNS)
    if affordable_turns(subject, dialogues=1, most=limit) < limit:
        raise NotCheckedError(
            f"a reply takes {subject.replies.mean_seconds:.2g} s, too long to play {limit} turns"
        )
    clock = PlayClock()
    ended = False
    for task in subject.tasks[:_ENDLESS_TASKS]:
        for kind, text in {"silence": "", "talk": "banana"}.items():
            if clock.up:
                break
            # also after the last turn, at which a run does not ask: does it know the end?
            talk = await played(subject, task, always(text), most=limit + 1)
            _check_growth(talk, f"to {kind}", task, limit)
            ended |= talk.ended or bool(talk.rollout.error)  # it knows of no further turn
            if not ended and env.max_turns > limit:
                raise BrokenPromiseError(
                    f"after {limit} turns of {kind} the dialogue at {task_label(task)} still goes "
                    f"on, and max_turns is {env.max_turns}; return None after some turns, or lower "
                    "max_turns"
                )
    turns = [len(split_turns(text)) for _, text in subject.answered]
    for task, text in subject.answered[: 1 if clock.up else subject.small_count]:
        talk = await play(subject.remembered, task, split_turns(text), max_turns=env.max_turns + 1)
        ended |= talk.ended
    summary = f"endless talk stops after {limit} turns or before"
    if ended or env.open_ended or max(turns, default=0) >= env.max_turns:
        return summary
    if not turns:
        raise NotCheckedError(
            f"{summary}; reply() ended no dialogue, and reference() gives none that it should end"
        )
    raise BrokenPromiseError(
        f"reply() never returns None: neither after the reference, such as "
        f"{shorten(subject.answered[0][1])}, nor after {limit} turns of talk, so a policy that has "
        f"answered must go on talking up to max_turns = {env.max_turns}; return None at the end, "
        "or let reference() give all turns"
    )


def _multiply(replies: Sequence[Sequence[Message]]) -> bool:
    """Return whether replies grow by a factor with each turn, as each holds those before it."""
    texts = [
        _QUOTE_MARKS.sub("", "\n".join(texts_of([reply])))
        for reply in replies[-1 - _GROWING_TURNS :]
    ]
    return len(texts) > _GROWING_TURNS and all(
        len(new) >= _GROWTH * len(old) and old in new for old, new in pairwise(texts)
    )


@check("reply.repeat", "fault", asks="Does the same dialogue get the same reply again?")
async def check_repeat(subject: Subject) -> str:
    """Check that the same dialogue gets the same reply again, in another order."""
    require_dialogue(subject)
    subject.require_same_verdicts()
    if subject.env.needs:
        raise NotCheckedError("its replies come from services")
    exchanges, clock = await _exchanges(subject), PlayClock()
    order = random.Random(0)
    asked = 0
    for repeat in range(_REPEATS):
        # at first backwards: a counter on `self` then differs most
        again = exchanges[::-1] if repeat == 0 else order.sample(exchanges, len(exchanges))
        for exchange in again:
            if clock.up and asked >= len(exchanges):
                break
            reply = await subject.replies.reply(exchange.task, exchange.messages)
            asked += 1
            if _comparable(reply) != _comparable(exchange.reply):
                raise BrokenPromiseError(
                    f"after the same {len(exchange.messages)} messages at "
                    f"{task_label(exchange.task)}, the last of them "
                    f"{shorten(exchange.messages[-1].content)}, reply() first returned "
                    f"{_shown(exchange.reply)} and then {_shown(reply)}; take random numbers from "
                    "task.key.rng('reply', len(messages)) and keep nothing on self, or set "
                    "deterministic = False"
                )
    await _check_replies_here(subject, exchanges[::-1])
    await _check_untouched(subject)
    return f"{len(exchanges)} replies were the same when they were asked for again"


async def _check_replies_here(subject: Subject, exchanges: Sequence[Exchange]) -> None:
    """Raise BrokenPromiseError if an environment that heard other dialogues replies otherwise."""
    clock = PlayClock()
    for exchange in exchanges:
        if clock.up:
            return
        reply = await subject.replies_here.reply(exchange.task, exchange.messages)
        if _comparable(reply) != _comparable(exchange.reply):
            raise BrokenPromiseError(
                f"after the same {len(exchange.messages)} messages at {task_label(exchange.task)}, "
                f"the last of them {shorten(exchange.messages[-1].content)}, reply() returned "
                f"{_shown(exchange.reply)}, and {_shown(reply)} in another process after other "
                "dialogues; keep nothing between dialogues, and do not show sets in their order"
            )


async def _check_untouched(subject: Subject) -> None:
    """Raise BrokenPromiseError if a reply changes the data of its task, which others share."""
    clock = PlayClock()
    for index, key in enumerate(task.key for task in subject.tasks[: subject.small_count]):
        for player in ordinary_players(subject, index).values():
            if clock.up:
                return
            task = await subject.make_task(key)
            try:
                kept = copy.deepcopy(task.data)
            except Exception:  # noqa: BLE001 - copying runs code of the environment
                return
            await play(subject.replies_here, task, player, max_turns=min(subject.env.max_turns, 3))
            if are_equal(kept, task.data) is False:
                raise BrokenPromiseError(
                    f"a dialogue at {task_label(task)} changed the data of the task from "
                    f"{shorten(kept)} to {shorten(task.data)}; all attempts share them, so keep "
                    "the state of a dialogue in its messages"
                )


async def _exchanges(subject: Subject) -> list[Exchange]:
    """Return what is said in some dialogues; those that fail are the subject of reply.form."""
    recorder, clock = Recorder(subject.remembered), PlayClock()
    tools = usable_tools(subject.env)
    samples = list(sample_calls(tools))[:_CALLS]
    for index, task in enumerate(subject.tasks[: subject.small_count]):
        names = names_in(subject, task)
        calls = [*samples, *(call for tool in tools for call in tool.calls_with_words(names))]
        for player in [
            *ordinary_players(subject, index).values(),
            *map(scripted, calls),
        ]:
            if clock.up and recorder.exchanges:
                break
            await play(recorder, task, player, max_turns=min(subject.env.max_turns, _TURNS))
    if not recorder.exchanges:
        raise NotCheckedError("there were no replies (see reply.form)")
    return recorder.exchanges


def _comparable(reply: Sequence[Message] | None) -> list[Message] | None:
    """Return a reply as a list, since one from a worker is a tuple."""
    return None if reply is None else list(reply)


def _shown(reply: Sequence[Message] | None) -> str:
    """Return a reply for a message."""
    return "None" if reply is None else shorten(joined(reply))
