"""A dialogue whose verifier checks what it is told of an attempt's segments, from a file that a worker can load."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict

PAID = "abcdefghijklm"
"""The letters that end a turn, and pay."""


class Spelling(Environment[str]):
    """At most three turns; a turn without a letter of `PAID` is cut off and ends the dialogue."""

    max_turns = 3
    max_new_tokens = 3
    parts: ClassVar[Mapping[str, float]] = {"letters": 1.0, "talked": 0.1}
    reward_range = (0.0, 3.1)

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, f"letters {key.rng().randrange(1000)}:", "a")

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        return (Message("user", " more:"),)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        if rollout.returned is not None:
            assert rollout.returned == {"turns": len(rollout.segments)}
            assert rollout.turns == len(rollout.segments)
            assert rollout.sampled_tokens == sum(rollout.turn_lengths) or not rollout.later_segments
        said = [message.content for message in rollout.messages if message.role == "assistant"]
        paid = tuple(float(any(letter in PAID for letter in text)) for text in said)
        return Verdict(
            {"letters": Reward(turns=paid), "talked": Reward(float(len(said) > 1))},
            passed=sum(paid) == 3,
        )
