"""Episodes whose design looks odd, and is right."""

from __future__ import annotations

from collections.abc import Sequence

from bases_b3_fresh7 import (
    Bucket,
    Flips,
    KilnDial,
    LadlesOfPaint,
    Paint,
    PairsOfCards,
    turns_of_policy,
)
from catalogue import honest

from grpo_core import Message, Reward, Rollout, Task, Verdict


@honest(
    "Each reply starts a program that stands in for the kiln, and waits for it; it is ended in a "
    "finally, so that none is left, whatever happens to the reply."
)
class KilnInAProgram(KilnDial):
    """Asks a helper program for each measurement."""


class BucketByTheTranscript(Bucket):
    """Judges by what was said, and changes nothing when it judges."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = (turn.strip(" \t\r\n") for turn in turns_of_policy(rollout))
        ladles = self.paint.ladles
        inside = sum(ladles.get(turn.removeprefix("pour "), 0) for turn in turns)
        right = inside == self.paint.target
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=f"{inside} ml")

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        await super().reply(messages)
        return (Message("user", "Poured."), Message("user", "Next ladle?"))


@honest(
    "The replies do not say how much is in the bucket, since the policy shall keep count itself, "
    "and the verdict adds up the turns again instead of using the state: both come to the same."
)
class LadlesUncounted(LadlesOfPaint):
    """Says no amounts, and judges by the turns."""

    def episode(self, task: Task[Paint]) -> Bucket:
        return BucketByTheTranscript(task.data)


class FlipsByPair(Flips):
    """Pays each turn that found a pair the same, by the number of pairs in the deck."""

    def pay(self) -> Reward:
        pairs = len(self.deck) // 2
        return Reward(turns=tuple(find / pairs for find in self.finds))


@honest(
    "Each pair pays its share to the turn that found it, though the attempt passes only with all "
    "of them; the deck decides the shares before the first turn, so no later turn changes them."
)
class PairsPaidOneByOne(PairsOfCards):
    """Pays for each pair when it is found."""

    def episode(self, task: Task[tuple[str, ...]]) -> Flips:
        return FlipsByPair(task.data)
