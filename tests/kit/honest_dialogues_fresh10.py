"""Dialogues that look odd and are right."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from bases_h3_fresh10 import BoilerOnTheLine, StoneOnTheBench, policy_turns
from bases_h_fresh10 import BLANK
from catalogue import honest

from grpo_core import Message, Reward, Rollout, Task, Verdict


@honest("it tells the broken part, but only after the first diagnosis, and that one alone counts")
class BoilerExplainedAfterwards(BoilerOnTheLine):
    """Explains the boiler to whoever has named a part."""

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        if any(self.named(text) is not None for text in policy_turns(messages[:-1])):
            return None
        return await super().reply(task, messages)

    def closing(self, task: Task[dict[str, Any]]) -> Sequence[Message] | None:
        broken = task.data["broken"]
        reading = task.data["readings"][broken]
        return (Message("user", f"Noted. It was the {broken}, which read {reading}. Goodbye."),)


@honest("it repeats what the policy said, as radio demands; the verifier reads the policy alone")
class BoilerWithReadback(BoilerOnTheLine):
    """Reads every command back over the radio before it answers."""

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        answer = await super().reply(task, messages)
        heard = re.sub("[^A-Za-z: ]", "", messages[-1].content[:40]).strip(BLANK)
        return answer and (Message("user", f"I copy: {heard}. {answer[0].content}"),)


@honest("a second name may be tried for half the pay; with one of six stones that is no list")
class StoneWithASecondChance(StoneOnTheBench):
    """Lets a policy name another stone if the first was wrong, for half of the reward."""

    parts: ClassVar[dict[str, float]] = {"named": 1.0}
    orders: ClassVar[str] = (
        "Then write `STONE: NAME`. If it is wrong, you may name one more, for half the pay."
    )

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        named = self.names(policy_turns(messages))
        right = named[-1:] == [task.data["stone"]]
        if messages[-1].content.strip(BLANK).startswith("STONE: "):
            again = (Message("user", "No. You may name another stone, for half the pay."),)
            return None if right or len(named) > 1 else again
        return await super().reply(task, messages)

    def names(self, turns: Sequence[str]) -> list[str]:
        """Return the first 40 characters of the names in some turns."""
        return [text[7:47] for text in turns if text.startswith("STONE: ")]

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        named = self.names(policy_turns(rollout.messages))[:2]
        first, later = (name == task.data["stone"] for name in (*named, "", "")[:2])
        value = 1.0 if first else 0.5 if later else 0.0
        rewards = {"named": Reward(value)}
        return Verdict(rewards, passed=first, answer=named[-1] if named else None)
