"""Checks of what replies give away: the answer, or a reward for text that the environment wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core import Message, Rollout, Task, Verdict
from grpo_core.api.verify import Player, scripted
from grpo_core.words import common_prefix, joined, prompt_text, shorten
from grpo_kit.answers.floors import MOST_TASKS
from grpo_kit.answers.forms import whole_words
from grpo_kit.check import check
from grpo_kit.dialogues.players import (
    IGNORANT,
    PlayClock,
    affordable_turns,
    always,
    continued,
    echoing,
    judged,
    played,
    require_dialogue,
    silent,
    texts_of,
)
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Subject, describe_verdict, task_label

_TURNS = 8
"""The most turns after which an answer is looked for in the replies."""
_BY_CHANCE = 0.5
"""By how much the share of replies with the answer has to exceed that of other tasks' answers."""
_PRAISES = 5
"""Texts of the environment that a policy says."""
_MUCH = 0.5
"""The share of the reward range that is much for an answer that was read."""
MOST_SECRETS = 8
"""Tasks on which a secret is looked for."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A dialogue with a policy that does not know the answer, and the answer of its task."""

    task: Task[Any]
    reference: str
    answer: str
    turns: tuple[str, ...]
    """What the policy said."""
    text: str
    """What the environment said."""


def known_answers(subject: Subject) -> list[tuple[int, str]]:
    """Return the number in `answered` and the answer of some tasks whose prompt does not tell it.

    Raises:
        NotCheckedError: there are too few to tell a secret from chance.
    """
    if subject.env.answer_in_prompt:
        raise NotCheckedError("the environment declares answer_in_prompt = True")
    bare = [subject.answers.bare_answer(index) or "" for index in range(len(subject.answered))]
    command = whole_words(common_prefix(list(filter(None, bare))))  # as in "order "
    answers = [
        (index, answer)
        for index, (task, _) in enumerate(subject.answered)
        if (answer := bare[index].removeprefix(command)).strip()
        and not holds(prompt_text(task), answer)
    ][:MOST_SECRETS]
    if len(answers) < MIN_TASKS_FOR_SHARE or len({answer for _, answer in answers}) < 2:
        raise NotCheckedError(
            "fewer than 4 different answers are known that are not in the prompt; write "
            "reference(), and give what was extracted as the verdict's answer"
        )
    return answers


def holds(text: str, answer: str) -> bool:
    """Return whether `text` has the words of `answer` in a row, so that 4 is not found in 42."""
    return _spaced_words(answer) in _spaced_words(text)


def _spaced_words(text: str) -> str:
    words = [word.strip(".") for word in re.findall(r"[\w.+-]+", text.casefold())]
    return f" {' '.join(filter(None, words))} "


def tells(texts: Sequence[str], answers: Sequence[str]) -> bool:
    """Return whether most texts hold the answer of their task, and do so beyond chance."""
    own = [holds(text, answer) for text, answer in zip(texts, answers, strict=True)]
    others = [
        holds(text, other)
        for text, answer in zip(texts, answers, strict=True)
        for other in answers
        if other != answer
    ]
    by_chance = sum(others) / len(others) if others else 1.0
    return sum(own) >= len(own) * max(MOST_TASKS, by_chance + _BY_CHANCE)


@check("reply.secret", "fault", asks="Do replies not tell the answer before the policy gave it?")
async def check_secret(subject: Subject) -> str:
    """Check that replies do not tell the answer to a policy that then is paid for it."""
    require_dialogue(subject)
    answers, clock = known_answers(subject), PlayClock()
    words = [answer for _, answer in answers]
    last_turns = [subject.answers.last_turns[number] for number, _ in answers]
    wrong: Mapping[str, Sequence[str]] = {
        "a wrong answer": [*words[1:], words[0]],
        "the last turn of another reference": [*last_turns[1:], last_turns[0]],
        **{kind: [text] * len(words) for kind, text in IGNORANT.items()},
    }
    await _check_opening(subject, answers)
    tried = 0
    for kind, texts in wrong.items():
        if clock.up and tried:
            break
        heard = list[Heard]()
        for (number, answer), text in zip(answers, texts, strict=True):
            if not clock.up or len(heard) < MIN_TASKS_FOR_SHARE:
                heard.append(await _hear(subject, number, answer, text))
        tried += 1
        if not tells([each.text for each in heard], [each.answer for each in heard]):
            continue
        for each in heard:
            if holds(each.text, each.answer) and (verdict := await _paid(subject, each)):
                raise BrokenPromiseError(
                    f"after {kind} the reply tells the answer, {shorten(each.answer)} in "
                    f"{shorten(each.text)} at {task_label(each.task)}, and repeating it "
                    f"{describe_verdict(verdict)}; do not say it before the policy does"
                )
    return f"replies to {tried} kinds of talk do not tell the answer while it is still paid for"


async def _check_opening(subject: Subject, answers: Sequence[tuple[int, str]]) -> None:
    """Raise BrokenPromiseError if what an episode says first tells the answer of its task."""
    if not subject.has_episodes:
        return
    openings = []
    for number, _ in answers:
        task, _ = subject.answered[number]
        talk = await played(subject, task, silent)
        openings.append(joined(talk.rollout.messages))
    right = [answer for _, answer in answers]
    if tells(openings, right):
        index = next(i for i, text in enumerate(openings) if holds(text, right[i]))
        raise BrokenPromiseError(
            f"the first message of the episode tells the answer, {shorten(right[index])} in "
            f"{shorten(openings[index])} at {task_label(subject.answered[answers[index][0]][0])}; "
            "let open() not say it, or set answer_in_prompt = True if it is to be found there"
        )


async def _hear(subject: Subject, number: int, answer: str, text: str) -> Heard:
    """Return what is said to a policy that always says `text`, up to where the answer is told."""
    task, reference = subject.answered[number]
    limit = affordable_turns(
        subject, dialogues=MIN_TASKS_FOR_SHARE, most=min(subject.env.max_turns - 1, _TURNS)
    )
    talk = await played(subject, task, always(text), most=limit + 1)
    heard = ""
    for turn, reply in enumerate(talk.replies, 1):
        heard = "\n".join(texts_of([reply]))
        if holds(heard, answer):
            return Heard(task, reference, answer, (text,) * turn, heard)
    return Heard(task, reference, answer, (text,) * len(talk.replies), heard)


async def _paid(subject: Subject, heard: Heard) -> Verdict | None:
    """Return the verdict on a policy that says what it heard, if it is paid much for that."""
    turns_left = subject.env.max_turns - len(heard.turns)
    turns = (*heard.turns, *split_turns(heard.reference)[-turns_left:])
    _, verdict = await judged(subject, heard.task, scripted(turns))
    return verdict if is_much(subject, verdict) else None


def is_much(subject: Subject, verdict: Verdict) -> bool:
    """Return whether a verdict pays much, for an answer that was read."""
    much = subject.env.floor + _MUCH * (subject.env.reward_range[1] - subject.env.floor)
    return verdict.scored and (verdict.passed or verdict.total >= much)


@check(
    "reply.echo", "fault", asks="Is what the environment said not read back as the policy's answer?"
)
async def check_echo(subject: Subject) -> str:
    """Check that text of the environment is not read back as the policy's answer."""
    require_dialogue(subject)
    if subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    await _must_rarely_pass(subject, "silence")
    if not subject.env.answer_in_prompt:
        for kind in ("an echo of each reply", "each reply in the form of an answer"):
            await _must_rarely_pass(subject, kind)
    await _check_praise(subject)
    injected = await _check_injected(subject)
    return f"silence and echoes do not pass{injected}"


async def _must_rarely_pass(subject: Subject, kind: str) -> None:
    """Raise BrokenPromiseError if a policy that knows nothing passes most tasks."""
    talks, clock = list[tuple[Task[Any], Rollout, Verdict]](), PlayClock()
    for task in subject.sample:
        if clock.up and talks:
            break
        most = subject.env.max_turns
        if kind != "silence":
            most = affordable_turns(subject, dialogues=MIN_TASKS_FOR_SHARE, most=most)
        talks.append((task, *await judged(subject, task, _parrot(subject, task, kind), most=most)))
    passed = [(task, rollout, verdict) for task, rollout, verdict in talks if verdict.passed]
    enough = MOST_TASKS * max(MIN_TASKS_FOR_SHARE, len(talks))
    if passed and (kind == "silence" or len(passed) >= enough):
        task, rollout, verdict = passed[0]
        raise BrokenPromiseError(
            f"a policy that answers with {kind} {describe_verdict(verdict)} at {task_label(task)}, "
            f"and passes {len(passed)} of {len(talks)} tasks, with "
            f"{shorten(_conversation(rollout))}; judge what the policy said, and let replies not "
            "say what passes"
        )


def _parrot(subject: Subject, task: Task[Any], kind: str) -> Player:
    """Return a policy that is silent, or that says what the environment said."""
    if kind == "silence":
        return always("")
    echo = echoing(task)
    if kind == "an echo of each reply":
        return echo
    return lambda messages: split_turns(subject.answers.reply_variants(str(echo(messages)))[-1])[-1]


async def _check_praise(subject: Subject) -> None:
    """Raise BrokenPromiseError if what the environment says to the right answer passes by itself.

    A verifier that looks for its own praise must not find it in what the policy says.
    """
    heard = Counter[str]()
    for task, text in subject.answered[: subject.small_count]:
        heard.update(set(texts_of((await played(subject, task, continued(text))).replies)))
    for praise, _ in heard.most_common(_PRAISES):
        attempts = [(task, praise) for task in subject.sample]
        verdicts = await subject.verdicts(attempts)
        passed = [pair for pair in zip(attempts, verdicts, strict=True) if pair[1].passed]
        if len(passed) >= MOST_TASKS * max(MIN_TASKS_FOR_SHARE, len(attempts)):
            (task, _), verdict = passed[0]
            raise BrokenPromiseError(
                f"a policy that says {shorten(praise)}, as the environment does, "
                f"{describe_verdict(verdict)} at {task_label(task)}, and passes {len(passed)} of "
                f"{len(attempts)} tasks; look for it in the messages of the environment only"
            )


async def _check_injected(subject: Subject) -> str:
    """Check that the reference in a message of the environment does not pass; return a summary."""
    if subject.has_episodes:  # what an episode has not said is no message of its own
        return ""
    roles: Mapping[str, str] = {"user": "a user's message", "tool": "a tool's result"}
    answered = subject.answered[: subject.small_count]
    for role, described in roles.items():
        rollouts = [
            (task, _injected(Message(role, split_turns(text)[-1])))  # type: ignore[arg-type]
            for task, text in answered
            if "<tool_call>" not in split_turns(text)[-1]
        ]
        groups = await subject.verifier.verify(
            [task for task, _ in rollouts], [[rollout] for _, rollout in rollouts]
        )
        for (task, rollout), (verdict,) in zip(rollouts, groups, strict=True):
            if verdict.passed:
                raise BrokenPromiseError(
                    f"the reference in {described}, {shorten(rollout.messages[1].content)}, while "
                    f"the policy says 'banana', {describe_verdict(verdict)} at {task_label(task)}; "
                    "the verifier reads the environment's own words: take rollout.text, or the "
                    "messages of the role 'assistant'"
                )
    return ", nor does the reference in a message of the environment" if answered else ""


def _injected(message: Message) -> Rollout:
    return Rollout((Message("assistant", "banana"), message, Message("assistant", "banana")))


def _conversation(rollout: Rollout) -> str:
    return " | ".join(f"{message.role}: {message.content}" for message in rollout.messages)
