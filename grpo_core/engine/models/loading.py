"""Turn every failure that a model folder can cause into one line for the user."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator

from grpo_core.calls.isolation import clip, reason
from grpo_core.protocol.errors import GrpoError, UserError

MAX_REASON = 600
"""The most characters of a library's message."""


@contextlib.contextmanager
def loading_errors(name: str, action: str) -> Iterator[None]:
    """Turn what libraries raise while they load a model into a UserError.

    The libraries document no set of errors for damaged files. The original error is its cause.

    Args:
        name: of the model, as the user wrote it.
        action: what cannot be done with it, such as "loaded as a tokenizer".

    Raises:
        UserError: something failed; errors of the SDK are passed on as they are.
    """
    try:
        yield
    except (GrpoError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise UserError(_message(name, action, error)) from error


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust has given up, which is no Exception."""
    return type(error).__name__ == "PanicException"


def _message(name: str, action: str, error: BaseException) -> str:
    if "trust_remote_code" in str(error):
        return (
            f"model {name!r} comes with its own Python code; set "
            "model.trust_remote_code=true if you trust its authors"
        )
    return f"model {name!r} cannot be {action}: {clip(_reason(error), MAX_REASON)}"


def _reason(error: BaseException) -> str:
    """Return what an error of a library says in one line, and what to do."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "it asks for more memory than there is; take a smaller model, or get its files again"
    if isinstance(error, RecursionError):
        return "its files refer to themselves, or are nested too deep; get them again"
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a pickle that is damaged or holds more than tensors, which could run "
            "code; get them as .safetensors"
        )
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, (OSError, ValueError)):
        return lines[0]
    return f"{reason(error)}; its files may be damaged: get them again"
