"""Find the pictures that a verdict names, and read them as data of the page."""

from __future__ import annotations

import base64
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.api.runs import read_whole

_KINDS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Only pictures that hold nothing but pixels: a page that shows an SVG would have to trust it."""
_MOST_BYTES = 4 << 20
"""Of one picture."""
_MOST_BYTES_OF_ALL = 16 << 20
"""Of the pictures of one verdict."""
_MOST_PICTURES = 16
"""Of one verdict."""
_NAME_CHARACTERS = 500
"""A longer text is not the name of a file."""


def pictures_of(detail: Mapping[str, Any], run: Path) -> list[dict[str, str]]:
    """Return each picture that the detail of a verdict names, as a data URL or with a reason.

    A verdict may quote a model, so only regular files below the run folder are read, each once
    whatever the spellings of its name, and only so many of so many bytes in all.

    Args:
        detail: of the verdict; a text, or a list of texts, that ends as a picture's name does.
        run: the run folder, which paths are relative to.
    """
    root = run.resolve()
    shown: list[dict[str, str]] = []
    known: set[Path] = set()
    left = _MOST_BYTES_OF_ALL
    for name in dict.fromkeys(_names(detail)):
        if len(shown) == _MOST_PICTURES:
            reason = f"it and all after it are left out: {_MOST_PICTURES} is the most of a verdict"
            shown.append({"name": name, "reason": reason})
            break
        try:
            path = (root / name).resolve()
            if path in known:
                continue
            known.add(path)
            data = _read(path, root, left)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
            reason = getattr(error, "strerror", None) or str(error)
            shown.append({"name": name, "reason": reason})
            continue
        left -= len(data)
        text = base64.b64encode(data).decode()
        url = f"data:{_KINDS[path.suffix.lower()]};base64,{text}"
        shown.append({"name": name, "url": url})
    return shown


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _names(item)
    elif isinstance(value, str) and _is_picture(value):
        yield value


def _is_picture(text: str) -> bool:
    short = len(text) < _NAME_CHARACTERS and "\n" not in text
    return short and Path(text).suffix.lower() in _KINDS


def _read(path: Path, root: Path, left: int) -> bytes:
    """Return the content of a picture.

    Args:
        path: the picture, without links.
        root: the run folder, without links.
        left: the bytes that the pictures of the verdict may still have.

    Raises:
        OSError: it cannot be read.
        ValueError: it must not be read, for the reason in the message.
    """
    if not path.is_relative_to(root):
        raise ValueError("it is outside the run folder")
    if path.suffix.lower() not in _KINDS:
        raise ValueError("it is a link to a file that is no picture")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > _MOST_BYTES:
        raise ValueError(f"it has {status.st_size:,} bytes, at most {_MOST_BYTES:,}")
    if status.st_size > left:
        raise ValueError(f"the pictures of a verdict have at most {_MOST_BYTES_OF_ALL:,} bytes")
    return read_whole(path, most_bytes=min(_MOST_BYTES, left), below=root)
