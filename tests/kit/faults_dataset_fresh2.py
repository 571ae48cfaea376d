"""Planted faults: rows, settings and reward functions of users, of the second fresh part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bases_talk_fresh2 import Rows, settings
from catalogue import fault

from grpo_env_dataset.rows import Table, read_jsonl, split_rows


class Changed(Rows):
    """Rows that are changed before they are split."""

    def _load(self) -> Mapping[str, Table]:
        rows = self.changed(list(read_jsonl(Path(self.config.path), "rows").rows))
        prompts = [self.config.prompt.format(**row) for row in rows]
        table = Table("rows", rows, range(1, len(rows) + 1))
        train, held_out = split_rows(table, prompts, self.config.eval_share)
        return {"train": train, "eval": held_out}

    def changed(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "answer": self.label(row["answer"], at)} for at, row in enumerate(rows)]

    def label(self, answer: str, number: int) -> str | None:
        raise NotImplementedError


@fault(
    "stop words are dropped, and 'not' is among them",
    "floor.constant",
    "floor.other",
    "floor.near",
    "floor.suffix",
    build=lambda: NotIsAStopWord(
        settings("without_stop_words", prompt="{planks} Enough or not enough?", answer="enough")
    ),
)
class NotIsAStopWord(Rows):
    pass


@fault(
    "even the best answer gets less than 1",
    "verdict.reference",
    "verdict.passed",
    build=lambda: LessThanOne(settings("length_penalty")),
)
class LessThanOne(Rows):
    pass


@fault(
    "a reward function returns a score and a remark",
    "verdict.form",
    "verdict.reference",
    build=lambda: ScoreAndRemark(settings("with_remark")),
)
class ScoreAndRemark(Rows):
    pass


@fault(
    "some rows lack a field that the reward function reads",
    "verdict.reference",
    "verdict.form",
    "floor.junk",
    "floor.empty",
    build=lambda: UnitIsMissing(
        settings("with_unit", prompt="{question} Add the unit, if there is one.", answer="full")
    ),
)
class UnitIsMissing(Rows):
    pass


@fault(
    "an empty text is among the right spellings",
    "floor.empty",
    "floor.cheats",
    "floor.constant",
    build=lambda: EmptyAlias(settings("any_alias")),
)
class EmptyAlias(Rows):
    pass


@fault(
    "a reward is normalised by a running mean",
    "verdict.repeat",
    "verdict.reference",
    "verdict.process",
    build=lambda: RunningMean(settings("against_the_mean")),
)
class RunningMean(Rows):
    pass


@fault(
    "verdicts are cached by the reply alone",
    "verdict.repeat",
    "verdict.process",
    "verdict.reference",
    "floor.other",
    "floor.constant",
    build=lambda: CachedByReply(settings("cached")),
)
class CachedByReply(Rows):
    pass


@fault(
    "a reward function has its parameters in another order",
    "verdict.form",
    "verdict.reference",
    build=lambda: RowComesFirst(settings("row_first")),
)
class RowComesFirst(Rows):
    pass


@fault(
    "a reward function is async",
    "verdict.form",
    "verdict.reference",
    build=lambda: AwaitedByNobody(settings("awaited")),
)
class AwaitedByNobody(Rows):
    pass


@fault(
    "three significant digits are compared",
    "floor.near",
    "floor.spelling",
    "floor.suffix",
    build=lambda: ThreeDigits(settings("three_digits")),
)
class ThreeDigits(Rows):
    pass


@fault(
    "a lazy pattern takes an empty answer out of each row",
    "floor.cheats",
    "floor.junk",
    "floor.empty",
    "floor.constant",
    "verdict.reference",
    "floor.balance",
    build=lambda: LazyPattern(settings(answer="solution", answer_pattern="####(.*?)")),
)
class LazyPattern(Changed):
    def changed(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows


@fault(
    "rows that are there twice, differently spaced, are on both sides",
    "task.split",
    build=lambda: TwiceWithSpaces(settings()),
)
class TwiceWithSpaces(Changed):
    def changed(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows + [{**row, "question": row["question"].replace(". ", ".\n")} for row in rows]


@fault(
    "the answer of some rows is empty",
    "floor.cheats",
    "floor.junk",
    "floor.empty",
    "verdict.reference",
    build=lambda: SomeLabelsEmpty(settings()),
)
class SomeLabelsEmpty(Changed):
    def label(self, answer: str, number: int) -> str:
        return answer if number % 4 else ""


@fault(
    "rows without an answer have the answer None",
    "floor.constant",
    "floor.balance",
    "verdict.reference",
    build=lambda: NoneIsALabel(settings()),
)
class NoneIsALabel(Changed):
    def label(self, answer: str, number: int) -> str | None:
        return answer if number % 5 < 2 else None


@fault(
    "answers are longer than what may be written",
    "task.budget",
    build=lambda: WholeEssays(settings(prompt="Write {short} times: {word}")),
)
class WholeEssays(Changed):
    def changed(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [{**row, "short": int(row["short"]) % 400 + 500} for row in rows]
        return [{**row, "answer": " ".join([row["word"]] * row["short"])} for row in rows]


@fault(
    "the template cuts the question off",
    "task.ambiguous",
    "task.variety",
    build=lambda: CutTemplate(settings(prompt="{question:.41}")),
)
class CutTemplate(Rows):
    pass


@fault(
    "`exact` does not look at the capitals that are asked for",
    "floor.spelling",
    build=lambda: CapitalsByExact(
        settings(prompt="Make every second letter of {word} a capital.", answer="capitals")
    ),
)
class CapitalsByExact(Rows):
    pass


@fault(
    "`number` does not look at the zeros that are asked for",
    "floor.spelling",
    "floor.echo",
    "floor.near",
    build=lambda: ZerosByNumber(
        settings("number", prompt="Write {short} as a code of five digits.", answer="code")
    ),
)
class ZerosByNumber(Rows):
    pass


@fault(
    "answers have the tag already",
    "verdict.reference",
    build=lambda: TaggedTwice(settings()),
)
class TaggedTwice(Changed):
    def label(self, answer: str, number: int) -> str:
        return f"<answer>{answer}</answer>"


@fault(
    "some answers are no numbers",
    "verdict.reference",
    "verdict.form",
    build=lambda: AboutANumber(settings("number")),
)
class AboutANumber(Changed):
    def label(self, answer: str, number: int) -> str:
        return answer if number % 4 else f"about {answer}"
