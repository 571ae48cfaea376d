"""The settings of the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from grpo_core import ConfigError, Harmless


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """Settings of the environment: either `path` or `name` says where the rows come from."""

    path: str = ""
    """File with the rows: JSONL, JSON, CSV, TSV, or with the extra `datasets` Parquet, Arrow, or a
    folder that `datasets` has saved. `--data FILE` sets it."""
    name: str = ""
    """Name of a published dataset, instead of `path`."""
    subset: str = ""
    """Subset of the published dataset."""
    split: str = "train"
    """Split of the published dataset, or of the folder, that the rows come from."""
    eval_path: str = ""
    """File with the held-out rows."""
    eval_split: str = ""
    """Split of the published dataset, or of the folder, with the held-out rows."""
    eval_share: float = 0.1
    """Share of the prompts that is held out if neither `eval_path` nor `eval_split` is set. The
    words of the row's prompt decide, not their case and order, nor the row's other fields."""
    prompt: str = ""
    """The user's message, with the row's fields in braces, such as `{question}`. A field that holds
    a list of messages, named alone, is the whole prompt. "": the first of the usual fields
    (`prompt`, `question`, `problem`, ...) that most rows have."""
    system: Annotated[str | None, Harmless] = None
    """The system message; "" for none. None: what a reward that reads `tag` needs, and none where a
    function of your own judges or the row brings one."""
    answer: Annotated[str | None, Harmless] = None
    """The row's field that holds the reference answer, a text, a number, true or false, or a list
    of these, any of which is right; `info.answer` is a field in a field. None: the first of the
    usual ones (`answer`, `ground_truth`, `solution`, ...); "" if a function of yours needs none."""
    answer_pattern: str = ""
    """Regular expression with one group, such as `#### (.*)`: only what the group matches in the
    field `answer` is the reference answer."""
    reward: tuple[str, ...] = ("exact",)
    """`exact` (the same text; white space, case, and whether a letter and its accent are one
    character, do not count), `number` (the same number, also as `$1,080` or `**1080**`), `choice`
    (of the row's options), `contains`, `regex`, `json_schema` or `math`; or functions of yours:
    FILE.py:FUNCTION of a file, or MODULE:FUNCTION of an installed package. Each of several is a
    part of the reward, whose weight is `weights.NAME`. `--reward` sets it."""
    passes: Annotated[str, Harmless] = ""
    """The part of several that says whether an attempt passes, by a value of at least 1; "": the
    first one."""
    tag: Annotated[str, Harmless] = "answer"
    """The completion's answer is the text in its only <tag>...</tag>; "" takes the whole one.
    Functions of your own get the whole completion in any case."""
    completions: Annotated[Literal["auto", "text", "messages"], Harmless] = "auto"
    """How functions in the forms of TRL and verifiers get prompts and completions. `auto`: as lists
    of messages if the rows' prompts are such lists, or if the function's source reads `content`."""
    rename: Annotated[tuple[str, ...], Harmless] = ()
    """Further names of fields, NEW=OLD, where a reward function's parameter has another name."""


def check_config(config: DatasetConfig) -> None:
    """Check that settings fit together.

    Raises:
        ConfigError: they do not.
    """
    if bool(config.path) == bool(config.name):
        raise ConfigError(
            "the environment 'dataset' needs rows: set env.path (or --data) to a file of rows, or "
            "env.name to a published dataset"
        )
    is_file = bool(config.path) and not Path(config.path).is_dir()
    for name in ("subset", "split", "eval_split"):
        if is_file and (value := getattr(config, name)) != getattr(DatasetConfig(), name):
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
    for text in config.rename:
        if not all(name.strip() for name in text.partition("=")[::2]):
            raise ConfigError(f"env.rename has {text!r}; write it as NEW=OLD, two names of fields")
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
