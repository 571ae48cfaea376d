"""An environment made of rows, one task for each row.

Example: `--set env.path=rows.jsonl --set env.prompt='{question}' --set env.reward=number`.

Rewards: `exact` (the same text, white space and case aside), `number` (the same decimal number,
with or without "," between thousands), or a function of your own, named as
path/to/file.py:function or package.module:function. It is called with the completion's whole text
and the row, and returns a number from 0 to 1; 1 is a pass. Anything else that it returns, None too,
and an exception make an error and no reward. The field that `answer` names is the reference then,
too, so that `grpo env check` knows right answers; `--set env.answer=` says that there are none.
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
from grpo_env_dataset.rows import Row, hash_rows, load_published, read_jsonl, split_rows


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of the environment: either `path` or `name` says where the rows come from."""

    path: str = ""
    """JSONL file with the rows."""
    name: str = ""
    """Name of a published dataset, instead of `path`."""
    subset: str = ""
    """Subset of the published dataset."""
    split: str = "train"
    """Split of the published dataset that the rows come from."""
    eval_path: str = ""
    """JSONL file with the held-out rows."""
    eval_split: str = ""
    """Split of the published dataset with the held-out rows."""
    eval_share: float = 0.1
    """Share of the prompts that is held out if neither `eval_path` nor `eval_split` is set. The
    words of the row's prompt decide, not their case and order, nor the row's other fields."""
    prompt: str = "{question}"
    """The user's message, with the row's fields in braces."""
    system: str = "Reply with <answer>...</answer>."
    """The system message; "" for none."""
    answer: str = "answer"
    """The row's field that holds the reference answer; "" if a function of your own needs none."""
    answer_pattern: str = ""
    """Regular expression with one group, such as `#### (.*)`: only what the group matches in the
    field `answer` is the reference answer."""
    reward: str = "exact"
    """`exact` (the same text, white space and case aside), `number` (the same decimal number), or
    your function: FILE.py:FUNCTION of a file, or MODULE:FUNCTION of an installed package."""
    tag: str = "answer"
    """The completion's answer is the text in its only <tag>...</tag>; "" takes the whole one. A
    function of your own gets the whole completion in any case."""


class Dataset(Environment[Row]):
    """Each row is one task; `level` has no effect."""

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
        self._reward_function: Callable[[str, Row], object] = _load_reward(self.config.reward)
        # Here, and not at the first task: a worker has more time to start than to answer.
        self._rows = self._load()

    def _load(self) -> Mapping[str, Sequence[Row]]:
        config = self.config
        rows = (
            read_jsonl(Path(config.path))
            if config.path
            else load_published(config.name, config.subset, config.split)
        )
        if config.eval_path:
            return {"train": rows, "eval": read_jsonl(Path(config.eval_path))}
        if config.name and config.eval_split:
            return {
                "train": rows,
                "eval": load_published(config.name, config.subset, config.eval_split),
            }
        prompts = [self._prompt(row, number) for number, row in enumerate(rows)]
        train, held_out = split_rows(rows, prompts, config.eval_share)
        if not train or (
            not held_out and config.eval_share > 0 and len(rows) > len(set(prompts)) == 1
        ):
            raise ConfigError(
                f"all {len(rows)} rows are on one side, since "
                f"env.eval_share={config.eval_share:g} is a share of the different prompts and "
                "there are too few of them; name held-out rows (env.eval_path), change "
                "env.eval_share, or put more fields of a row into env.prompt"
            )
        return {"train": train, "eval": held_out}

    def size(self, split: Literal["train", "eval"]) -> int:
        return len(self._rows[split])

    def task(self, key: TaskKey) -> Task[Row]:
        row = self._rows[key.split][key.index]
        system = (Message("system", self.config.system),) if self.config.system else ()
        return Task(key, (*system, Message("user", self._prompt(row, key.index))), row)

    def verify(self, task: Task[Row], rollout: Rollout) -> Verdict:
        answer = self._extract_answer(rollout.text)
        if self.config.reward in _REWARDS:
            value: Any = (
                0.0
                if answer is None
                else _REWARDS[self.config.reward](answer, self._reference_answer(task.data))
            )
        else:
            value = self._reward_function(rollout.text, task.data)
            answer = rollout.text.strip() if answer is None else answer
        return Verdict({"reward": Reward(value)}, passed=value >= 1, answer=answer)

    def reference(self, task: Task[Row]) -> str | None:
        """Return the answer of the row, in the tag where there is one.

        With a function of your own it may also be the answer alone, if only that is paid in full,
        and is None if rows have no answer.
        """
        own = self.config.reward not in _REWARDS
        if own and task.data.get(self.config.answer) is None:
            return None
        answer = self._reference_answer(task.data)
        tagged = f"<{self.config.tag}>{answer}</{self.config.tag}>" if self.config.tag else answer
        if own and not self._pays(tagged, task.data) and self._pays(answer, task.data):
            return answer
        return tagged

    def cheats(self, task: Task[Row]) -> Sequence[str]:
        """Return completions that give no answer."""
        empty = f"<{self.config.tag}></{self.config.tag}>"
        return ("", empty) if self.config.tag and self.config.reward in _REWARDS else ("",)

    def fingerprint(self) -> str:
        try:
            module = inspect.getmodule(self._reward_function)
            reward = inspect.getsource(module or self._reward_function)
        except (OSError, TypeError):
            # The function is not written in Python, such as operator:eq.
            reward = self.config.reward
        digests = {split: hash_rows(rows) for split, rows in self._rows.items()}
        text = f"{super().fingerprint()} {digests} {reward}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _prompt(self, row: Row, number: int) -> str:
        try:
            return str(self.config.prompt.format(**row))
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"env.prompt {self.config.prompt!r} does not fit row {number} "
                f"({', '.join(row)}): {error}"
            ) from None

    def _pays(self, text: str, row: Row) -> bool:
        """Return whether a reward function of the user pays a text in full."""
        value: Any = self._reward_function(text, row)
        return bool(value >= 1)

    def _extract_answer(self, text: str) -> str | None:
        if not self.config.tag:
            return text.strip()
        block = xml_tag(text, tag=self.config.tag)
        return None if block is None else block.content.strip()

    def _reference_answer(self, row: Row) -> str:
        if self.config.answer not in row:
            raise ConfigError(
                f"a row has no field {self.config.answer!r} (it has {', '.join(row)}); "
                "set env.answer"
            )
        text = str(row[self.config.answer]).strip()
        if not self.config.answer_pattern:
            return text
        match = re.search(self.config.answer_pattern, text)
        if match is None or match.group(1) is None:
            raise ConfigError(
                f"env.answer_pattern {self.config.answer_pattern!r} finds no group in {text!r:.80}"
            )
        return match.group(1).strip()


def _check(config: Config) -> None:
    if bool(config.path) == bool(config.name):
        raise ConfigError(
            "the environment 'dataset' needs rows: set env.path to a JSONL file, or env.name to a "
            "published dataset"
        )
    for name in ("subset", "split", "eval_split"):
        if config.path and (value := getattr(config, name)) != getattr(Config(), name):
            raise ConfigError(
                f"env.{name}={value!r} is about a published dataset, but env.path names a file; "
                "remove one of them"
            )
    if config.eval_path and config.eval_split:
        raise ConfigError(
            "env.eval_path and env.eval_split both name the held-out rows; remove one of them"
        )
    if not 0 <= config.eval_share < 1:
        raise ConfigError(
            f"env.eval_share is {config.eval_share:g}; it must be at least 0 and below 1"
        )
    try:
        groups = re.compile(config.answer_pattern).groups
    except (re.error, OverflowError) as error:
        raise ConfigError(
            f"env.answer_pattern {config.answer_pattern!r} is not a regular expression: {error}"
        ) from None
    if config.answer_pattern and not groups:
        raise ConfigError(
            f"env.answer_pattern {config.answer_pattern!r} has no group; put the answer's part in "
            "brackets, as in '#### (.*)'"
        )


def _is_same_text(answer: str, reference: str) -> float:
    return float(" ".join(answer.split()).casefold() == " ".join(reference.split()).casefold())


def _is_same_number(answer: str, reference: str) -> float:
    right = parse_decimal(ungrouped(reference))
    if right is None:
        raise ConfigError(
            f"the reference {reference!r} is not a number; set env.reward=exact, or "
            "env.answer_pattern to cut out the number"
        )
    return float(parse_decimal(ungrouped(answer)) == right)


_REWARDS: Mapping[str, Callable[[str, str], float]] = {
    "exact": _is_same_text,
    "number": _is_same_number,
}


def _load_reward(reward: str) -> Callable[..., object]:
    if reward in _REWARDS:
        return _REWARDS[reward]
    if ":" not in reward:
        raise ConfigError(
            f"env.reward={reward!r} is not known; it is exact, number, FILE.py:FUNCTION or "
            "MODULE:FUNCTION"
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
