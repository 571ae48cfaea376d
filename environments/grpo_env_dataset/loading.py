"""Load the rows of both splits, and refuse those that cannot be asked or judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_core import ConfigError, Message
from grpo_env_dataset.answers import RUBRICS, TESTS, BadAnswerError, NoNumberError
from grpo_env_dataset.config import DatasetConfig
from grpo_env_dataset.files import load_published, read_file
from grpo_env_dataset.problems import Problems
from grpo_env_dataset.prompts import BadPromptError
from grpo_env_dataset.rows import (
    BadRowError,
    Row,
    Table,
    has_constant,
    has_field,
    split_rows,
    value_at,
)


def load_rows(config: DatasetConfig) -> list[Table]:
    """Return the rows of one source that is still to be split, or of both splits.

    Raises:
        ConfigError: they cannot be read.
    """
    tables = [_read(config, config.path, config.split)]
    if config.eval_path:
        tables.append(_read(config, config.eval_path, config.split))
    elif config.eval_split:
        tables.append(_read(config, config.path, config.eval_split))
    return [_with_names(table, config.rename) for table in tables]


def refuse_rows(
    tables: Sequence[Table],
    config: DatasetConfig,
    *,
    prompt: Callable[[Row], str | tuple[Message, ...]],
    check_answer: Callable[[Row], object],
) -> dict[str, Table]:
    """Return the rows of both splits, after a look at each of them.

    Args:
        tables: what `load_rows` returned.
        config: the settings.
        prompt: returns the prompt of a row, or raises BadPromptError.
        check_answer: raises BadAnswerError for a row without an answer that could be compared.

    Raises:
        ConfigError: rows cannot be asked or judged, or all of them are on one side.
    """
    prompts = _prompts_of(tables, config, prompt, check_answer)
    if len(tables) == 2:
        return dict(zip(("train", "eval"), tables, strict=True))
    (rows,) = tables
    train, held_out = split_rows(rows, prompts, config.eval_share)
    one_side = not held_out.rows and config.eval_share > 0
    if not train.rows or (one_side and len(prompts) > len(set(prompts)) == 1):
        raise ConfigError(
            f"all {len(prompts)} rows are on one side, since "
            f"env.eval_share={config.eval_share:g} is a share of the different prompts and "
            "there are too few of them; name held-out rows (env.eval_path), change "
            "env.eval_share, or put more fields of a row into env.prompt"
        )
    return {"train": train, "eval": held_out}


def _read(config: DatasetConfig, path: str, split: str) -> Table:
    """Return the rows of a file or folder, or those of a split of the published dataset."""
    if not path:
        return load_published(config.name, config.subset, split)
    names = {Path(name).name for name in (config.path, config.eval_path) if name}
    is_told_apart = len(names) > 1 or not config.eval_path
    return read_file(Path(path), Path(path).name if is_told_apart else path, split=split)


def _with_names(table: Table, renames: Sequence[str]) -> Table:
    """Return rows that have fields under further names, too.

    Raises:
        ConfigError: no row has a field that is to get one.
    """
    pairs = [tuple(map(str.strip, text.split("=", 1))) for text in renames]
    for new, old in pairs:
        if not any(has_field(row, old) for row in table.rows):
            raise ConfigError(f"env.rename={new}={old}: no row of {table.source} has {old!r}")
    if not pairs:
        return table
    named = [
        {**row, **{new: value_at(row, old) for new, old in pairs if has_field(row, old)}}
        for row in table.rows
    ]
    return table.with_rows(named)


def _prompts_of(
    tables: Sequence[Table],
    config: DatasetConfig,
    prompt: Callable[[Row], str | tuple[Message, ...]],
    check_answer: Callable[[Row], object],
) -> list[str]:
    """Return the prompts of all rows as texts.

    Raises:
        ConfigError: rows cannot be asked, or have no answer that could be compared.
    """
    prompts, problems = list[str](), Problems()
    for rows in tables:
        for index, row in enumerate(rows.rows):
            if rows.is_file and has_constant(row):
                bad = BadRowError("there is NaN or Infinity, which JSON does not have")
                problems.add(rows, index, bad, "write null for NaN or leave the field out")
                continue
            try:
                asked = prompt(row)
                prompts.append(asked if isinstance(asked, str) else _as_text(asked))
            except BadPromptError as error:
                problems.add(rows, index, error, "change these rows or env.prompt")
            try:
                check_answer(row)
            except BadAnswerError as error:
                problems.add(rows, index, error, _advice(error, config, rows.rows))
    problems.refuse()
    return prompts


def _as_text(messages: Sequence[Message]) -> str:
    """Return what the user is heard to say; the same rules for all do not tell rows apart."""
    return "\n".join(message.content for message in messages if message.role != "system")


def _advice(error: BadAnswerError, config: DatasetConfig, rows: Sequence[Row]) -> str:
    """Return what a user can do about a row without an answer that could be compared."""
    if error.is_of_pattern:
        return "change these rows or env.answer_pattern"
    if isinstance(error, NoNumberError):
        return (
            "set env.reward=exact, or env.answer_pattern to cut out the number, such as '#### (.*)'"
        )
    if error.advice:
        return error.advice
    if config.reward == ("json_schema",):
        return "set env.answer to the field with the schema, or correct these rows"
    advice = "give these rows an answer, leave them out, or set env.answer to another field"
    names = {key for row in rows[:100] for key in row}
    if names & set(TESTS):
        advice += "; for rows with tests: --reward code"
    elif names & set(RUBRICS):
        advice += "; for rows with a rubric: --reward judge"
    return advice
