"""Report a failed write as OSError, whichever library was writing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from safetensors import SafetensorError

_TORCH_WORDS = ("write", "iostream", "inline_container", "PytorchStreamWriter", "unexpected pos")
"""Words in the messages of torch.save when a file cannot be written.

They tell it apart from other RuntimeErrors, such as a device out of memory.
"""


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Turn the errors of safetensors and torch.save for a failed write into OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error).strip()) from error
    except RuntimeError as error:
        if not any(word in str(error) for word in _TORCH_WORDS):
            raise
        raise OSError("not all of it could be written") from error
