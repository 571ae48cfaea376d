"""Loads weights with transformers, without its bars and advice, but never with a tensor that the files do not have."""

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
    """No progress bars, only errors, and no word of what libraries deprecate in one another; the user's own settings afterwards."""
    verbosity, hub_verbosity, bars = (
        logging.get_verbosity(),
        hub_logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
    )
    level = _BITSANDBYTES.level
    _BITSANDBYTES.setLevel(
        "ERROR"
    )  # peft imports it, and it asks for a kernel that nothing here uses
    logging.set_verbosity(logging.ERROR)
    hub_logging.set_verbosity(logging.ERROR)
    logging.disable_progress_bar()  # also switches off those of the hub's client
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        _BITSANDBYTES.setLevel(level)
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()


def load_whole(kind: Any, folder: str, **arguments: Any) -> transformers.PreTrainedModel:
    """A model whose every weight comes from `folder`; transformers itself fills gaps with random numbers and a warning.

    kind: transformers' class, such as AutoModelForCausalLM.
    """
    with quiet_loading():
        model, info = kind.from_pretrained(folder, output_loading_info=True, **arguments)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"its files lack {len(missing)} of its tensors, for example {missing[0]}")
    return model
