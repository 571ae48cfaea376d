"""Load weights with transformers, without its progress bars and advice.

A tensor that the files do not have is an error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from logging import getLogger
from typing import Any

import transformers
from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

_BITSANDBYTES = getLogger("bitsandbytes")


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Show no progress bars, no log messages below errors and no deprecation warnings of libraries.

    The user's own settings are restored afterwards.
    """
    verbosity, hub_verbosity, level, bars_enabled = (
        logging.get_verbosity(),
        hub_logging.get_verbosity(),
        _BITSANDBYTES.level,
        logging.is_progress_bar_enabled(),
    )
    # peft imports bitsandbytes, which warns of a missing kernel that nothing here uses.
    _BITSANDBYTES.setLevel("ERROR")
    logging.set_verbosity(logging.ERROR)
    hub_logging.set_verbosity(logging.ERROR)
    logging.disable_progress_bar()  # also those of the hub's client
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", module=r"torch\._weights_only_unpickler")
            yield
    finally:
        _BITSANDBYTES.setLevel(level)
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars_enabled:
            logging.enable_progress_bar()


def load_whole(kind: Any, folder: str, **arguments: Any) -> transformers.PreTrainedModel:
    """Return a model whose every weight comes from `folder`.

    transformers itself fills gaps with random numbers and a warning.

    Args:
        kind: transformers' class, such as AutoModelForCausalLM.

    Raises:
        ValueError: the files lack some of the tensors.
    """
    with quiet_loading():
        model, info = kind.from_pretrained(folder, output_loading_info=True, **arguments)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"its files lack {len(missing)} of its tensors, for example {missing[0]}")
    return model
