"""Report a failed write as OSError, whichever library was writing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from safetensors import SafetensorError

_TORCH_WORDS = ("write", "iostream", "inline_container", "PytorchStreamWriter", "unexpected pos")
"""Words in the messages of torch.save when a file cannot be written.

They tell it apart from other RuntimeErrors, such as a device out of memory.
"""
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust name an error of the system."""


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Turn the errors of safetensors, tokenizers and torch.save for a failed write into OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if (number := _NUMBER.search(str(error))) is not None:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        if isinstance(error, SafetensorError):
            raise OSError(str(error).strip()) from error
        if isinstance(error, RuntimeError) and any(word in str(error) for word in _TORCH_WORDS):
            raise OSError("not all of it could be written") from error
        raise
