"""A full disk by its own name, whichever library was writing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from safetensors import SafetensorError


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """safetensors and torch.save report a failed write as errors of their own."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error).strip()) from error
    except RuntimeError as error:
        if "write" not in str(error) and "iostream" not in str(error):  # torch's words for it; a device out of memory is another matter
            raise
        raise OSError(str(error).strip()) from error
