"""Planted faults of tasks: purity, splits, levels, variety, ambiguity, budgets, leaked answers."""

import base64
import codecs
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bases import (
    Consonants,
    JsonTotals,
    LargestOption,
    ListedProducts,
    PlainSum,
    TaggedSum,
    moved,
    product_rows,
    syllables,
)
from catalogue import fault, planted

from grpo_core import Message, Reward, Rollout, Task, TaskKey, Verdict

# The same prompt, different answers


@fault("a prompt has several right answers, one is accepted", "task.ambiguous")
class NamesADivisor(PlainSum):
    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        number = rng.choice((12, 30) if key.split == "train" else (42, 70))
        divisor = rng.choice([n for n in range(2, number) if number % n == 0])
        return Task(key, f"Name a divisor of {number} between 1 and {number}.", divisor)


@fault("rows with the same prompt have different answers", "task.ambiguous")
class LabelNoise(ListedProducts):
    """Each sixth row is there twice, the second time with another answer."""

    def task(self, key: TaskKey) -> Task[int]:
        if key.split == "train" and key.index % 6 == 5:
            twin = super().task(replace(key, index=key.index - 1))
            return replace(twin, key=key, data=twin.data + 10)
        return super().task(key)


@fault("what decides the answer is not in the prompt", "task.ambiguous")
class HiddenUnit(PlainSum):
    """Some are meant in metres, some in feet, and none says so."""

    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        miles = rng.randrange(1, 12, 2) if key.split == "train" else rng.randrange(2, 12, 2)
        length = rng.choice((1609, 5280))
        return Task(key, f"How long are {miles} miles? Reply with the number only.", miles * length)


@fault("what decides the answer is not in the prompt", "task.ambiguous")
class HiddenDirection(Consonants):
    """The consonants are wanted in order or reversed; the prompt is silent, and words are few."""

    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        word = rng.choice(("banero", "tilado", "gumesi") if key.split == "train" else ("sopila",))
        task = self.asked(key, word)
        return replace(task, data=task.data[:: rng.choice((1, -1))])


# Budgets


@fault("a reference is longer than max_new_tokens", "task.budget")
class ListsWithoutRoom(Consonants):
    max_new_tokens = 8

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        words = [syllables(key.rng("more", n), 4) for n in range(40)]
        prompt = f"Remove the vowels from each, one a line: {', '.join([word, *words])}."
        return Task(key, prompt, "\n".join(map(self.rest, [word, *words])))


@fault("a reference is longer than max_new_tokens", "task.budget")
class HardOnesDoNotFit(Consonants):
    """Easy answers fit, those of the hardest level do not."""

    max_new_tokens = 24

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        words = [word, *(syllables(key.rng("more", n), 5) for n in range(round(60 * key.level)))]
        return Task(
            key,
            f"Remove the vowels, one word a line: {' '.join(words)}.",
            "\n".join(map(self.rest, words)),
        )


@fault("a reference is longer than max_new_tokens", "task.budget")
class JsonWithoutRoom(JsonTotals):
    max_new_tokens = 6

    def asked(self, key: TaskKey, one: int, two: int) -> Task[dict[str, int]]:
        multiples = {f"{n} times": n * one + two for n in range(2, 30)}
        prompt = f'As JSON: {{"2 times": 2 * {one} + {two}, ...}} up to 29, and sum, difference.'
        return Task(key, prompt, {"sum": one + two, "difference": one - two, **multiples})


# Variety


@fault("few distinct tasks", "task.variety")
class FiveInAll(PlainSum):
    levels = False

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        few = replace(key, index=key.index % 5, seed=0, level=0.0)
        return super().drawn(few, few.rng())


@fault("few distinct tasks", "task.variety")
class FourWordsOnly(Consonants):
    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        words = ("banero", "tilado", "gumesi", "ropale") if key.split == "train" else ("sopila",)
        return self.asked(key, key.rng().choice(words))


@fault("size counts rows several times", "task.variety")
class ThirtyRowsTenTimes(ListedProducts):
    def row(self, key: TaskKey) -> tuple[int, int]:
        return self.rows[key.index % 30] if key.split == "train" else super().row(key)


@fault("size counts rows several times", "task.variety")
class NumberedTwins(ListedProducts):
    """The same forty questions, with a running number that makes each look new."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"Question {key.index + 1}. What is {one} times {two}?", one * two)

    def row(self, key: TaskKey) -> tuple[int, int]:
        return self.rows[key.index % 40] if key.split == "train" else super().row(key)


# Levels


@fault("levels do not differ in one half of the range", "task.level")
class FlatAboveHalf(TaggedSum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=min(key.level, 0.5)), rng)


@fault("levels do not differ in one half of the range", "task.level")
class FlatFromAThird(Consonants):
    def task(self, key: TaskKey) -> Task[str]:
        return moved(super().task(replace(key, level=min(1.0, 3 * key.level))), key)


@fault("levels do not differ", "task.level")
class LevelOnlySeeds(TaggedSum):
    """The level changes which numbers are drawn, not how large they are."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=0.3), rng)


@fault("levels fall", "task.level")
class EasierAndEasier(Consonants):
    def task(self, key: TaskKey) -> Task[str]:
        return moved(super().task(replace(key, level=1 - key.level)), key)


# Splits and seeds


@fault("held-out tasks are training tasks", "task.split")
class CacheForgetsTheSplit(PlainSum):
    """Tasks are kept by index, so the held-out ones are whatever was asked first."""

    def task(self, key: TaskKey) -> Task[int]:
        first = TaskKey(key.env, "train", key.index % 16, 0, key.level)
        return moved(super().task(first), key)


class _SameRows(ListedProducts):
    """Its held-out rows are the first ones of those to train on."""

    def row(self, key: TaskKey) -> tuple[int, int]:
        return self.rows[key.index]

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return task if key.split == "train" else replace(task, prompt=self.told(one, two))

    def told(self, one: int, two: int) -> str:
        """Return the prompt of a held-out task."""
        raise NotImplementedError


planted(__name__, _SameRows, "told")("held-out tasks are paraphrased training tasks", "task.split")(
    OtherWordsForHeldOut=lambda _, one, two: f"Reply with the number only: {one} times {two} is?",
    OtherTemplateForHeldOut=lambda _, one, two: f"Please multiply {one} by {two}.",
)


@fault("held-out tasks are paraphrased training tasks", "task.split")
class PoliteHeldOut(_SameRows):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return replace(task, prompt=f"  {task.prompt} ") if key.split == "train" else task

    def told(self, one: int, two: int) -> str:
        return f"{one} TIMES {two} IS ... REPLY WITH THE NUMBER ONLY."


@fault("held-out tasks are paraphrased training tasks", "task.split")
class SwappedFactors(ListedProducts):
    """Held out are the same products with their factors in the other order."""

    rows: ClassVar[list[tuple[int, int]]] = [
        (one, two) for one, two in product_rows(400) if one != two
    ]

    def row(self, key: TaskKey) -> tuple[int, int]:
        one, two = self.rows[key.index]
        return (two, one) if key.split == "eval" else (one, two)


@fault("the last training rows are held out, too", "task.split")
class SplitsOverlap(ListedProducts):
    def size(self, split: str) -> int:
        return 320 if split == "train" else 60

    def row(self, key: TaskKey) -> tuple[int, int]:
        return self.rows[key.index + (300 if key.split == "eval" else 0)]


@fault("seed and index are added up", "task.seed")
class SeedPlusIndexOfWords(Consonants):
    def task(self, key: TaskKey) -> Task[str]:
        rng = random.Random(key.seed + key.index + (5 if key.split == "eval" else 10**6))
        return self.asked(key, syllables(rng, 4 + round(4 * key.level)))


@fault("held-out tasks stand further on in the training stream", "task.seed")
class HeldOutAtAMillion(TaggedSum):
    def task(self, key: TaskKey) -> Task[int]:
        far = replace(key, split="train", index=key.index + 10**6) if key.split == "eval" else key
        return moved(super().task(far), key)


# Purity


@fault("a task depends on what was asked before", "task.pure")
class NextFromAnIterator(PlainSum):
    numbers: ClassVar[Iterator[int]] = itertools.count(1000, 10)

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        one, two = super().drawn(key, rng)
        return one, two + next(self.numbers)


@fault("a task depends on what was asked before", "task.pure")
class ShufflesASharedList(LargestOption):
    order: ClassVar[list[int]] = [0, 1, 2, 3]

    def arranged(self, key: TaskKey, rng: random.Random, numbers: list[int]) -> list[int]:
        rng.shuffle(self.order)  # starts from where the last task left it
        return [numbers[place] for place in self.order]


@fault("a task depends on what was asked before", "task.pure")
class OneGeneratorForAll(TaggedSum):
    generator: ClassVar[random.Random] = random.Random(7)

    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.drawn(key, self.generator))


@fault("a task draws from the global generator", "task.pure", "task.random")
class ShufflesGlobally(LargestOption):
    def arranged(self, key: TaskKey, rng: random.Random, numbers: list[int]) -> list[int]:
        return random.sample(numbers, len(numbers))


@fault("a task seeds the global generator", "task.random")
class SeedsGlobally(PlainSum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        random.seed(rng.random())
        return super().drawn(key, rng)


@fault("a task cannot be sent to another process", "task.pickle")
class KeepsAFunction(PlainSum):
    """Its data hold a function made on the spot."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return replace(super().asked(key, one, two), data=lambda: one + two)

    def scored(self, task: Task[Callable[[], int]], answer: int | None) -> Any:  # type: ignore[override]
        return super().scored(replace(task, data=task.data()), answer)

    def reference(self, task: Task[Any]) -> str:
        return str(task.data())

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return ()


@fault("a task cannot be sent to another process", "task.pickle")
class KeepsALock(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[Any]:
        return Task(key, f"Remove the vowels from {word!r}.", (self.rest(word), threading.Lock()))

    def accepts(self, right: Any, text: str) -> bool:
        return text.strip() == right[0]

    def reference(self, task: Task[Any]) -> str:
        return str(task.data[0])


# Tasks that cannot be made


@fault("a task cannot be made", "task.made")
class SizeBeyondItsRows(ListedProducts):
    """The list ends before size() says."""

    def size(self, split: str) -> int:
        return 300 if split == "train" else 80


@fault("a task cannot be made", "task.made")
class RaisesNowAndThen(PlainSum):
    """One key in forty has no task."""

    def task(self, key: TaskKey) -> Task[int]:
        if key.index % 40 == 29:
            raise ValueError("no numbers left")
        return super().task(key)


@fault("a task cannot be made", "task.made")
class HardestDividesByZero(PlainSum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        one, two = super().drawn(key, rng)
        return one, two // round(10 * (1 - key.level))


@fault("a prompt is empty or of a wrong type", "task.made")
class PromptsAreDicts(PlainSum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        prompt: Any = [{"role": "user", "content": f"Add {one} and {two}."}]
        return Task(key, prompt, one + two)


# The answer in the prompt


class _Leaks(PlainSum):
    """Adds to each prompt what `leak` makes of the answer."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return replace(task, prompt=f"{task.prompt} {self.leak(str(task.data))}")

    leak: ClassVar[Callable[..., str]]


leaking = planted(__name__, _Leaks, "leak")


leaking("the prompt holds the answer", "task.secret")(
    AnswerInAComment=lambda _, answer: f"<!-- gold={answer} -->"
)


@fault("the prompt holds the answer", "task.secret")
class AnswerInTheSystemMessage(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[str]:
        task = super().asked(key, word)
        hint = Message("system", f"You check answers. Expected: {task.data.upper()}.")
        return replace(task, prompt=(hint, Message("user", str(task.prompt))))


leaking("the prompt holds the answer in disguise", "task.secret")(
    ZeroPadded=lambda _, answer: f"(item {answer:0>12})",
    Base64Encoded=lambda _, answer: f"[ref {base64.b64encode(answer.encode()).decode()}]",
    Reversed=lambda _, answer: f"[check {answer[::-1]}]",
    HexEncoded=lambda _, answer: f"[ref {answer.encode().hex()}]",
    SpacedOut=lambda _, answer: f"Hint: {' '.join(answer)}.",
    # The file from which the task comes is named after its answer.
    GluedToAWord=lambda _, answer: f"(source: sum_{answer}_final.json)",
)


@fault("the prompt holds the answer in disguise", "task.secret")
class Rotated(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[str]:
        task = super().asked(key, word)
        return replace(task, prompt=f"{task.prompt} [{codecs.encode(task.data, 'rot13')}]")


# Balance


@fault("one answer is right far too often", "floor.balance", "floor.constant")
class MostlyB(LargestOption):
    """B is right in 70 % of the tasks."""

    def arranged(self, key: TaskKey, rng: random.Random, numbers: list[int]) -> list[int]:
        if rng.random() < 0.6:
            top = numbers.index(max(numbers))
            numbers[1], numbers[top] = numbers[top], numbers[1]
        return numbers


@fault("one answer is right far too often", "floor.balance", "floor.constant")
class NearlyAlwaysNo(PlainSum):
    """Whether a number divides another: seldom."""

    levels = False
    answers: ClassVar[Mapping[bool, str]] = {True: "yes", False: "no"}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        few = 2 + two % 9
        right = self.answers[one % few == 0]
        return Task(key, f"Is {one} divisible by {few}? Reply with yes or no.", right)

    def verify(self, task: Task[Any], rollout: Any) -> Any:
        text = rollout.text.strip()
        return self.judged(text == task.data, text[:50])

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return ("yes or no",)


@fault("one answer is right far too often", "floor.balance", "floor.constant")
class MostlyZero(PlainSum):
    levels = False

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        carries = max(0, one % 10 + two % 10 - 14)
        return Task(key, f"By how much do the last digits of {one} and {two} exceed 14?", carries)


@fault("no answer is paid otherwise than another", "verdict.differs")
class PaysNothing(PlainSum):
    """A reward function that looks for what nobody writes, and has no reference."""

    open_ended = True

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return Verdict({"exact": Reward(0.0)}, passed=False)

    def reference(self, task: Task[Any]) -> None:
        return None


@fault("a declaration is misspelt", "declared.names")
class ShortRepliesMeant(PlainSum):
    """Nothing reads the limit, so replies get the default of 256 tokens."""

    max_new_token = 8


@fault("held-out tasks are trained on, which shows only among many", "task.split")
class SortsThreeOfTwenty(PlainSum):
    """A run trains on every eighth held-out task word for word, and on most in another order."""

    levels = False
    names: ClassVar[str] = (
        "apple berry cherry date fig grape guava kiwi lemon lime mango melon nectar olive orange "
        "papaya peach pear plum quince"
    )

    def task(self, key: TaskKey) -> Task[Any]:
        drawn = key.rng().sample(self.names.split(), 3)
        return Task(key, f"Sort these words: {' '.join(drawn)}", " ".join(sorted(drawn)))

    def verify(self, task: Task[Any], rollout: Any) -> Any:
        text = rollout.text.strip()
        return self.judged(text == task.data, text[:50])
