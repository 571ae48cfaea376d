"""Scripted policies for agents: ordinary, ignorant, talkative and hostile ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from grpo_core.api.calls import ForeignError, isolated
from grpo_core.api.protocol import Script
from grpo_core.api.verify import Asked, Player
from grpo_kit.dialogues.players import IGNORANT, echoing
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.dialogues.tool_calls import Tool, call_text, malformed_calls, sample_calls
from grpo_kit.subject import Subject

_MB = 1_000_000
_TOOLS = 2
"""Tools that are called wrongly."""
_CALLS = 3
"""Right calls of tools that a policy makes in every turn."""
Turns = Script | Player
"""What a policy says to an agent; of a script, the last turn again and again."""
Policies = Mapping[str, Turns]
"""What policies say, by the end of a sentence about them."""


def tools_of(asked: Sequence[Asked]) -> list[Tool]:
    """Return the tools that an agent offers the policy in some requests."""
    tools: dict[str, Tool] = {}
    for completion in asked:
        for schema in completion.request.tools:
            described = schema["function"]
            tool = Tool(
                _uncallable,
                described["name"],
                described.get("description") or "",
                described.get("parameters") or {},
            )
            try:
                isolated(tool.samples)
            except ForeignError:  # the agent describes it in a way that has no example
                continue
            tools[tool.name] = tool
    return list(tools.values())


def _uncallable(*arguments: object) -> None:
    raise NotImplementedError("the agent calls its tools itself")


def ordinary_policies(subject: Subject, index: int) -> Policies:
    """Return what policies say at first, for the task number `index`."""
    task, reference = subject.tasks[index], subject.references[index]
    others = [text for text in subject.references if text is not None and text != reference]
    return {
        **({} if reference is None else {"the reference": split_turns(reference)}),
        **({"the reference of another task": split_turns(others[0])} if others else {}),
        **IGNORANT,
        "the prompt, then an echo of what it hears": echoing(task),
    }


def hostile_policies(subject: Subject, index: int) -> Policies:
    """Return policies that know nothing and say what is hard to take, for the task `index`."""
    return {
        "nothing, in every turn,": "",
        "the same word in every turn": "banana",
        "the prompt, then an echo of what it hears,": echoing(subject.tasks[index]),
        **_quoting(subject, index),
        "a call of a tool that there is not": call_text("no_such_tool", {"x": 1}),
        "a call that is never closed": '<tool_call>{"name": "no_such_tool", "arguments": {',
        "calls of 1 MB": call_text("no_such_tool", {}) * (_MB // 60),
        "1 MB in a turn": "a " * (_MB // 2),
    }


def right_calls(tools: Sequence[Tool]) -> dict[str, str]:
    """Return policies that call an agent's tools as they are described, always in the same way.

    By chance, one of them may be right at a task; so may one of `wrong_calls`.
    """
    return {f"{call} in every turn": call for call in islice(sample_calls(tools), _CALLS)}


def wrong_calls(tools: Sequence[Tool]) -> dict[str, str]:
    """Return policies that call an agent's tools wrongly."""
    return {
        f"{kind} ({tool.name})": text
        for tool in tools[:_TOOLS]
        for kind, text in malformed_calls(tool).items()
    }


def _quoting(subject: Subject, index: int) -> Policies:
    """Return a policy that names the right answer among others, and gives none."""
    if subject.env.open_ended:
        return {}
    task = subject.tasks[index]
    known = {
        id(answered): answer
        for number, (answered, _) in enumerate(subject.answered)
        if (answer := subject.answers.bare_answer(number)) and answer.strip()
    }
    others = [answer for answer in known.values() if answer != known.get(id(task))]
    if id(task) not in known or not others:
        return {}
    text = f"Is it {others[0]}, {known[id(task)]} or {others[-1]}? I do not know."
    return {"the answer among others, as a question,": text}
