"""The attempts of a run that are worth learning from, as examples for `grpo sft` (rejection sampling)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.protocol.types import Message, Task, TaskKey, Verdict

JsonObject = dict[str, Any]
Rewarded = tuple[float, JsonObject]
"""The total reward of an attempt, and its line in the log."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which attempts: those that passed, or those with at least `reward`; of each task the `best` (None: all), equal ones once."""

    reward: float | None = None
    best: int | None = None
    split: str | None = "train"

    def takes(self, line: JsonObject) -> bool:
        verdict = line["verdict"]
        whole = (
            verdict["error"] is None
            and line["finish"] == "stop"
            and line["messages"]
            and line["messages"][-1]["role"] == "assistant"
        )
        if not whole or self.split not in (None, line["key"]["split"]):
            return False
        return (
            bool(verdict["passed"])
            if self.reward is None
            else Verdict.from_json(verdict).total >= self.reward
        )


def choose(lines: Iterable[JsonObject], choice: Choice) -> dict[TaskKey, list[Rewarded]]:
    """Of the lines of rollouts.jsonl, by task, in the order in which the run came to them; the best of a task first, and among equals in
    the order of the run."""
    found: dict[TaskKey, dict[str, Rewarded]] = {}
    for line in filter(choice.takes, lines):
        rewarded = Verdict.from_json(line["verdict"]).total, line
        found.setdefault(TaskKey(**line["key"]), {}).setdefault(repr(line["messages"]), rewarded)
    return {
        key: sorted(said.values(), key=lambda pair: -pair[0])[: choice.best]
        for key, said in found.items()
    }


def examples(
    chosen: Iterable[Sequence[Rewarded]], tasks: Sequence[Task[Any]]
) -> Iterator[JsonObject]:
    """In the form that `grpo sft --data` and other trainers read: prompt and completion, as messages where the prompt is a chat; what else
    is known stands beside them."""
    for rewarded, task in zip(chosen, tasks, strict=True):
        for reward, line in rewarded:
            yield {
                **_said(task.prompt, line["messages"]),
                "reward": reward,
                "key": line["key"],
                "step": line.get("step"),
            }


def _said(prompt: str | tuple[Message, ...], messages: Sequence[JsonObject]) -> JsonObject:
    """The policy's last words are what is learned, so what was said before belongs to the prompt."""
    *before, last = messages
    if isinstance(prompt, str):
        return {
            "prompt": prompt + "".join(message["content"] for message in before),
            "completion": last["content"],
        }
    asked = [{"role": message.role, "content": message.content} for message in prompt]
    return {"prompt": [*asked, *before], "completion": [last]}
