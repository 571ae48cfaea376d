"""The attempts of a run that are worth learning from, as examples for `grpo sft` (rejection sampling)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.types import Message, Task, TaskKey, Verdict

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which attempts: those that passed, or those with at least `reward`; of each task the `best` (None: all), equal ones once."""

    reward: float | None = None
    best: int | None = None
    split: str | None = "train"

    def takes(self, line: JsonObject) -> bool:
        verdict = line["verdict"]
        whole = verdict["error"] is None and line["finish"] == "stop" and line["messages"] and line["messages"][-1]["role"] == "assistant"
        if not whole or self.split not in (None, line["key"]["split"]):
            return False
        return bool(verdict["passed"]) if self.reward is None else Verdict.from_json(verdict).total >= self.reward


@dataclass(slots=True)
class Chosen:
    """The lines of one task, best first, and among equals in the order of the run."""

    key: TaskKey
    draw: int
    lines: list[tuple[float, JsonObject]] = field(default_factory=list)


def choose(lines: Iterable[JsonObject], choice: Choice) -> list[Chosen]:
    """Of the lines of rollouts.jsonl, by task, in the order in which the run came to them."""
    found: dict[TaskKey, Chosen] = {}
    said: set[tuple[TaskKey, str]] = set()
    for line in lines:
        if not choice.takes(line):
            continue
        key, words = TaskKey(**line["key"]), repr(line["messages"])
        if (key, words) in said:
            continue
        said.add((key, words))
        found.setdefault(key, Chosen(key, line["draw"])).lines.append((Verdict.from_json(line["verdict"]).total, line))
    for chosen in found.values():
        chosen.lines = sorted(chosen.lines, key=lambda pair: -pair[0])[: choice.best]
    return list(found.values())


def examples(chosen: Sequence[Chosen], tasks: Sequence[Task[Any]]) -> Iterator[JsonObject]:
    """In the form that `grpo sft --data` and other trainers read: prompt and completion, as messages where the prompt is a chat; what else
    is known stands beside them."""
    for each, task in zip(chosen, tasks, strict=True):
        for reward, line in each.lines:
            yield {**_said(task.prompt, line["messages"]), "reward": reward, "key": line["key"], "step": line.get("step")}


def _said(prompt: str | tuple[Message, ...], messages: Sequence[JsonObject]) -> JsonObject:
    """The policy's last words are what is learned, so what was said before belongs to the prompt."""
    *before, last = messages
    if isinstance(prompt, str):
        return {"prompt": prompt + "".join(message["content"] for message in before), "completion": last["content"]}
    asked = [{"role": message.role, "content": message.content} for message in prompt]
    return {"prompt": [*asked, *before], "completion": [last]}
