"""A full disk by its own name, whichever library was writing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from safetensors import SafetensorError

_TORCH_WORDS = ("write", "iostream", "inline_container", "PytorchStreamWriter", "unexpected pos")
"""What torch.save says of a file that it could not write; a device out of memory is another matter."""


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Turn what safetensors and torch.save say of a failed write in the block into OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error).strip()) from error
    except RuntimeError as error:
        if not any(word in str(error) for word in _TORCH_WORDS):
            raise
        raise OSError("not all of it could be written") from error
