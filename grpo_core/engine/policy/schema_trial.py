"""Compile a JSON schema in a process of its own first, which may hang, crash or fill its memory.

The native code that compiles schemas cannot be interrupted: for some that are short, such as two
patterns that have to hold at once, it computes for hours.
"""

from __future__ import annotations

import os
import sys

from grpo_core.calls.child import Child
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.sampler import JSON_WHITESPACE, UnsupportedSchemaError

CPU_SECONDS = 3
_WALL_SECONDS = 15.0
"""More than `CPU_SECONDS`, since a busy machine may start the process late."""
_MEMORY_BYTES = 2**30
_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
_READY, _DONE = b"ready", b"done"
_SCRIPT = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES}, {_MEMORY_BYTES}))
except (OSError, ValueError):
    pass
import llguidance
print("{_READY.decode()}", flush=True)
schema = sys.stdin.read()
grammar = llguidance.LLMatcher.grammar_from_json_schema(
    schema, defaults={{"whitespace_pattern": {JSON_WHITESPACE!r}}}
)
matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
matcher.compute_bitmask()
print("{_DONE.decode()}")
"""


def try_schema(text: str) -> None:
    """Compile a schema in another process and forget the result.

    A fault of the schema that the library reports is not raised here: it shows again.

    Raises:
        UnsupportedSchemaError: the process did not get to its end.
        GrpoError: no process can be started.
    """
    environ = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    try:
        with Child([sys.executable, "-I", "-c", _SCRIPT], environ) as child:
            ending = child.communicate(text.encode(), seconds=_WALL_SECONDS)
    except OSError as error:
        raise GrpoError(f"no process can be started to try a JSON schema: {error}") from None
    if _DONE in ending.output or "ValueError" in ending.last_words:
        return
    if _READY not in ending.output and ending.status is not None:
        raise GrpoError(f"the process that tries JSON schemas ended: {ending.last_words}")
    raise UnsupportedSchemaError(
        f"the JSON schema takes more than {CPU_SECONDS} s to compile, or too much memory; simplify "
        "its patterns, allOf and multipleOf"
    )
