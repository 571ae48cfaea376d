"""The common parts of judges that are models in this process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from grpo_core import Judgement, JudgeRequest
from grpo_judge.unsayable import unsayable

CHUNK_BYTES = 2**20


class ModelConfig(Protocol):
    """The settings that every judge with its own model has; the object is a dataclass."""

    @property
    def model(self) -> str: ...
    @property
    def device(self) -> str: ...


class Frozen:
    """A model in evaluation mode that is never trained, and the single thread that runs it."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        self.device = torch.device(_best_device() if config.device == "auto" else config.device)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.most_tokens = _most_tokens(self.model)
        self._rows = int(self.model.get_input_embeddings().num_embeddings)
        self._config: Any = config
        self._commit = _commit_of(model.config, config.model)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpo-judge")

    async def ask(
        self,
        judge_all: Callable[[list[JudgeRequest]], list[Judgement]],
        requests: Sequence[JudgeRequest],
    ) -> Sequence[Judgement]:
        """Judge the requests in the model's thread, so that the event loop goes on.

        Args:
            judge_all: Judges the requests whose texts a tokenizer can take; `unsayable` decides the
                others.
            requests: The requests.
        """
        decided = [unsayable(request) for request in requests]
        open_requests = [
            request
            for request, judgement in zip(requests, decided, strict=True)
            if judgement is None
        ]
        loop = asyncio.get_running_loop()
        judgements = iter(await loop.run_in_executor(self._thread, judge_all, open_requests))
        return [next(judgements) if judgement is None else judgement for judgement in decided]

    def knows(self, ids: Iterable[int]) -> bool:
        """Return whether the model has an embedding for all these tokens.

        Some tokenizers have more tokens than their model; such a token would fail a whole batch.
        """
        return all(number < self._rows for number in ids)

    def fingerprint(self) -> str:
        """Return a digest of the weights and of the settings other than device and batch size."""
        settings = {
            name: value
            for name, value in asdict(self._config).items()
            if name not in ("device", "batch_size")
        }
        return hashlib.sha256(
            json.dumps([settings, self._commit], sort_keys=True).encode()
        ).hexdigest()[:16]

    def close(self) -> None:
        """End the thread and cancel waiting requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _best_device() -> str:
    return (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )


def _most_tokens(model: Any) -> int:
    """Return the number of tokens that a model has positions for; more would fail a batch."""
    most = getattr(model.config, "max_position_embeddings", None)
    limits = [most] if isinstance(most, int) and most > 0 else []
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:  # as RoBERTa counts them
            limits.append(module.num_embeddings - padding - 1)
    return min(limits, default=sys.maxsize)


def _commit_of(config: Any, model: str) -> str:
    """Return a model's commit on the hub, or a digest of all files of a folder."""
    return getattr(config, "_commit_hash", None) or _digest_folder(Path(model))


def _digest_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
