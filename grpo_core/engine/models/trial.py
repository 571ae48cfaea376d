"""Run in a child process what a model folder brings as a program: templates, patterns, tokenizers.

A chat template can loop for years, a pattern can backtrack for as long, and the rules of a
tokenizer can make a petabyte out of a letter; no library bounds this. Here each is tried where the
memory is limited, and where the parent process can end it (see `guarded`). The file is run by its
path and imports nothing of the package, so that the process starts in a moment.

It reads one JSON object a line from stdin, and writes one for each to stdout: `{"value": ...}`, or
`{"error": TEXT}` for what the content itself caused.
"""

from __future__ import annotations

import datetime
import json
import re
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT = 64_000_000
"""The most characters that a template may write."""
MAX_ADDED_TOKENS = 65_536
MAX_GROWTH = 64
"""How many times as long the replacing rules of a tokenizer may make a text."""
PROBES = tuple(
    text
    for letter in ("a", " ", "\n", "1", "!", "\u00e9", "\u4e2d", "aA1 ", "<|", "_.-")
    for text in (letter * (2_000 // len(letter)), letter * (2_000 // len(letter)) + "\x00")
)
"""Texts that keep a pattern busy which has more than one way to match the same letters."""


class _Generation(Extension):
    """Accept the tag that marks what an assistant wrote; it changes nothing in the text."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """Make dicts for a template, and give it nothing else of the class."""

    def __call__(self, *pairs: Any, **items: Any) -> dict[Any, Any]:
        return dict(*pairs, **items)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """Hold what a template assigns inside a loop; names with an underscore first are refused."""

    def __init__(*args: Any, **items: Any) -> None:
        own, *pairs = args
        contents = dict(*pairs, **items)
        for name in contents:
            _check_name(name)
        Namespace.__init__(own, contents)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateError(f"a namespace cannot hold {name!r}")


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON; unlike jinja's own filter, this keeps the characters that HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


_templates: dict[int, jinja2.Template] = {}


def _compiled(template: str) -> jinja2.Template:
    """Return a template as transformers compiles it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda layout: datetime.datetime.now().strftime(layout),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


def render(number: int, variables: Mapping[str, Any], template: str | None = None) -> str:
    """Return the text that a template makes of its variables.

    Args:
        number: of the template.
        variables: by their names.
        template: the template itself, the first time.
    """
    if template is not None:
        _templates[number] = _compiled(template)
    text = _templates[number].render(**variables)
    if len(text) > MAX_TEXT:
        raise ValueError(f"its text has {len(text):,} characters; at most {MAX_TEXT:,} are taken")
    return text


def match(forms: list[list[str]], names: list[str]) -> int:
    """Match patterns against names as peft does, and return how many pairs match.

    Args:
        forms: pairs of a pattern and "whole", or "part" for a pattern inside another.
        names: the names of modules and tensors.
    """
    return sum(
        bool((re.fullmatch if form == "whole" else re.match)(pattern, name))
        for pattern, form in forms
        for name in names
    )


def try_tokenizer(path: str) -> None:
    """Load a tokenizer.json, encode texts and decode them.

    Raises:
        ValueError: it may take for ever with some text, or make too much of it.
    """
    with open(path, encoding="utf-8") as file:
        description = json.load(file)
    _check_rules(description)
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    for text in PROBES:
        ids = tokenizer.encode(text).ids
        tokenizer.decode(ids, skip_special_tokens=False)
        tokenizer.decode(ids[:100], skip_special_tokens=True)


def _check_rules(description: Any) -> None:
    """Refuse rules whose cost depends on a text that no probe may show."""
    if not isinstance(description, dict):
        raise ValueError("it is not a JSON object")
    added = description.get("added_tokens") or []
    if len(added) > MAX_ADDED_TOKENS:
        raise ValueError(f"it adds {len(added):,} tokens; at most {MAX_ADDED_TOKENS:,} are taken")
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1
        for rule in _rules(description.get(part)):
            growth *= max(1, len(str(rule.get("content", ""))), len(str(rule.get("prepend", ""))))
        if growth > MAX_GROWTH:
            raise ValueError(f"its {part} can make a text {growth:,} times as long")


def _rules(part: Any, depth: int = 0) -> list[dict[str, Any]]:
    """Return a rule of a tokenizer and those in it."""
    if depth > 8:
        raise ValueError("its rules are nested more than 8 deep")
    if isinstance(part, list):
        return [rule for member in part for rule in _rules(member, depth + 1)]
    if not isinstance(part, dict):
        return []
    inner = (value for name, value in part.items() if isinstance(value, list) and name != "vocab")
    return [part, *(rule for value in inner for rule in _rules(value, depth + 1))]


_OUT_OF_MEMORY = {"error": "it takes more memory than is allowed", "overrun": True}

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "render": render,
    "match": match,
    "tokenizer": try_tokenizer,
}


def answer(line: str) -> dict[str, Any]:
    """Return the reply to one request."""
    try:
        request = json.loads(line)
        _limit_memory(request["megabytes"])
        return {"value": OPERATIONS[request["operation"]](**request["arguments"])}
    except MemoryError:
        return _OUT_OF_MEMORY
    except RecursionError:
        return {"error": "it is nested too deep"}
    except BaseException as error:  # noqa: BLE001 - a panic of the tokenizers library is none
        text = str(error).strip().partition("\n")[0]
        name = "" if isinstance(error, jinja2.TemplateError | ValueError) else type(error).__name__
        return {"error": ": ".join(filter(None, (name, text[:500]))) or type(error).__name__}


def _limit_memory(megabytes: int) -> None:
    """Limit the memory that this process may take from now on."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: no limit of the address space is enforced there
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = size + megabytes * 2**20
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def main() -> None:
    """Answer requests until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(1, "w", encoding="ascii", closefd=False) as output:
        output.write(json.dumps({"value": "ready"}) + "\n")
        output.flush()
        for line in sys.stdin:
            try:
                reply = json.dumps(answer(line))
            except MemoryError:
                reply = json.dumps(_OUT_OF_MEMORY)
            output.write(reply + "\n")
            output.flush()


if __name__ == "__main__":
    main()
