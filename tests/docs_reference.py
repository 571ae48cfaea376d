"""Tables of what authors implement and call, from the docstrings of the code.

A page asks for a table by a line such as `<!-- generated: fields grpo_core.protocol.types:Task -->`;
tests/docs_tables.py writes it. The sources are read and not imported.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = [ROOT, *(ROOT / name for name in ("environments", "plugins", "sandbox"))]
_SECTIONS = ("Args:", "Returns:", "Raises:")
_MARKED = re.compile(
    r"Annotated\[(\w+(?:\[[\w, ]+\])?), (?:Harmless|NeedsConsent|Names|SettingsOf\([^)]*\))\]"
)
"""A type with a mark for those who ask for consent, which is no part of the type."""


def reference_rows(directive: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and rows of a table.

    Args:
        directive: what to list and where it is: "fields MODULE:CLASS", "methods MODULE:CLASS",
            "functions MODULE" or "registry MODULE:NAME", the functions in a dictionary by name.
    """
    what, _, place = directive.partition(" ")
    module, _, name = place.partition(":")
    path = f"{module.replace('.', '/')}.py"
    (file,) = [root / path for root in SOURCE_ROOTS if (root / path).is_file()]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if what == "fields":
        return _fields(_class(tree, name))
    if what == "methods":
        return ("method", "meaning"), _methods(_class(tree, name))
    if what == "functions":
        return ("function", "meaning"), _with_constants(_functions(tree.body), tree)
    if what == "registry":
        return ("name", "meaning"), _registry(tree, name)
    raise ValueError(f"{directive!r} asks for no table")


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return found


def _fields(node: ast.ClassDef) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a row for each public field: its name, type, default and docstring."""
    rows = []
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        name = field.target.id
        if name.startswith("_"):
            continue
        kind = re.sub(r"^ClassVar\[(.*)\]$", r"\1", _source(field.annotation))
        kind = _MARKED.sub(r"\1", kind)
        meaning = _docstring_of(after)
        assert meaning, f"{node.name}.{name} has no docstring"
        rows.append((f"`{name}`", f"`{kind}`", _default(field.value), meaning))
    return ("field", "type", "default", "meaning"), rows


def _default(value: ast.expr | None) -> str:
    """Return a default as it reads in the table: nothing where a value has to be given."""
    if value is None:
        return ""
    text = _source(value)
    made = re.search(r"default_factory=(\w+)", text)
    plain = re.search(r"default=([^,)]+)", text)
    names = {"dict": "{}", "list": "[]"}
    return f"`{names[made[1]] if made else plain[1] if plain else text}`"


def _methods(node: ast.ClassDef) -> list[tuple[str, ...]]:
    """Return a row for the constructor, if it is written out, and for each public method."""
    special = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    rows = []
    if "__init__" in special and "Args:" in (text := ast.get_docstring(node) or ""):
        arguments = _signature(special["__init__"]).removeprefix("__init__")
        rows.append((f"`{node.name}{arguments}`", _prose(text)))
    if "__call__" in special:
        arguments = _signature(special["__call__"]).removeprefix("__call__")
        meaning = _prose(ast.get_docstring(special["__call__"]) or "")
        rows.append((f"`{node.name.lower()}{arguments}`", meaning))
    return rows + _functions(node.body)


def _with_constants(rows: list[tuple[str, ...]], tree: ast.Module) -> list[tuple[str, ...]]:
    """Return the rows with the numbers of the module in place of their names, in signatures."""
    numbers = {
        _source(node.targets[0]): _source(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }

    def filled(signature: str) -> str:
        return re.sub(r"(?<== )\w+", lambda name: numbers.get(name[0], name[0]), signature)

    return [(filled(signature), *rest) for signature, *rest in rows]


def _functions(body: Sequence[ast.stmt]) -> list[tuple[str, ...]]:
    """Return a row for each public function: its signature, and what it does."""
    rows = []
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        meaning = _prose(ast.get_docstring(node) or "")
        assert meaning, f"{node.name} has no docstring"
        rows.append((f"`{_signature(node)}`", meaning))
    return rows


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = {_source(decorator) for decorator in node.decorator_list}
    if "property" in decorators:
        return node.name
    arguments = re.sub(r"^(self|cls)(, |$)", "", _source(node.args))
    arguments = re.sub(r"(: [^=]+?)=", r"\1 = ", arguments)
    returns = (
        "" if node.returns is None or _source(node.returns) == "None" else _source(node.returns)
    )
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{prefix}{node.name}({arguments}){f' -> {returns}' if returns else ''}"


def _registry(tree: ast.Module, name: str) -> list[tuple[str, ...]]:
    """Return a row for each function of the dictionary `name` that the module defines."""
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and _source(node.target) == name
    ]
    documented = {
        node.name: _prose(ast.get_docstring(node) or "")
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    if isinstance(value, ast.DictComp):  # of functions by their names
        (functions,) = (part.iter for part in value.generators)
        assert isinstance(functions, ast.Tuple)
        return [(f"`{_source(node)}`", documented[_source(node)]) for node in functions.elts]
    assert isinstance(value, ast.Dict)
    return [
        (f"`{ast.literal_eval(key)}`", documented[_source(function)])
        for key, function in zip(value.keys, value.values, strict=True)
        if key is not None
    ]


def _docstring_of(node: ast.stmt | None) -> str:
    """Return the text of a statement that is only a string: the docstring of the field before."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return _prose(inspect.cleandoc(str(node.value.value)))
    return ""


def _prose(docstring: str) -> str:
    """Return a docstring as one line of Markdown, with its arguments by name."""
    text = " ".join(" ".join(_paragraphs(docstring)).split()).replace("```", "three backticks")
    pieces = text.split("`")  # every second one is code, in which nothing is escaped
    return "`".join(
        piece if number % 2 else re.sub(r"<(?=[\w/])", r"\\<", piece)
        for number, piece in enumerate(pieces)
    )


def _paragraphs(docstring: str) -> Iterator[str]:
    section = ""
    for line in docstring.splitlines():
        if line.strip() in _SECTIONS and not line.startswith(" "):
            section = line.strip()
            yield "Raises" if section == "Raises:" else "Returns:" if section == "Returns:" else ""
            continue
        named = re.fullmatch(r"    ([A-Za-z_*]+): (.*)", line)
        if section in ("Args:", "Raises:") and named:
            text = named[2][:1].upper() + named[2][1:] if section == "Args:" else named[2]
            yield f"`{named[1]}`: {text}"
        else:
            yield line


def _source(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')
