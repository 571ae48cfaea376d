"""Episodes without a fault that look odd, fifth fresh part."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bases_state_fresh5 import Baking, Bowl, Jugs, JugsEpisode
from catalogue import honest

from grpo_core import Message, Reward, Rollout, Task, Verdict


class BowlThatPays(Bowl):
    """Keeps what the bowl was worth after each turn."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.worths = [0.0]

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        said = await super().reply(messages)
        self.worths.append(self.worth())
        return said

    def worth(self) -> float:
        """Return 1 for what is asked for, else half of the share that is right."""
        if self.bowl == self.task.data:
            return 1.0
        wanted = self.task.data
        good = sum(self.bowl.get(food) == grams for food, grams in wanted.items())
        return float(good / (2 * len({*wanted, *self.bowl})))

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = sum(message.role == "assistant" for message in rollout.messages)
        unheard = [self.worth()] * (turns + 1 - len(self.worths))
        paid = tuple(after - before for before, after in pairwise([*self.worths, *unheard]))
        right, rewards = self.bowl == self.task.data, {"reward": Reward(turns=paid)}
        return Verdict(rewards, passed=right, answer=self.told())


@honest("each turn is paid for how much better it made things, and one that spoils them pays back")
class PaysBack(Baking):
    attempt = BowlThatPays


DONE = ("Done.", "So be it.", "As you like.", "Here you are.", "At your service.")


class WordyJugs(JugsEpisode):
    """Speaks first, and never in the same words."""

    async def open(self) -> Sequence[Message]:
        self.words = random.SystemRandom()
        return (Message("user", f"{self.words.choice(DONE)} The jugs are on the table."),)

    def told(self) -> str:
        return f"{self.words.choice(DONE)} {super().told()}"

    def judged(self, right: bool) -> Verdict:
        reward = {"reward": Reward(float(right))}
        return Verdict(reward, passed=right, answer=super().told())


@honest("an episode says it in other words each time, and is not declared to be replayable")
class ServantOfManyWords(Jugs):
    """What the jugs hold, and so the verdict, depends on the orders alone."""

    replayable = False
    attempt = WordyJugs
