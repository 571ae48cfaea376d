"""Read the files that users write: texts, lines of text, and JSONL.

All of them are UTF-8, with or without a byte order mark. Only a line feed ends a line, with or
without a carriage return before it: JSON strings and sentences may hold U+2028, U+0085 and other
characters at which `str.splitlines` would split. Every error names the file and the line.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from grpo_core.extract import is_text
from grpo_core.protocol.errors import ConfigError

_MARK = "\ufeff"
"""The byte order mark; files that were joined have one at the beginning of a later line, too."""
_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def user_text(path: Path, *, holds: str, name: str = "") -> str:
    """Return the text of a file that a user provides, without its byte order mark.

    Args:
        path: the file.
        holds: what kind of file is expected, for the message, such as "a text file".
        name: what the message calls the file; "": its path.

    Raises:
        ConfigError: the file cannot be read, or is not text in UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(_unreadable(name or str(path), error, holds)) from None
    return decode_text(data, name=name or str(path), holds=holds)


def decode_text(data: bytes, *, name: str, holds: str, line: int = 1) -> str:
    """Return the text that a user provides as bytes; see `user_text`.

    Args:
        data: the bytes.
        name: what the message calls them.
        holds: what is expected instead, for the message.
        line: the number of the line with which the bytes begin.

    Raises:
        ConfigError: the bytes are not text in UTF-8.
    """
    if line == 1 and data.startswith(_OTHER_MARKS):
        raise ConfigError(f"{name}: it is UTF-16 or UTF-32 text; name {holds} in UTF-8")
    try:
        return data.decode("utf-8").removeprefix(_MARK)
    except UnicodeDecodeError as error:
        bad, line = data[error.start], line + data[: error.start].count(b"\n")
        raise ConfigError(
            f"{name}: it is not UTF-8 text (byte 0x{bad:02x} in line {line}); name {holds} in UTF-8"
        ) from None


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank, without its end."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip().strip(_MARK):
            yield number, line.removesuffix("\r").removeprefix(_MARK)


def user_lines(path: Path, *, holds: str) -> Iterator[tuple[str, str]]:
    """Yield ("FILE, line N", line) for each line that is not blank; see `user_text`."""
    try:
        with path.open("rb") as file:  # whose lines end with a line feed and nothing else
            for number, data in enumerate(file, 1):
                text = decode_text(data, name=str(path), holds=holds, line=number)
                if "\0" in text:  # as in UTF-16 without a byte order mark
                    raise ConfigError(
                        f"{path}: it is not plain text (byte 0 in line {number}); name {holds} in "
                        "UTF-8"
                    )
                for _, line in numbered_lines(text):
                    yield f"{path}, line {number}", line
    except OSError as error:
        raise ConfigError(_unreadable(str(path), error, holds)) from None


def _unreadable(name: str, error: OSError, holds: str) -> str:
    return f"{name} cannot be read: {error.strerror or error}; name {holds}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value; write null, or remove the field")


def user_values(
    path: Path,
    *,
    holds: str,
    parse_float: Callable[[str], Any] = float,
    parse_constant: Callable[[str], Any] = _refuse_constant,
) -> Iterator[tuple[str, Any]]:
    """Yield ("FILE, line N", value) for each line that is not blank in a JSONL file of a user.

    Args:
        path: the JSONL file.
        holds: what the file contains, for the message, such as "examples".
        parse_float: makes a value of a number with a fraction or an exponent, as it is written.
        parse_constant: makes a value of NaN, Infinity or -Infinity; by default they are refused.

    Raises:
        ConfigError: the file cannot be read, or a line is not JSON; see `parse_value`.
    """
    for where, line in user_lines(path, holds=f"a JSONL file of {holds}"):
        yield (
            where,
            parse_value(line, where=where, parse_float=parse_float, parse_constant=parse_constant),
        )


def parse_value(
    text: str,
    *,
    where: str,
    parse_float: Callable[[str], Any] = float,
    parse_constant: Callable[[str], Any] = _refuse_constant,
) -> Any:
    """Return the JSON value of a text that a user provides.

    Args:
        text: the text.
        where: what the message calls it.
        parse_float: as in `user_values`.
        parse_constant: as in `user_values`.

    Raises:
        ConfigError: the text is not JSON, has NaN, an infinity or a number beyond every float, has
            a key twice in one object, or holds a lone surrogate.
    """

    def finite_float(digits: str) -> Any:
        if not math.isfinite(float(digits)):
            raise ValueError(f"the number {digits} is too large")
        return parse_float(digits)

    try:
        value = json.loads(
            text,
            parse_float=finite_float,
            parse_constant=parse_constant,
            object_pairs_hook=_fields_once,
        )
        encodable = is_text(json.dumps(value, ensure_ascii=False))
    except json.JSONDecodeError as error:
        # The line that the decoder counts is one of this text, and may not be one of the file.
        line = f"line {error.lineno} " if "\n" in text else ""
        raise ConfigError(f"{where} is not JSON: {error.msg}: {line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    if not encodable:
        raise ConfigError(
            f"{where} holds half of a surrogate pair (\\ud800 .. \\udfff), "
            "which is not valid text; remove it"
        )
    return value


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object; which of two with the same key is meant nobody can tell."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice; remove one of them")
    return fields
