"""Planted faults of the third fresh part: rows and the user's functions for them."""

from __future__ import annotations

from collections.abc import Mapping

from bases_talk_fresh3 import settings3
from catalogue import fault

from grpo_env_dataset.env import Dataset
from grpo_env_dataset.rows import Row, Table


@fault("no row is held out", "task.made", build=lambda: NothingHeldOut(settings3(eval_share=0.0)))
class NothingHeldOut(Dataset):
    """All rows are trained on, and no other file is named."""

    timeout_seconds = 2.0


@fault(
    "a pattern finds the first number of the working, which the question has",
    "task.secret",
    build=lambda: FirstOfWorking(settings3("number", answer="solution", answer_pattern="([0-9]+)")),
)
class FirstOfWorking(Dataset):
    """The result stands at the end of the field, and the pattern matches at its beginning."""

    timeout_seconds = 2.0


@fault(
    "a reward function takes the answer out of its row",
    "verdict.repeat",
    "verdict.process",
    "verdict.reference",
    "task.pure",
    build=lambda: TakenOut(settings3("taken_out")),
)
class TakenOut(Dataset):
    """All attempts share a row, and the first one takes its answer."""

    timeout_seconds = 2.0


@fault(
    "an answer that was there before is paid nothing",
    "verdict.repeat",
    "verdict.process",
    "verdict.reference",
    build=lambda: NewOnly(settings3("new_only")),
)
class NewOnly(Dataset):
    """Of a group that is right, one attempt is paid."""

    timeout_seconds = 2.0


@fault(
    "chance decides which item of the reply is compared",
    "verdict.repeat",
    "floor.near",
    "safety.state",
    build=lambda: SpotCheck(settings3("spot_check", answer="three", prompt=ASKED_THREE)),
)
class SpotCheck(Dataset):
    """Two wrong numbers of three pass now and then."""

    timeout_seconds = 2.0


ASKED_THREE = (
    "Reply with three numbers, spaces between them: {one} plus {two}; the difference of the two "
    "plus their product; their product."
)


@fault(
    "the share of right words counts, so that one of them is enough",
    "floor.near",
    "floor.constant",
    "floor.echo",
    "floor.junk",
    build=lambda: Precision(
        settings3("precision", answer="full", prompt="{question} Reply as in: 12 tiles")
    ),
)
class Precision(Dataset):
    """The unit alone passes in all rows."""

    timeout_seconds = 2.0


class Exchanged(Dataset):
    """Held-out rows of which half were trained on, with the two numbers exchanged."""

    timeout_seconds = 2.0

    def _load(self) -> Mapping[str, Table]:
        tables = super()._load()
        train, held_out = tables["train"], tables["eval"]
        rows = [*held_out.rows, *map(turned, train.rows[:70])]
        return {"train": train, "eval": Table("rows", rows, range(1, len(rows) + 1))}


def turned(row: Row) -> Row:
    """Return a row with its numbers exchanged."""
    one, two = row["one"], row["two"]
    return {**row, "one": two, "two": one}


@fault(
    "held-out rows are training rows with their numbers exchanged",
    "task.split",
    build=lambda: ExchangedRows(settings3("number", prompt="How much is {one} times {two}?")),
)
class ExchangedRows(Exchanged):
    """Somebody added rows to the held-out file to make it longer."""
