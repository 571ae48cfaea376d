"""An environment made of rows, one task for each row.

Example: `--set env.path=rows.jsonl --set env.prompt='{question}' --set env.reward=number`.

Rewards: `exact` (the same text, white space, case and composition of letters aside), `number` (the
same number, as `parse_answer_number` reads it), or a function of your own, named as
path/to/file.py:function or package.module:function. It is called with the completion's text,
without its thoughts, and the row, may be async, and returns a number from 0 to 1; 1 is a pass.
Anything else that it returns, None too, and an exception make an error and no reward. The field
that `answer` names is the reference then, too, so that `grpo env check` knows right answers;
`--set env.answer=` says that there are none.

All rows are looked at when the environment is built: those that cannot be asked, or have no answer
that could be compared, are refused with their numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from grpo_core import (
    ConfigError,
    Environment,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
    reaches,
)
from grpo_core.extract import NoAnswer, find_tag
from grpo_env_dataset.answers import (
    COMPARISONS,
    BadAnswerError,
    BadPatternError,
    NoNumberError,
    answers_of,
    check_number,
    read_number,
)
from grpo_env_dataset.config import DatasetConfig, check_config
from grpo_env_dataset.own_reward import OwnReward
from grpo_env_dataset.problems import Problems
from grpo_env_dataset.prompts import BadPromptError, Prompt
from grpo_env_dataset.rows import (
    BadRowError,
    Row,
    Table,
    has_constant,
    hash_rows,
    load_published,
    read_jsonl,
    split_rows,
)


class Dataset(Environment[Row]):
    """Each row is one task; `level` has no effect."""

    Config = DatasetConfig
    max_new_tokens = 256
    levels = False

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: DatasetConfig = DatasetConfig() if config is None else config
        files: dict[str, Any] = {
            name: str(Path(value).expanduser().resolve())
            for name in ("path", "eval_path")
            if (value := getattr(given, name))
        }
        if ".py:" in given.reward:
            files["reward"] = str(Path(given.reward).expanduser().absolute())
        super().__init__(replace(given, **files), services)
        check_config(given)
        reward = self.config.reward
        self._own = None if reward in COMPARISONS else OwnReward(reward)
        self._prompt = Prompt(self.config.prompt)
        # Here, and not at the first task: a worker has more time to start than to answer.
        self._rows = self._load()

    def _load(self) -> Mapping[str, Table]:
        """Return the rows of both splits, all of which can be asked and judged."""
        config = self.config
        sources = [self._read(config.path, config.split)]
        if config.eval_path or (config.name and config.eval_split):
            sources.append(self._read(config.eval_path, config.eval_split))
        prompts = self._prompts_of(sources)
        if len(sources) == 2:
            return dict(zip(("train", "eval"), sources, strict=True))
        (rows,) = sources
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

    def _read(self, path: str, split: str) -> Table:
        """Return the rows of a file, or those of a split of the published dataset."""
        if not path:
            return load_published(self.config.name, self.config.subset, split)
        names = {Path(name).name for name in (self.config.path, self.config.eval_path) if name}
        is_told_apart = len(names) > 1 or not self.config.eval_path
        return read_jsonl(Path(path), Path(path).name if is_told_apart else path)

    def _prompts_of(self, sources: Sequence[Table]) -> list[str]:
        """Return the prompts of all rows.

        Raises:
            ConfigError: rows cannot be asked, or have no answer that could be compared.
        """
        prompts, problems, field = list[str](), Problems(), self.config.answer
        for rows in sources:
            for index, row in enumerate(rows.rows):
                if rows.is_file and has_constant(row):
                    bad = BadRowError("there is NaN or Infinity, which JSON does not have")
                    problems.add(rows, index, bad, "write null for NaN or leave the field out")
                    continue
                try:
                    prompts.append(self._prompt.fill(row))
                except BadPromptError as error:
                    problems.add(rows, index, error, "change these rows or env.prompt")
                try:
                    self._answers(row)
                except BadAnswerError as error:
                    problems.add(rows, index, error, self._advice(error))
        problems.refuse()
        is_named = field not in ("", DatasetConfig().answer)
        if is_named and not any(field in row for rows in sources for row in rows.rows):
            raise ConfigError(  # in other cases a function of the user's may do without the field
                f"no row has the field {field!r} that env.answer names; name the field with the "
                'reference answers, or "" if your function needs none'
            )
        return prompts

    def _advice(self, error: BadAnswerError) -> str:
        """Return what a user can do about a row without an answer that could be compared."""
        if isinstance(error, BadPatternError):
            return "change these rows or env.answer_pattern"
        if isinstance(error, NoNumberError):
            return "set env.reward=exact, or env.answer_pattern to cut out the number"
        return "give these rows an answer, leave them out, or set env.answer to another field"

    def size(self, split: Literal["train", "eval"]) -> int:
        return len(self._rows[split].rows)

    def task(self, key: TaskKey) -> Task[Row]:
        row = self._rows[key.split].rows[key.index]
        system = (Message("system", self.config.system),) if self.config.system else ()
        return Task(key, (*system, Message("user", self._prompt.fill(row))), row)

    def verify(self, task: Task[Row], rollout: Rollout) -> Verdict:
        answer = self._extract_answer(rollout.text)
        given = None if isinstance(answer, NoAnswer) else answer
        if self._own is None:
            reward = self._compared(answer, task.data)
        else:
            reward = Reward(self._own.value(rollout.text, task.data, where=self._where(task)))
            given = rollout.text.strip() if given is None else given
        return Verdict({"reward": reward}, passed=reaches(reward.value), answer=given)

    def reference(self, task: Task[Row]) -> str | None:
        """Return the answer of the row, the first of several, in the tag where there is one.

        With a function of your own it may also be the answer alone, or another of several, if only
        that is paid in full, and is None if the row has no answer.
        """
        answers = self._answers(task.data)
        if answers is None:
            return None
        tagged = [self._tagged(answer) for answer in answers]
        if self._own is not None:
            for text in dict.fromkeys([*tagged, *answers]):
                if self._own.pays(text, task.data):
                    return text
        return tagged[0]

    def cheats(self, task: Task[Row]) -> Sequence[str]:
        """Return completions that give no answer."""
        empty = f"<{self.config.tag}></{self.config.tag}>"
        return ("", empty) if self.config.tag and self._own is None else ("",)

    def fingerprint(self) -> str:
        reward = self.config.reward if self._own is None else self._own.source()
        digests = {split: hash_rows(rows.rows) for split, rows in self._rows.items()}
        text = f"{super().fingerprint()} {digests} {reward}"
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(text.encode() + sources).hexdigest()[:16]

    def _where(self, task: Task[Row]) -> str:
        """Return the place of a task's row, for messages."""
        return self._rows[task.key.split].where(task.key.index)

    def _extract_answer(self, text: str) -> str | NoAnswer:
        if not self.config.tag:
            return text.strip()
        block = find_tag(text, tag=self.config.tag)
        return block if isinstance(block, NoAnswer) else block.content.strip()

    def _compared(self, answer: str | NoAnswer, row: Row) -> Reward:
        """Return 1 if an answer is one of those of the row, else 0."""
        if isinstance(answer, NoAnswer):
            return Reward(0.0, note=answer.reason)
        is_same, references = COMPARISONS[self.config.reward], self._answers(row) or ()
        if any(is_same(answer, right) for right in references):
            return Reward(1.0)
        is_unread = self.config.reward == "number" and not any(
            read_number(answer, right) is not None for right in references
        )
        return Reward(
            0.0, note=f"the answer is not one number: {answer!r:.60}" if is_unread else ""
        )

    def _answers(self, row: Row) -> tuple[str, ...] | None:
        """Return the reference answers of a row; None if a function of the user's needs none.

        Raises:
            BadAnswerError: a row has none, but needs one.
        """
        field = self.config.answer
        if self._own is not None and not field:
            return None
        try:
            answers = answers_of(row, field=field, pattern=self.config.answer_pattern)
        except BadPatternError:
            raise
        except BadAnswerError:
            if self._own is None:
                raise
            return None
        if self.config.reward == "number":
            check_number(answers, field)
        for answer in answers if self._own is None else ():
            if isinstance(self._extract_answer(self._tagged(answer)), NoAnswer):
                raise BadAnswerError(
                    f"the field {field!r} holds a tag of env.tag, so that no reply could be right"
                )
        return answers

    def _tagged(self, answer: str) -> str:
        tag = self.config.tag
        return f"<{tag}>{answer}</{tag}>" if tag else answer
