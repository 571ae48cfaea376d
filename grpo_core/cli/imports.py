"""Import the packages of the extra "train", which takes seconds, once their versions are right."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from grpo_core.calls.phases import phase
from grpo_core.cli.output import remark
from grpo_core.plugins.versions import check_versions
from grpo_core.protocol.errors import MissingExtraError


@contextmanager
def needs_training(what: str, *, say: Callable[[str], object] = remark) -> Iterator[None]:
    """Say that the extra "train" is missing where an import in the block fails.

    Args:
        what: what needs it.
        say: is told if the import takes long.

    Raises:
        MissingExtraError: a package of the extra is not installed.
        VersionError: a package has a version that is not supported.
    """
    if newer := check_versions(what, "train"):
        remark(newer)
    with (
        nullcontext() if "torch" in sys.modules else _without_collection(),
        phase("importing torch and transformers", say),
    ):
        try:
            yield
        except ModuleNotFoundError as error:
            raise MissingExtraError(what, "train", package=error.name or "") from None


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection in the block, and exempt all objects that exist at its end.

    torch and transformers make a million objects that stay. Python would go through them again and
    again, which took 3 of the 10 seconds of these imports, and later once for each full collection.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
