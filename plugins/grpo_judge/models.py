"""What judges that are models in this process share."""

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

CHUNK = 2**20


class ModelConfig(Protocol):
    """The settings that every judge with a model of its own has; it is a dataclass."""

    @property
    def model(self) -> str: ...
    @property
    def device(self) -> str: ...


class Frozen:
    """A model that is never trained, in evaluation mode, and the one thread that asks it."""

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
        judged: Callable[[list[JudgeRequest]], list[Judgement]],
        requests: Sequence[JudgeRequest],
    ) -> Sequence[Judgement]:
        """Return `judged` of the requests that a tokenizer can take, computed beside the event loop.

        What the others get is decided by `unsayable`.
        """
        refused = [unsayable(request) for request in requests]
        asked = [request for request, why in zip(requests, refused, strict=True) if why is None]
        found = iter(await asyncio.get_running_loop().run_in_executor(self._thread, judged, asked))
        return [next(found) if why is None else why for why in refused]

    def knows(self, ids: Iterable[int]) -> bool:
        """Return whether the model has an embedding for all these tokens.

        Some tokenizers know more tokens than their model; one of those would fail a whole batch.
        """
        return all(number < self._rows for number in ids)

    def fingerprint(self) -> str:
        """Of what decides a score: the weights and the settings, but for where and how many at once."""
        settings = {
            name: value
            for name, value in asdict(self._config).items()
            if name not in ("device", "batch_size")
        }
        return hashlib.sha256(
            json.dumps([settings, self._commit], sort_keys=True).encode()
        ).hexdigest()[:16]

    def close(self) -> None:
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
    """Return how many tokens a model has positions for; more would fail a whole batch."""
    most = getattr(model.config, "max_position_embeddings", None)
    limits = [most] if isinstance(most, int) and most > 0 else []
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:  # as RoBERTa counts them
            limits.append(module.num_embeddings - padding - 1)
    return min(limits, default=sys.maxsize)


def _commit_of(config: Any, model: str) -> str:
    """Of the hub, or a digest of all files of a folder."""
    return getattr(config, "_commit_hash", None) or _digest(Path(model))


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
    return found.hexdigest()
