"""The settings of the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from grpo_core import ConfigError, Harmless


@dataclass(frozen=True, slots=True)
class DatasetConfig:
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
    system: Annotated[str, Harmless] = "Reply with <answer>...</answer>."
    """The system message; "" for none."""
    answer: Annotated[str, Harmless] = "answer"
    """The row's field that holds the reference answer: a text, a number, true or false, or a list
    of these, any of which is right; "" if a function of your own needs none."""
    answer_pattern: str = ""
    """Regular expression with one group, such as `#### (.*)`: only what the group matches in the
    field `answer` is the reference answer."""
    reward: Literal["exact", "number"] | str = "exact"
    """`exact` (the same text; white space, case, and whether a letter and its accent are one
    character, do not count), `number` (the same number, also as `$1,080` or `**1080**`), or your
    function: FILE.py:FUNCTION of a file, or MODULE:FUNCTION of an installed package."""
    tag: Annotated[str, Harmless] = "answer"
    """The completion's answer is the text in its only <tag>...</tag>; "" takes the whole one. A
    function of your own gets the whole completion in any case, without its thoughts (see
    `model.thought_tags`)."""


def check_config(config: DatasetConfig) -> None:
    """Check that settings fit together.

    Raises:
        ConfigError: they do not.
    """
    if bool(config.path) == bool(config.name):
        raise ConfigError(
            "the environment 'dataset' needs rows: set env.path to a JSONL file, or env.name to a "
            "published dataset"
        )
    for name in ("subset", "split", "eval_split"):
        if config.path and (value := getattr(config, name)) != getattr(DatasetConfig(), name):
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
