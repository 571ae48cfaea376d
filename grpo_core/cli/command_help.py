"""Read what a command does from the source of its module, without importing the module."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


def source_file(module: str) -> Path | None:
    """Return the file of a module without importing it or its package; None if there is none.

    Args:
        module: dotted name of the module. Packages with an `__init__.py` of their own code are
            found by their folders, since `find_spec` would import every package above a module.
    """
    top, *parts = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not parts:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or ():
        base = Path(folder, *parts)
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                return file
        if not Path(folder).is_dir():  # in an archive, which nothing here opens
            return base
    return None


def help_line(file: Path, name: str) -> str:
    """Return the first paragraph of a command's docstring as one line; "" if it has none.

    Args:
        file: the source of the command's module.
        name: the last word of the command.

    Raises:
        OSError: the file cannot be read.
        SyntaxError: it is not Python.
        ValueError: it holds null bytes or is not UTF-8.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts, which are its author's business
        tree = ast.parse(file.read_bytes() if file.suffix == ".py" else b"")
    for function, decorator in _decorated(tree):
        keywords = {keyword.arg: _text(keyword.value) for keyword in decorator.keywords}
        own_name = keywords.get("name") or (_text(decorator.args[0]) if decorator.args else "")
        if (own_name or function.name.rstrip("_").replace("_", "-").lower()) == name:
            text = keywords.get("help") or ast.get_docstring(function) or ""
            return " ".join(text.split("\n\n")[0].split())
    return ""


def _decorated(
    tree: ast.Module,
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.Call]]:
    """Yield each function of a module with its decorator `@app.command(...)`."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "app.command":
                    yield node, decorator


def _text(node: ast.expr) -> str:
    """Return the text that an expression is, also one of several joined pieces; else ""."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
