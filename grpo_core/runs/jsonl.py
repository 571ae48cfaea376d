"""JSON lines that users bring along, each with the words that say where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_core.extract import is_text
from grpo_core.protocol.errors import ConfigError


def values(path: Path, *, holds: str) -> Iterator[tuple[str, Any]]:
    """("FILE, line N", value) of each line that is not blank; raises ConfigError where the file cannot be read or a line is no JSON.

    holds: what is in it, for the message. Only a line feed ends a line: JSON may hold what `str.splitlines` takes for the end of one.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a JSONL file of {holds}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                value = json.loads(line)
                text = json.dumps(value, ensure_ascii=False)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where} is no JSON: {error}") from None
            if not is_text(text):
                raise ConfigError(
                    f"{where} holds half of a surrogate pair (\\ud800 .. \\udfff), which is no text; remove it"
                )
            yield where, value
