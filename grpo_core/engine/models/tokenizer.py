"""Load a tokenizer, and try it before it is used."""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers

from grpo_core.calls.threads import start_in_thread
from grpo_core.config.model_files import check_files, read_json
from grpo_core.engine.models import guarded
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.quiet import quiet_loading
from grpo_core.engine.models.source import (
    ModelSource,
    loading_arguments,
    local_folder,
)
from grpo_core.protocol.errors import UserError

TOKENIZER = "tokenizer.json"

TOKENIZER_FILES = (TOKENIZER, "tokenizer.model", "tokenizer_config.json", "vocab.json")

_VOCABULARIES = (
    *("tokenizer*", "vocab*", "merges*", "*.model", "spiece*", "*.tiktoken", "tekken.json"),
    *("*.bpe", "*.spm", "*.py"),
)
"""Names of the files of tokenizers, of which a model has one at least."""
SETTINGS_OF_TOKENIZERS = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "processor_config.json",
)


def load_tokenizer(source: ModelSource) -> transformers.PreTrainedTokenizerBase:
    """Return the tokenizer that was saved with the adapter, else that of the model.

    The end token is used for padding if the tokenizer has no padding token.
    """
    arguments = loading_arguments(source)
    with loading_errors(source.name, "loaded as a tokenizer"):
        folder, is_of_adapter = tokenizer_folder(source)
        if is_of_adapter:
            arguments.pop("gguf_file", None)
        check_files(folder)
        if source.gguf_file is None and not any(
            next(folder.glob(pattern), None) for pattern in _VOCABULARIES
        ):
            raise _no_tokenizer(source, folder)
        for name in SETTINGS_OF_TOKENIZERS:
            if (folder / name).is_file():
                read_json(folder / name)
        _check_tokenizer(folder / TOKENIZER)
        try:
            with quiet_loading():
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **arguments)
        except ValueError as error:
            if "backend tokenizer" in str(error):  # there is a tokenizer_config.json alone
                raise _no_tokenizer(source, folder) from error
            raise
        if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):
            raise _no_tokenizer(source, folder)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _no_tokenizer(source: ModelSource, folder: Path) -> UserError:
    """Return the error about a folder without a tokenizer."""
    return UserError(
        f"model {source.name!r} has no tokenizer: {folder} has no {TOKENIZER} and no other file "
        "with a vocabulary; copy the tokenizer's files of the model that it was made from"
    )


def stored_bytes(tokenizer: Any) -> int:
    """Return about how many bytes the files of a tokenizer have when it is saved."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return len(backend.to_str(pretty=True).encode())
    files = [Path(path) for path in (getattr(tokenizer, "vocab_file", None),) if path]
    return sum(path.stat().st_size for path in files if path.is_file())


def tokenizer_folder(source: ModelSource) -> tuple[Path, bool]:
    """Return the folder that has the tokenizer, and whether it is the adapter's."""
    if source.adapter_path is not None and any(
        (Path(source.adapter_path) / file).is_file() for file in TOKENIZER_FILES
    ):
        return Path(source.adapter_path), True
    return Path(local_folder(source)), False


def _check_tokenizer(path: Path) -> None:
    """Raise UserError if a tokenizer.json fails, or takes too long with some text."""
    if path.is_file():
        try:
            trial_of(path).result()
        except guarded.TrialError as error:
            raise UserError(
                f"the tokenizer in {path} cannot be used: {error}; get the file again, or take "
                "another model"
            ) from error


def trial_of(path: Path) -> Future[None]:
    """Return the trial of a tokenizer.json, which begins at once and goes on beside the loading."""
    status = path.stat()
    return _begin_trial(path, (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=4)
def _begin_trial(path: Path, state: tuple[int, int]) -> Future[None]:
    """Begin a trial; the state of the file tells when to try it again."""
    trial: Future[None] = Future()

    def run() -> None:
        try:
            guarded.try_tokenizer(path)
            trial.set_result(None)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the trial raises it
            trial.set_exception(error)

    start_in_thread(run, name="grpo tokenizer")
    return trial
