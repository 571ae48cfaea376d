"""Bundles the files of `inside` into one text, for the Python of a jail (`python3 -c`).

So a jail has no files of this package on its disk, where a program could read them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

PACKAGE = "grpo_sandbox.inside"
MODULES = (
    *("values", "filter", "frames", "watch", "places", "call", "commands"),
    *("forward", "bridge", "supervisor"),
)
"""In the order of their imports."""
_LOADER = """
import json, sys, types
for name, text in json.loads(sys.argv[1]):
    module = sys.modules[name] = types.ModuleType(name)
    if text is None:
        module.__path__ = []
    else:
        exec(compile(text, name, "exec"), module.__dict__)
settings = json.loads(sys.argv[2])
sys.argv[1:] = []
sys.modules["%s.supervisor"].main(settings)
"""


def command(python: str, settings: dict[str, Any]) -> list[str]:
    """Return the command line that starts a supervisor with these settings.

    Args:
        python: The interpreter's name or path inside the jail.
        settings: See `inside.supervisor.main`.
    """
    return [python, "-I", "-S", "-c", _LOADER % PACKAGE, _texts(), json.dumps(settings)]


@functools.cache
def _texts() -> str:
    folder = Path(__file__).parent / "inside"
    outer = PACKAGE.split(".")
    packages = [(".".join(outer[: depth + 1]), None) for depth in range(len(outer))]
    modules = [
        (f"{PACKAGE}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8"))
        for name in MODULES
    ]
    return json.dumps([*packages, *modules])
