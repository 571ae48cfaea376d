"""Find the pictures that a verdict names, and read them as data of the page."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_KINDS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Only pictures that hold nothing but pixels: a page that shows an SVG would have to trust it."""
_MOST_BYTES = 4 << 20
_NAME_CHARACTERS = 500
"""A longer text is not the name of a file."""


def pictures_of(detail: Mapping[str, Any], run: Path) -> list[dict[str, str]]:
    """Return each picture that the detail of a verdict names, as a data URL or with a reason.

    A verdict may quote a model, so only files below the run folder are read.

    Args:
        detail: of the verdict; a text, or a list of texts, that ends as a picture's name does.
        run: the run folder, which paths are relative to.
    """
    return [_picture(name, run) for name in dict.fromkeys(_names(detail))]


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


def _picture(name: str, run: Path) -> dict[str, str]:
    root = run.resolve()
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            return {"name": name, "reason": "it is outside the run folder"}
        size = path.stat().st_size
        if size > _MOST_BYTES:
            return {"name": name, "reason": f"it has {size:,} bytes, at most {_MOST_BYTES:,}"}
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        return {"name": name, "reason": getattr(error, "strerror", None) or str(error)}
    text = base64.b64encode(data).decode()
    return {"name": name, "url": f"data:{_KINDS[path.suffix.lower()]};base64,{text}"}
