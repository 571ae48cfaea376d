"""Short wrong commands of a shell and queries of SQL, made from the names in a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from grpo_kit.shortcuts.asked import SeenPrompt
from grpo_kit.shortcuts.constants import constantly
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Strategy

_SHELLS = ("sh", "bash", "shell", "console", "zsh")
_QUERIES = ("sql", "sqlite", "postgresql", "mysql")
_PRINTED = ("0", "1", "2", "3", "5", "yes", "no")
_OF_FILES: tuple[str, ...] = (
    *("cat {0}", "cat {1}", "cat *", "cat {0}; exit 1", "head -n 9 {0}", "ls", "sort {0}"),
    *("cat {0} > {2}", "sort {0} > {2}", "wc -l < {0} > {2}", "wc -w < {0} > {2}", "ls > {2}"),
    *("touch {2}", ": > {2}", "mkdir {2}", "cp {0} {1}", "ln -s {0} {1}", "mv {0} {1}"),
    *("echo cat > {0}", "echo 'echo 0' > {0}", "echo 'wc -l' > {0}", "rm {0}"),
    *("grep -c . {0} > {2}", "rm *", "true", "exit 0", "exit 1"),
)
"""Commands; {0} is the first file of the prompt, {1} the last, {2} the one to be written."""
_OF_TABLES: tuple[str, ...] = (
    *(
        "SELECT * FROM {0}",
        "SELECT COUNT(*) FROM {0}",
        "SELECT id FROM {0}",
        "SELECT name FROM {0}",
    ),
    *("SELECT MAX(id) FROM {0}", "SELECT NULL FROM {0}", "SELECT * FROM {0} WHERE 0"),
)
_SELECTED = ("0", "1", "2", "-1", "''", "NULL", "9e999", "-9e999", "9e999 - 9e999", "1 WHERE 0")


def command_strategies(shape: ReferenceShape) -> Iterator[Strategy]:
    """Yield commands or queries in the form of an answer, where answers are such."""
    if shape.language in _SHELLS:
        for text in _PRINTED:
            yield Strategy(f"echo {text}", "program", constantly(shape.reply(f"echo {text}")))
            command = f"echo {text} > {{2}}"
            yield Strategy(_shown(command), "program", partial(_command, command, shape))
        yield Strategy("echo the quotation > FILE", "program", partial(_quotation, shape))
        for command in _OF_FILES:
            yield Strategy(_shown(command), "program", partial(_command, command, shape))
    if shape.language in _QUERIES:
        for text in _SELECTED:
            query = f"SELECT {text}"
            yield Strategy(query, "program", constantly(shape.reply(query)))
        for number, name in enumerate(("the first table", "the second table", "the last table")):
            place = -1 if number == 2 else number
            for query in _OF_TABLES:
                yield Strategy(
                    query.format(f"({name})"), "program", partial(_query, query, place, shape)
                )


def _shown(command: str) -> str:
    """Return a command with words in the place of files, as the name of a strategy."""
    return command.format("(the first file)", "(the last file)", "(the file to be written)")


def _command(command: str, shape: ReferenceShape, asked: SeenPrompt) -> str | None:
    """Return a command with the files of a prompt; None where it has none."""
    files = _files(shape, asked)
    needed = any(f"{{{number}}}" in command for number in range(3))
    if needed and files is None:
        return None
    return shape.reply(command.format(*(files or ("", "", ""))))


def _files(shape: ReferenceShape, asked: SeenPrompt) -> tuple[str, str, str] | None:
    """Return the first file of a prompt, the last one, and the one to be written."""
    names = [*asked.files, *shape.targets]
    if not names:
        return None
    others = [name for name in names if name not in shape.targets] or names
    return others[0], others[-1], (shape.targets or names[-1:])[0]


def _quotation(shape: ReferenceShape, asked: SeenPrompt) -> str | None:
    """Return a command that writes what the prompt quotes."""
    files = _files(shape, asked)
    if files is None or not asked.quoted:
        return None
    return shape.reply(f"echo '{asked.quoted[-1]}' > {files[2]}")


def _query(query: str, place: int, shape: ReferenceShape, asked: SeenPrompt) -> str | None:
    """Return a query of one of the tables of a prompt; None where there are too few."""
    tables = asked.tables
    if not -len(tables) <= place < len(tables):
        return None
    return shape.reply(query.format(tables[place]))
