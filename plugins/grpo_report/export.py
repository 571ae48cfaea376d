"""Export selected rollouts of a run as examples for `grpo sft` (rejection sampling)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core import Message, Task, TaskKey, Verdict
from grpo_core.protocol.ties import reaches, settled

JsonObject = dict[str, Any]
Rewarded = tuple[float, JsonObject]
"""The total reward of a rollout, and its line in rollouts.jsonl."""


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """Which rollouts to export; of rollouts of a task with equal messages, only one is kept."""

    reward: float | None = None
    """The least total reward; None: the rollouts that passed."""
    best: int | None = None
    """How many rollouts of each task to keep, those with the highest reward; None: all."""
    split: str | None = "train"
    """The split of the tasks; None: every split."""

    def takes(self, line: JsonObject) -> bool:
        """Return whether a line of rollouts.jsonl is complete, of the split, and good enough."""
        verdict = line["verdict"]
        if (
            verdict["error"] is not None
            or line["finish"] != "stop"
            or not line["messages"]
            or line["messages"][-1]["role"] != "assistant"
            or self.split not in (None, line["key"]["split"])
        ):
            return False
        return (
            bool(verdict["passed"])
            if self.reward is None
            else reaches(Verdict.from_json(verdict).total, self.reward)
        )


def choose(lines: Iterable[JsonObject], choice: ExportChoice) -> dict[TaskKey, list[Rewarded]]:
    """Return the chosen lines of rollouts.jsonl by task, with tasks in the order of the run.

    The rollouts of a task are sorted by reward, highest first, and by the order of the run among
    equal rewards.
    """
    unique: dict[TaskKey, dict[str, Rewarded]] = {}
    for line in filter(choice.takes, lines):
        rewarded = Verdict.from_json(line["verdict"]).total, line
        unique.setdefault(TaskKey(**line["key"]), {}).setdefault(repr(line["messages"]), rewarded)
    return {
        key: _highest_first(list(rollouts.values()))[: choice.best]
        for key, rollouts in unique.items()
    }


def _highest_first(rollouts: Sequence[Rewarded]) -> list[Rewarded]:
    rewards = settled([reward for reward, _ in rollouts])
    places = sorted(range(len(rollouts)), key=lambda place: -rewards[place])
    return [rollouts[place] for place in places]


def examples(
    chosen: Iterable[Sequence[Rewarded]], tasks: Sequence[Task[Any]]
) -> Iterator[JsonObject]:
    """Yield each chosen rollout in the form that `grpo sft --data` and other trainers read.

    An example has a prompt and a completion (lists of messages where the prompt is a chat), and
    beside them the reward, the task key and the step.

    Args:
        chosen: The rollouts of each task.
        tasks: The tasks, in the same order.
    """
    for rewarded, task in zip(chosen, tasks, strict=True):
        for reward, line in rewarded:
            yield {
                **_split_prompt(task.prompt, line["messages"]),
                "reward": reward,
                "key": line["key"],
                "step": line.get("step"),
            }


def _split_prompt(prompt: str | tuple[Message, ...], messages: Sequence[JsonObject]) -> JsonObject:
    """Return the last message as the completion, and every message before it as the prompt.

    What the policy wrote is whole, thoughts included: they are what led it to the answer.
    """
    *before, last = (
        {"role": message["role"], "content": Message.from_json(message).raw} for message in messages
    )
    if isinstance(prompt, str):
        return {
            "prompt": prompt + "".join(message["content"] for message in before),
            "completion": last["content"],
        }
    prompt_messages = [{"role": message.role, "content": message.content} for message in prompt]
    return {"prompt": [*prompt_messages, *before], "completion": [last]}
