"""Write the tables of commands and settings into the documentation, from the code.

python tests/docs_tables.py          # exit with 1 if a table is out of date
python tests/docs_tables.py --write  # rewrite the tables
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

from grpo_core.cli.app import app
from grpo_core.config.overrides import find_setting, known_keys
from grpo_kit.run import catalogue

ROOT = Path(__file__).resolve().parents[1]
if __package__:
    from .docs_reference import reference_rows
    from .environments.answer_forms import ALL, FORMS, READ
    from .test_architecture import PUBLIC_MODULES
else:  # as a script
    from docs_reference import reference_rows
    from environments.answer_forms import ALL, FORMS, READ
    from test_architecture import PUBLIC_MODULES

PAGES = (
    "environments/README.md",
    "grpo_core/cli/README.md",
    "grpo_core/protocol/README.md",
    "grpo_core/train/README.md",
    "plugins/README.md",
    "plugins/grpo_kit/README.md",
    "sandbox/README.md",
)
"""The pages that hold generated tables."""
END = "<!-- end -->"
_BLOCK = re.compile(rf"<!-- generated: ([\w.: ]+) -->\n.*?{END}", re.DOTALL)


def commands_table() -> str:
    """Return a row for each command: its name with required arguments, and what it does."""
    rows = [
        (f"`{' '.join(path)}`", _first_sentence(command.help or ""))
        for path, command in _leaf_commands(typer.main.get_command(app), ("grpo",))
    ]
    return _table(("command", "what it does"), rows)


def checks_table() -> str:
    """Return a row for each check of the kit: its severity and the question that it asks."""
    rows = [(f"`{check.name}`", check.severity, check.asks) for check in catalogue().values()]
    return _table(("check", "severity", "asks"), rows)


def public_modules_table() -> str:
    """Return a row for each module that packages around the core may use: what it is for."""
    rows = []
    for name in sorted(PUBLIC_MODULES):
        doc = import_module(name).__doc__ or ""
        rows.append((f"`{name}`", " ".join(doc.split("\n\n")[0].split())))
    return _table(("module", "what it does"), rows)


def settings_table() -> str:
    """Return a row for each setting: its key, its default and its meaning."""
    rows = []
    for key in known_keys():
        ((_, info),) = [item for item in find_setting(key) if item[0] == key]
        default = shown_default(info.get_default(call_default_factory=True))
        rows.append((f"`{key}`", f"`{default}`", info.description or ""))
    return _table(("setting", "default", "meaning"), rows)


def answer_forms_table() -> str:
    """Return a row for each form of answers: what the environments make of it."""
    rows = []
    for form in FORMS:
        by_outcome: dict[str, list[str]] = {}
        for name in form.environments:
            by_outcome.setdefault(form.outcome_of(name), []).append(name)
        read = _shown_names(by_outcome.pop(READ, []))
        refused = "; ".join(f"{_shown_names(names)}: {why}" for why, names in by_outcome.items())
        rows.append((form.name, read, refused.replace("<", "\\<")))
    return _table(("form", "read by", "not right, and the verdict's note says"), rows)


def _shown_names(names: Sequence[str]) -> str:
    return "all" if tuple(names) == ALL else ", ".join(names)


def shown_default(value: Any) -> str:
    """Return a default as the table shows it: text as it is, None as unset, the rest as JSON."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def with_tables(page: str) -> str:
    """Return the page with its generated blocks as the code has them now."""
    return _BLOCK.sub(
        lambda block: f"<!-- generated: {block[1]} -->\n{_generated(block[1])}\n{END}", page
    )


def _generated(name: str) -> str:
    """Return the table that a page asks for by this name."""
    return TABLES[name]() if name in TABLES else _table(*reference_rows(name))


_EXAMPLES = {"seeds": "4", "sweep": "optimizer.lr=1e-4,3e-4"}
"""Values of options where a word will not do, as the tests read the table as commands."""


def _leaf_commands(
    command: Any, path: tuple[str, ...], option: str = ""
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the command of each leaf; `option` is the one that chooses a variant."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from _leaf_commands(child, (*path, name))
            for option in command.variants.get(name, {}):
                if " " not in option:  # else it takes an option of the command itself
                    yield from _leaf_commands(command.variant(name, option), (*path, name), option)
        return
    command = command.load()
    required = [
        parameter for parameter in command.params if parameter.required or option in parameter.opts
    ]
    words = [
        name.upper() if kind == "argument" else f"{options[0]} {_EXAMPLES.get(name, name.upper())}"
        for name, kind, options in (
            (str(parameter.name), parameter.param_type_name, parameter.opts)
            for parameter in required
        )
    ]
    yield (*path, *words), command


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split()), maxsplit=1)[0]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "answer_forms": answer_forms_table,
    "checks": checks_table,
    "commands": commands_table,
    "public_modules": public_modules_table,
    "settings": settings_table,
}


def main() -> int:
    """Check the pages, or rewrite them with --write; return the exit status."""
    stale = []
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        current = with_tables(page)
        if current != page and "--write" in sys.argv[1:]:
            (ROOT / name).write_text(current, encoding="utf-8")
        elif current != page:
            stale.append(name)
    if stale:
        print(f"out of date: {', '.join(stale)}; run: python tests/docs_tables.py --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
