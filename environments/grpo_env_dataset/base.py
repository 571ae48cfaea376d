"""Make tasks of rows; how a completion is judged is up to the subclasses."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from grpo_core import ConfigError, Environment, Message, Services, Task, TaskKey
from grpo_core.extract import NoAnswer, find_tag
from grpo_env_dataset.answers import USUAL_FIELDS
from grpo_env_dataset.config import DatasetConfig, check_config
from grpo_env_dataset.loading import load_rows, refuse_rows
from grpo_env_dataset.prompts import Prompt
from grpo_env_dataset.rows import Row, Table, has_field, hash_rows


class RowTasks(Environment[Row]):
    """Each row is one task; `level` has no effect.

    All rows are looked at when it is built: those that cannot be asked, or have no answer that
    could be compared, are refused with their numbers.
    """

    Config = DatasetConfig
    max_new_tokens = 256
    levels = False

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: DatasetConfig = DatasetConfig() if config is None else config
        super().__init__(_with_absolute_paths(given), services)
        check_config(given)
        # Here, and not at the first task: a worker has more time to start than to answer.
        tables = load_rows(self.config)
        rows = [row for table in tables for row in table.rows]
        self._field = self._answer_field(rows)
        self._prompt = Prompt(self.config.prompt) if self.config.prompt else Prompt.usual(rows)
        self._prepare(rows)
        self._rows: Mapping[str, Table] = refuse_rows(
            tables, self.config, prompt=self._prompt.fill, check_answer=self._check_answer
        )

    def _prepare(self, rows: Sequence[Row]) -> None:
        """Load the rewards, and say what they decide; `rows` are those of both splits."""

    def _check_answer(self, row: Row) -> None:
        """Raise BadAnswerError for a row without what its verdicts need."""

    def _instruction(self, messages: Sequence[Message]) -> str:
        """Return the system message without which no reply could be read; "" if none is needed."""
        return ""

    def _ask(self, text: str, row: Row) -> str:
        """Return the user's message for the text that the template gave."""
        return text

    def _answer_field(self, rows: Sequence[Row]) -> str:
        """Return the field that holds the reference answers; "" if there is none.

        Raises:
            ConfigError: the rows have no field of the name that is set.
        """
        name = self.config.answer
        if name is None:
            return next((field for field in USUAL_FIELDS if _has_any(rows, field)), "")
        if name and not _has_any(rows, name):
            raise ConfigError(
                f"no row has the field {name!r} that env.answer names (they have "
                f"{', '.join(dict.fromkeys(key for row in rows[:1000] for key in row))}); name the "
                'field with the reference answers, or "" if your function needs none'
            )
        return str(name)

    def size(self, split: Literal["train", "eval"]) -> int:
        return len(self._rows[split].rows)

    def task(self, key: TaskKey) -> Task[Row]:
        row = self._rows[key.split].rows[key.index]
        return Task(key, self._messages(row), row)

    def _messages(self, row: Row) -> tuple[Message, ...]:
        """Return the prompt of a row, with a system message where it needs one."""
        prompt = self._prompt.fill(row)
        messages = (Message("user", self._ask(prompt, row)),) if isinstance(prompt, str) else prompt
        system = self.config.system
        if system is None:
            system = self._instruction(messages)
        if system and messages[0].role != "system":
            return (Message("system", system), *messages)
        return messages

    def _source_of_rewards(self) -> str:
        """Return text that is another one where the rewards may be others."""
        return ""

    def fingerprint(self) -> str:
        digests = {split: hash_rows(rows.rows) for split, rows in self._rows.items()}
        text = f"{super().fingerprint()} {digests} {self._source_of_rewards()}"
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(text.encode() + sources).hexdigest()[:16]

    def _extract_answer(self, text: str) -> str | NoAnswer:
        """Return the completion's answer: the text in its tag, or all of it."""
        if not self.config.tag:
            return text.strip()
        block = find_tag(text, tag=self.config.tag)
        return block if isinstance(block, NoAnswer) else block.content.strip()


def _has_any(rows: Sequence[Row], field: str) -> bool:
    """Return whether a row has the field."""
    return any(has_field(row, field) for row in rows)


def _with_absolute_paths(config: DatasetConfig) -> DatasetConfig:
    """Return the settings with paths that name the same files from everywhere."""
    changed: dict[str, Any] = {
        name: str(Path(value).expanduser().resolve())
        for name in ("path", "eval_path")
        if (value := getattr(config, name))
    }
    names = (config.reward,) if isinstance(config.reward, str) else config.reward
    changed["reward"] = tuple(
        str(Path(name).expanduser().absolute()) if ".py:" in name else name for name in names
    )
    return replace(config, **changed)
