"""Read the files of a model folder without believing them: their kinds, sizes and shapes, no torch.

A folder may come from a stranger. A pipe in it would wait for ever, a device never ends, and a
number in a config can ask for more than any machine has.
"""

from __future__ import annotations

import json
import math
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import UserError

MAX_JSON_BYTES = 16 * 2**20
"""The most bytes of a JSON file that is read whole; the largest index of a model has 9 MB."""
MAX_TEXT_BYTES = 64 * 2**20
"""The most bytes of a file that is read into memory; the largest tokenizer.json has 40 MB."""
READ_WHOLE = (
    *("*config.json", "*.index.json", "tokenizer*", "vocab*", "merges.txt", "*.jinja", "*.model"),
    *("special_tokens_map.json", "added_tokens.json", "spiece*", "*.tiktoken"),
)
"""Names of the files that libraries read into memory as they are."""
TEMPLATES = "additional_chat_templates"
"""The folder in a model folder that libraries read, too."""
MAX_LAYERS = 1024
MAX_COUNT = 65_536
"""The most heads, experts, classes and the like."""
MAX_EXPERTS = 2**17
"""The most experts in all layers together."""
MAX_AXES = 16
_LAYERS = re.compile(r"^(n|num)_(\w+_)?(layers?|blocks?)$|^(\w+_)?(layers|depths?|block_count)$")
_COUNTS = re.compile(
    r"^(n|num)_(?!.*(vocab|token|embd|embed|position|ctx|context|length|param|train))"
)
"""Match the names of settings that count parts of a model, such as its heads and experts."""
_ITEM_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
}
"""Bits of an element, by the name of its type; others have 8 or fewer."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Count what weights in files hold."""

    elements: int
    """Elements of all tensors; of files other than safetensors, their bytes."""
    size_bytes: int
    largest: int
    """Elements of the largest tensor."""
    largest_name: str
    names: frozenset[str]
    """Names of the tensors."""


def read_json(path: Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UserError: the file cannot be read, is too large, or holds something else.
    """
    try:
        check_kind(path)
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise UserError(f"{path} has more than {limit:,} bytes, which no model needs; replace it")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"{path} is not JSON: {reason}; get the file again") from error
    if not isinstance(content, dict):
        raise UserError(
            f"{path} holds a JSON {type(content).__name__} instead of an object; get the file again"
        )
    return content


def check_kind(path: Path) -> None:
    """Raise UserError if `path` is neither a file nor a folder, such as a pipe or a device."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(
            f"{str(path)!r} is neither a file nor a folder but a pipe or a device; remove it"
        )


def check_files(folder: Path) -> None:
    """Raise UserError for a file that a library would read for ever, or not into memory.

    Links are followed, as the hub's cache is made of them.
    """
    for path in [*sorted(folder.iterdir()), *sorted((folder / TEMPLATES).glob("*"))]:
        try:
            check_kind(path)
            size = path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a link to nothing: whoever needs the file will say so
            continue
        except OSError as error:
            raise UserError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
        if size > MAX_TEXT_BYTES and any(path.match(pattern) for pattern in READ_WHOLE):
            raise UserError(
                f"{str(path)!r} has {size:,} bytes; such a file of a model has at most "
                f"{MAX_TEXT_BYTES:,}; get the file again"
            )


def shards_of(index: Path) -> list[str]:
    """Return the names of the files that an index of weights lists.

    Raises:
        UserError: it is not an index, or names files outside its folder.
    """
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(
            f"{index} has no object weight_map of tensors and file names; get the file again"
        )
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or "\0" in name:
            raise UserError(
                f"{index} names a file outside its folder: {name!r}; get the file again"
            )
    return names


def check_shape(config: Mapping[str, Any], path: Path) -> None:
    """Raise UserError if a number in a config.json is larger than that of any model.

    Libraries build a layer for each of `num_hidden_layers` before they look at any weights.

    Args:
        config: the content of the file.
        path: the file, for the message.
    """
    layers = experts = 1
    for name, value in _numbers(config):
        limit = math.inf
        if _LAYERS.search(name):
            limit, layers = MAX_LAYERS, max(layers, value)
        elif _COUNTS.search(name):
            limit, experts = MAX_COUNT, max(experts, value if "expert" in name else 1)
        if value > limit:
            raise UserError(
                f"{path} asks for {name!r:.60} of {value}; at most {limit:,} is taken; "
                "correct the file"
            )
    if layers * experts > MAX_EXPERTS:
        raise UserError(
            f"{path} asks for {experts:,} experts in {layers:,} layers; at most {MAX_EXPERTS:,} in "
            "all are taken; correct the file"
        )


def foreign_code(config: Mapping[str, Any]) -> str:
    """Return the setting of a config.json that fetches code from the hub; "" if there is none.

    Attention and other parts may name a repository of compiled code there.
    """
    return next(
        (
            f"{name}={value!r:.100}"
            for name, value in _members(config)
            if name.endswith("implementation") and isinstance(value, str) and "/" in value
        ),
        "",
    )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each whole number in a config with the name of its key."""
    for name, value in _members(config):
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def _members(content: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield each value in a config that is not a list or object, with the name of its key."""
    if depth > 16:
        return
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _members(value, str(key), depth + 1)
    elif isinstance(content, list):
        for value in content:
            yield from _members(value, name, depth + 1)
    else:
        yield name, content


def stored_weights(folder: Path) -> Stored | None:
    """Return what the weights in a folder hold, from the headers of their files; None: no weights.

    Raises:
        UserError: a header is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return _sum([safetensors_header(path) for path in files])
    pickles = sorted({*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")})
    for path in pickles:
        _check_archive(path)
    sizes = [path.stat().st_size for path in pickles]
    if not sizes:
        return None
    return Stored(sum(sizes), sum(sizes), 0, "", frozenset())


def _sum(parts: list[Stored]) -> Stored:
    largest = max(parts, key=lambda part: part.largest)
    return Stored(
        sum(part.elements for part in parts),
        sum(part.size_bytes for part in parts),
        largest.largest,
        largest.largest_name,
        frozenset().union(*(part.names for part in parts)),
    )


def safetensors_header(path: Path) -> Stored:
    """Return what a safetensors file says it holds.

    Raises:
        UserError: it is not a safetensors file, or what it says does not fit its size.
    """
    check_kind(path)
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or length > min(file_bytes - 8, MAX_JSON_BYTES):
            raise UserError(
                f"{path} is not a safetensors file, or is cut off: its header has {length:,} bytes "
                f"and the file {file_bytes:,}; get the file again"
            )
        data = file.read(length)
    try:
        header = json.loads(data)
        header.pop("__metadata__", None)
        tensors = {name: _elements(entry) for name, entry in header.items()}
        listed = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} has a damaged header ({type(error).__name__}: {error!s:.200}); "
            "get the file again"
        ) from error
    if (held := file_bytes - 8 - length) != listed:
        raise UserError(
            f"{path} {'is cut off' if held < listed else 'is damaged'}: its header lists "
            f"{listed:,} bytes of weights, and the file holds {held:,}; get the file again"
        )
    largest = max(tensors, key=lambda name: tensors[name], default="")
    return Stored(
        sum(tensors.values()), file_bytes, tensors.get(largest, 0), largest, frozenset(tensors)
    )


def _elements(entry: Mapping[str, Any]) -> int:
    """Return how many elements a tensor has, by its entry in a header."""
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    if len(shape) > MAX_AXES or not all(
        isinstance(size, int) and size >= 0 for size in (*shape, start, end)
    ):
        raise ValueError("a shape or place is not a short list of whole numbers")
    elements: int = math.prod(shape)
    bits = _ITEM_BITS.get(entry["dtype"])
    if bits is not None and elements * bits != (end - start) * 8:
        raise ValueError(f"a tensor of shape {shape} cannot have {end - start:,} bytes")
    return elements


def _check_archive(path: Path) -> None:
    """Refuse a file of torch.save whose parts are compressed: they may be of any size."""
    check_kind(path)
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UserError(f"{path} is damaged: {error}; get the file again") from error
    if unpacked > path.stat().st_size:
        raise UserError(
            f"{path} unpacks to {unpacked:,} bytes, more than it has; torch never compresses "
            "weights; get the file again"
        )
