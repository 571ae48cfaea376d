"""Read JSONL files that users provide; every error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_core.extract import is_text
from grpo_core.protocol.errors import ConfigError


def values(path: Path, *, holds: str) -> Iterator[tuple[str, Any]]:
    """Yield ("FILE, line N", value) for each line that is not blank.

    Only a line feed ends a line: JSON strings may hold other characters at which `str.splitlines`
    would split.

    Args:
        path: the JSONL file.
        holds: what the file contains, for the message.

    Raises:
        ConfigError: the file cannot be read, a line is not JSON, or it holds a lone surrogate.
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
                raise ConfigError(f"{where} is not JSON: {error}") from None
            if not is_text(text):
                raise ConfigError(
                    f"{where} holds half of a surrogate pair (\\ud800 .. \\udfff), "
                    "which is not valid text; remove it"
                )
            yield where, value
