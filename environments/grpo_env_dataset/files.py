"""Read rows from JSONL, JSON, CSV, TSV, Parquet and Arrow files, and from folders."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, MissingExtraError
from grpo_core.config.user_files import parse_value, user_text, user_values
from grpo_core.plugins.versions import check_versions
from grpo_env_dataset.rows import Number, Row, Table, with_values

_COLUMNAR = {".parquet": "parquet", ".arrow": "arrow"}
"""Binary files, by their ends, with the names of the builders of `datasets` that read them."""
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", *_COLUMNAR)
"""The ends of the names of files of rows."""
_JSON_READING: Mapping[str, Callable[..., Any]] = {"parse_float": Number, "parse_constant": float}


def read_file(path: Path, source: str, *, split: str) -> Table:
    """Read the rows of a file, by the end of its name, or of a folder that `datasets` has saved.

    Args:
        path: the file or folder.
        source: its name in messages about rows.
        split: the split of a folder that has several.

    Raises:
        ConfigError: it cannot be read, is not of its kind, or holds no rows.
        MissingExtraError: it needs the package `datasets`, which is not installed.
    """
    suffix = path.suffix.lower()
    setting, what = f"env.path={str(path)!r}", str(path)
    if path.is_dir():
        return load_with_datasets(
            lambda datasets: _folder(datasets, path, split),
            setting=setting,
            what=what,
            source=source,
        )
    if suffix in _COLUMNAR:
        if not path.is_file():
            raise ConfigError(f"{path} does not exist; name a file of rows (env.path)")
        return load_with_datasets(
            lambda datasets: datasets.load_dataset(
                _COLUMNAR[suffix], data_files=str(path), split="train"
            ),
            setting=setting,
            what=what,
            source=source,
        )
    if suffix in (".csv", ".tsv"):
        numbered = _separated_rows(path, "\t" if suffix == ".tsv" else ",")
    elif suffix == ".json":
        numbered = _json_rows(path)
    else:
        numbered = _lines(path)
    rows, numbers = list[Row](), list[int]()
    for number, row in numbered:
        rows.append(row)
        numbers.append(number)
    if not rows:
        raise ConfigError(f"{path} holds no rows; {_FORMS}")
    return Table(source, rows, numbers, is_file=True)


_FORMS = "a JSONL file has one JSON object on each line"


def _lines(path: Path) -> Iterable[tuple[int, Row]]:
    """Yield number and object of each line that is not blank."""
    for where, row in user_values(path, holds="rows (env.path)", **_JSON_READING):
        if isinstance(row, list) and len(row) > 1 and where.endswith(" 1"):
            raise ConfigError(f"{where} holds a list of {len(row)} items; call the file *.json")
        if not isinstance(row, dict):
            raise ConfigError(f"{where} holds {_kind(row)}; every line must be a JSON object")
        yield int(where.rpartition(" ")[2]), row


def _json_rows(path: Path) -> Iterable[tuple[int, Row]]:
    """Return the rows of a JSON file: a list of objects, or an object with one such list.

    Many files with this end have one object on each line; they are read as such.
    """
    text = user_text(path, holds="a JSON file of rows (env.path)")
    first = text.lstrip()[:1]
    try:
        json.loads(text)
    except ValueError as error:
        if first == "{" and "Extra data" in str(error):
            return _lines(path)
    except RecursionError:
        pass  # parse_value says so
    value = parse_value(text, where=str(path), **_JSON_READING)
    if isinstance(value, dict):
        lists = {key: item for key, item in value.items() if _is_rows(item)}
        if len(lists) == 1:
            ((_, value),) = lists.items()
        elif _is_one_row(value):
            value = [value]
        else:
            raise ConfigError(
                f"{path} holds an object with {len(lists)} lists of objects "
                f"({', '.join(value) or 'it is empty'}); write a list of rows"
            )
    if not isinstance(value, list):
        raise ConfigError(f"{path} holds {_kind(value)}; write a list of objects, one for each row")
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict):
            raise ConfigError(
                f"{path}, item {number} is {_kind(row)}; every row must be a JSON object"
            )
    return enumerate(value, 1)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _is_one_row(value: Mapping[str, Any]) -> bool:
    return bool(value) and not any(map(_is_rows, value.values()))


def _separated_rows(path: Path, delimiter: str) -> Iterable[tuple[int, Row]]:
    """Yield the number of the line and the fields of each row of a CSV or TSV file.

    Raises:
        ConfigError: there is no header, or a row has more or fewer fields than it.
    """
    text = user_text(path, holds="a CSV file of rows (env.path)")
    csv.field_size_limit(2**31 - 1)  # the default, 128 KiB, is less than some prompts have
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for fields in reader:
            began, line = line, reader.line_num + 1
            if not any(fields):
                continue
            if header is None:
                header = [name.strip() for name in fields]
                _check_header(header, path, delimiter)
                continue
            if len(fields) != len(header):
                raise ConfigError(
                    f"{path}, line {began} has {len(fields)} fields, and the header has "
                    f"{len(header)} ({', '.join(header)}); put fields with commas, quotes or line "
                    "breaks into double quotes"
                )
            yield began, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {line} is not CSV: {error}") from None


def _check_header(header: Sequence[str], path: Path, delimiter: str) -> None:
    """Raise ConfigError unless the first line of a file names its columns."""
    if "" in header or len(set(header)) != len(header):
        raise ConfigError(
            f"{path}: the first line must name the columns, each once; it has "
            f"{', '.join(map(repr, header))}"
        )
    if len(header) == 1 and ";" in header[0] and delimiter == ",":
        raise ConfigError(
            f"{path}: its fields are separated by semicolons; write commas (or tabs, and call it "
            "*.tsv)"
        )


def load_with_datasets(
    load: Callable[[Any], Any], *, setting: str, what: str, source: str
) -> Table:
    """Return rows that the package `datasets` reads.

    Args:
        load: gets the package and returns the rows.
        setting: the setting that needs the package, for messages.
        what: what messages call that which is read.
        source: its name in messages about rows.

    Raises:
        MissingExtraError: the package is not installed.
        ConfigError: the rows cannot be read, or there are none.
    """
    check_versions(setting, "datasets")
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError(setting, "datasets", package=error.name or "") from None
    try:
        loaded = [dict(row) for row in load(datasets)]
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} cannot be loaded: {error}") from error
    if not loaded:
        raise ConfigError(f"{what} holds no rows")
    return Table(source, [as_written(row) for row in loaded], range(1, len(loaded) + 1))


def load_published(name: str, subset: str, split: str) -> Table:
    """Load a split of a published dataset.

    Raises:
        MissingExtraError: The package `datasets` is not installed.
        ConfigError: The dataset cannot be loaded.
    """
    return load_with_datasets(
        lambda datasets: datasets.load_dataset(name, subset or None, split=split),
        setting=f"env.name={name!r}",
        what=f"the dataset {name!r} (env.subset={subset!r}, split {split!r})",
        source=f"{name} ({split})",
    )


def _folder(datasets: Any, path: Path, split: str) -> Any:
    """Return the rows of a folder of `save_to_disk`, or of one that holds files of rows."""
    is_saved = any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))
    if not is_saved and not any(
        file.suffix.lower() in SUFFIXES for file in path.rglob("*") if file.is_file()
    ):
        raise ConfigError(
            f"the folder {path} holds no rows: neither what `save_to_disk` of `datasets` writes, "
            f"nor files {', '.join('*' + suffix for suffix in SUFFIXES)}"
        )
    data = datasets.load_from_disk(str(path)) if is_saved else datasets.load_dataset(str(path))
    if not hasattr(data, "keys"):
        return data
    if split not in data:
        raise ConfigError(
            f"the folder {path} has no split {split!r}; it has {', '.join(data)}: set env.split"
        )
    return data[split]


def as_written(row: Row) -> Row:
    """Return a row of `datasets` with the values that a JSONL file would have given it."""
    plain: Row = with_values(row, _value_as_written)
    return plain


def _value_as_written(value: Any) -> Any:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy
        value = value.item()
    return Number(repr(value)) if type(value) is float and math.isfinite(value) else value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")
