"""Check that an agent's requests do not tell the policy the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core import Message, Task, Verdict
from grpo_core.api.verify import Asked
from grpo_core.words import prompt_text, shorten
from grpo_kit.check import check
from grpo_kit.dialogues.agent_policies import right_calls, tools_of
from grpo_kit.dialogues.agents import require_agents
from grpo_kit.dialogues.players import IGNORANT, PlayClock
from grpo_kit.dialogues.reply_secrets import MOST_SECRETS, holds, is_much, known_answers, tells
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Subject, describe_verdict, task_label

_SECONDS = 6.0
"""No further attempt is begun after this time."""
_LEAST = 2
"""Characters of data that are looked for; fewer stand anywhere."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """Record the requests of an agent to a policy that does not know the answer."""

    task: Task[Any]
    number: int
    """The number of the task in `Subject.answered`."""
    text: str
    """What the policy says in every turn."""
    requests: Sequence[str]
    """The content of each request."""

    def place(self, secret: str) -> int | None:
        """Return the number of turns before the first request that tells a secret; None: none."""
        return next((i for i, text in enumerate(self.requests) if holds(text, secret)), None)


@check(
    "agent.secret",
    "fault",
    asks="Do the agent's requests not tell the policy the answer or the task's data?",
)
async def check_secret(subject: Subject) -> str:
    """Check that requests do not tell the answer to a policy that then is paid for it."""
    require_agents(subject)
    if subject.env.answer_in_prompt:
        raise NotCheckedError("the environment declares answer_in_prompt = True")
    secrets = _secrets(subject)
    played = await subject.agents.play(*_first(subject))
    kinds = {**IGNORANT, **right_calls(tools_of(played.asked)), "a wrong answer": None}
    clock, tried = PlayClock(_SECONDS), 0
    for kind, text in kinds.items():
        if clock.up and tried:
            break
        for what, by_task in secrets.items():
            await _check(subject, what, by_task, kind, text)
        tried += 1
    return f"the requests that hear {tried} kinds of talk do not tell {' or '.join(secrets)}"


def _first(subject: Subject) -> tuple[Task[Any], Sequence[str]]:
    """Return a task and the turns of its reference."""
    task, text = subject.answered[0]
    return task, split_turns(text)


def _secrets(subject: Subject) -> dict[str, dict[int, str]]:
    """Return what the policy must not hear, by what it is and by the number of the task.

    Raises:
        NotCheckedError: nothing is known that the prompt does not hold.
    """
    secrets: dict[str, dict[int, str]] = {}
    failure = NotCheckedError("there is nothing to look for")
    try:
        secrets["the answer"] = dict(known_answers(subject))
    except NotCheckedError as error:
        failure = error
    data = {
        number: text
        for number, (task, _) in enumerate(subject.answered)
        if len(text := _data_text(task)) >= _LEAST and not holds(prompt_text(task), text)
    }
    chosen = dict(list(data.items())[:MOST_SECRETS])
    if len(chosen) >= MIN_TASKS_FOR_SHARE and len(set(chosen.values())) > 1:
        secrets["the task's data"] = chosen
    if not secrets:
        raise failure
    return secrets


def _data_text(task: Task[Any]) -> str:
    """Return the data of a task as an agent would write them; "" if there is no such text."""
    if isinstance(task.data, str):
        return task.data
    try:
        return json.dumps(task.data)
    except (TypeError, ValueError, RecursionError):
        return repr(task.data)


async def _check(
    subject: Subject, what: str, secrets: Mapping[int, str], kind: str, text: str | None
) -> None:
    """Raise BrokenPromiseError if requests tell what the policy must not hear.

    Args:
        subject: The environment.
        what: What it is.
        secrets: The same of each task.
        kind: What the policy says, for the message.
        text: What it says in every turn; None: the secret of another task.
    """
    numbers = list(secrets)
    heard = []
    for place, number in enumerate(numbers):
        other = secrets[numbers[(place + 1) % len(numbers)]]
        heard.append(await _hear(subject, number, other if text is None else text))
    texts = ["\n".join(each.requests) for each in heard]
    if not tells(texts, list(secrets.values())):
        return
    for each, secret in zip(heard, secrets.values(), strict=True):
        turn = each.place(secret)
        if turn is not None and (verdict := await _paid(subject, each, turn)):
            raise BrokenPromiseError(
                f"request {turn + 1} of the agent tells {what}, {shorten(secret)}, to a policy "
                f"that says {kind} at {task_label(each.task)}, and saying it then "
                f"{describe_verdict(verdict)}; send the policy nothing of task.data that it has to "
                "find out"
            )


async def _hear(subject: Subject, number: int, text: str) -> _Heard:
    """Return what a policy hears that says `text` in every turn."""
    task, _ = subject.answered[number]
    played = await subject.agents.play(task, text)
    return _Heard(task, number, text, [_told(completion) for completion in played.asked])


def _told(completion: Asked) -> str:
    """Return all that a request tells: its messages, its tools and the form of the answer."""
    request = completion.request
    parts = (
        [request.prompt]
        if isinstance(request.prompt, str)
        else [
            f"{part.content} {_arguments(part)}"
            for part in request.prompt
            if isinstance(part, Message)
        ]
    )
    tools = [json.dumps(dict(tool), ensure_ascii=False) for tool in request.tools]
    schema = json.dumps(request.json_schema, ensure_ascii=False, default=str)
    return "\n".join([*parts, *tools, schema])


def _arguments(message: Message) -> str:
    return " ".join(json.dumps(dict(call.arguments)) for call in message.tool_calls or ())


async def _paid(subject: Subject, heard: _Heard, turn: int) -> Verdict | None:
    """Return the verdict on a policy that gives the reference from a turn on, if it pays."""
    reference = split_turns(subject.answered[heard.number][1])
    turns_left = len(heard.requests) - turn
    script = (*[heard.text] * turn, *reference[-turns_left:])
    verdict = (await subject.agents.play(heard.task, script, judge=True)).verdict
    return verdict if verdict is not None and is_much(subject, verdict) else None
