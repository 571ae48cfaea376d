"""A task out of rows: `--set env.path=rows.jsonl --set env.prompt='{question}' --set env.reward=number`.

Rewards: exact (the same text, white space and case aside), number (the same decimal number, with "," between thousands or without), or a
function of your own, named as path/to/file.py:function or package.module:function. It is called with what the policy said and the row, and
returns a number from 0 to 1.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from grpo_core import (
    ConfigError,
    Environment,
    Message,
    Reward,
    Rollout,
    Services,
    Spec,
    Task,
    TaskKey,
    UserError,
    Verdict,
)
from grpo_core.extract import parse_decimal, ungrouped, xml_tag
from grpo_env_dataset.rows import Row, digest, halves, published, read_jsonl


@dataclass(frozen=True, slots=True)
class Config:
    """path: a JSONL file; name, subset, split: a published dataset instead. eval_path, eval_split (of the published one): held-out rows;
    without them the share eval_share is held out, by what the rows ask and not by what else they hold.
    prompt: what is asked, with the row's fields in braces; system: a message before it. answer: the field that holds the reference,
    of which answer_pattern (a regular expression with one group) cuts out what counts, such as `#### (.*)`.
    reward: exact, number, FILE.py:FUNCTION or MODULE:FUNCTION. tag: the reply's answer stands in <tag>...</tag>; "" takes the whole reply.
    """

    path: str = ""
    name: str = ""
    subset: str = ""
    split: str = "train"
    eval_path: str = ""
    eval_split: str = ""
    eval_share: float = 0.1
    prompt: str = "{question}"
    system: str = "Reply with <answer>...</answer>."
    answer: str = "answer"
    answer_pattern: str = ""
    reward: str = "exact"
    tag: str = "answer"


class Dataset(Environment[Row]):
    """One row is one task; `level` means nothing here."""

    Config = Config
    max_new_tokens = 256
    levels = False

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: Config = Config() if config is None else config
        files: dict[str, Any] = {
            name: str(Path(value).expanduser().resolve())
            for name in ("path", "eval_path")
            if (value := getattr(given, name))
        }
        if ".py:" in given.reward:
            files["reward"] = str(Path(given.reward).expanduser().absolute())
        super().__init__(replace(given, **files), services)
        _check(given)
        self._judge: Callable[[str, Row], object] = _named(self.config.reward)
        self._rows = (
            self._load()
        )  # here, and not at the first task: a worker has more time to start than to answer

    def _load(self) -> Mapping[str, Sequence[Row]]:
        config = self.config
        rows = (
            read_jsonl(Path(config.path))
            if config.path
            else published(config.name, config.subset, config.split)
        )
        if config.eval_path:
            return {"train": rows, "eval": read_jsonl(Path(config.eval_path))}
        if config.name and config.eval_split:
            return {"train": rows, "eval": published(config.name, config.subset, config.eval_split)}
        asked = [self._asked(row, number) for number, row in enumerate(rows)]
        train, held_out = halves(rows, asked, config.eval_share)
        if not train or (
            not held_out and config.eval_share > 0 and len(rows) > len(set(asked)) == 1
        ):
            raise ConfigError(
                f"all {len(rows)} rows are on one side, since env.eval_share={config.eval_share:g} is of what rows ask and too few ask "
                "anything else; name held-out rows (env.eval_path), change env.eval_share, or put more of a row into env.prompt"
            )
        return {"train": train, "eval": held_out}

    def size(self, split: Literal["train", "eval"]) -> int:
        return len(self._rows[split])

    def task(self, key: TaskKey) -> Task[Row]:
        row = self._rows[key.split][key.index]
        system = (Message("system", self.config.system),) if self.config.system else ()
        return Task(key, (*system, Message("user", self._asked(row, key.index))), row)

    def verify(self, task: Task[Row], rollout: Rollout) -> Verdict:
        said = self._said(rollout.text)
        if self.config.reward in _REWARDS:
            value: Any = (
                0.0 if said is None else _REWARDS[self.config.reward](said, self._wanted(task.data))
            )
        else:
            value = self._judge(rollout.text, task.data)
        return Verdict({"reward": Reward(value)}, passed=value >= 1, answer=said)

    def reference(self, task: Task[Row]) -> str | None:
        if self.config.reward not in _REWARDS:
            return None
        wanted = self._wanted(task.data)
        return f"<{self.config.tag}>{wanted}</{self.config.tag}>" if self.config.tag else wanted

    def cheats(self, task: Task[Row]) -> Sequence[str]:
        """Replies that commit to nothing."""
        if self.config.reward not in _REWARDS:
            return ()
        return ("", f"<{self.config.tag}></{self.config.tag}>") if self.config.tag else ("",)

    def fingerprint(self) -> str:
        try:
            judge = inspect.getsource(inspect.getmodule(self._judge) or self._judge)
        except (
            OSError,
            TypeError,
        ):  # a function that is not written in Python, such as operator:eq
            judge = self.config.reward
        rows = {split: digest(rows) for split, rows in self._rows.items()}
        return hashlib.sha256(f"{super().fingerprint()} {rows} {judge}".encode()).hexdigest()[:16]

    def _asked(self, row: Row, number: int) -> str:
        try:
            return str(self.config.prompt.format(**row))
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"env.prompt {self.config.prompt!r} does not fit row {number} ({', '.join(row)}): {error}"
            ) from None

    def _said(self, text: str) -> str | None:
        if not self.config.tag:
            return text.strip()
        block = xml_tag(text, tag=self.config.tag)
        return None if block is None else block.content.strip()

    def _wanted(self, row: Row) -> str:
        if self.config.answer not in row:
            raise ConfigError(
                f"a row has no field {self.config.answer!r} (it has {', '.join(row)}); set env.answer"
            )
        text = str(row[self.config.answer]).strip()
        if not self.config.answer_pattern:
            return text
        found = re.search(self.config.answer_pattern, text)
        if found is None or found.group(1) is None:
            raise ConfigError(
                f"env.answer_pattern {self.config.answer_pattern!r} finds no group in {text!r:.80}"
            )
        return found.group(1).strip()


def _check(config: Config) -> None:
    if bool(config.path) == bool(config.name):
        raise ConfigError(
            "the environment 'dataset' needs rows: set env.path to a JSONL file, or env.name to a published dataset"
        )
    for name in ("subset", "split", "eval_split"):
        if config.path and (value := getattr(config, name)) != getattr(Config(), name):
            raise ConfigError(
                f"env.{name}={value!r} is about a published dataset, but env.path names a file; leave one of them away"
            )
    if config.eval_path and config.eval_split:
        raise ConfigError(
            "env.eval_path and env.eval_split both name the held-out rows; leave one of them away"
        )
    if not 0 <= config.eval_share < 1:
        raise ConfigError(
            f"env.eval_share is {config.eval_share:g}; it must be at least 0 and below 1"
        )
    try:
        groups = re.compile(config.answer_pattern).groups
    except (re.error, OverflowError) as error:
        raise ConfigError(
            f"env.answer_pattern {config.answer_pattern!r} is no regular expression: {error}"
        ) from None
    if config.answer_pattern and not groups:
        raise ConfigError(
            f"env.answer_pattern {config.answer_pattern!r} has no group; put what counts in brackets, as in '#### (.*)'"
        )


def _is_same_text(said: str, wanted: str) -> float:
    return float(" ".join(said.split()).casefold() == " ".join(wanted.split()).casefold())


def _is_same_number(said: str, wanted: str) -> float:
    right = parse_decimal(ungrouped(wanted))
    if right is None:
        raise ConfigError(
            f"the reference {wanted!r} is no number; set env.reward=exact, or env.answer_pattern to cut out the number"
        )
    return float(parse_decimal(ungrouped(said)) == right)


_REWARDS: Mapping[str, Callable[[str, str], float]] = {
    "exact": _is_same_text,
    "number": _is_same_number,
}


def _named(reward: str) -> Callable[..., object]:
    if reward in _REWARDS:
        return _REWARDS[reward]
    if ":" not in reward:
        raise ConfigError(
            f"env.reward={reward!r} is not known; it is exact, number, FILE.py:FUNCTION or MODULE:FUNCTION"
        )
    try:
        function = Spec("env.reward", reward).load()
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(
            f"env.reward={reward!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise ConfigError(
            f"env.reward={reward!r} is a {type(function).__name__}; name a function(text, row)"
        )
    return function  # type: ignore[no-any-return]
