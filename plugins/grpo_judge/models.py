"""The common parts of judges that are models in this process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from grpo_core import ConfigError, Judgement, JudgeRequest
from grpo_core.engine.models.loading import loading_errors
from grpo_judge.replies import note_replies
from grpo_judge.unsayable import unsayable

CHUNK_BYTES = 2**20
T = TypeVar("T")


class FrozenModelConfig(Protocol):
    """The settings that every judge with its own model has; the object is a dataclass."""

    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def device(self) -> str: ...
    @property
    def batch_size(self) -> int: ...


def judge_rest(
    requests: Sequence[JudgeRequest],
    decide: Callable[[JudgeRequest], Judgement | None],
    judge_all: Callable[[list[JudgeRequest]], list[Judgement]],
) -> list[Judgement]:
    """Return the judgements of requests of which some are decided without a model.

    Args:
        requests: The requests.
        decide: Returns the judgement of a request that needs no model, or None.
        judge_all: Judges the others.
    """
    decided = [decide(request) for request in requests]
    open_requests = [
        request for request, judgement in zip(requests, decided, strict=True) if judgement is None
    ]
    judgements = iter(judge_all(open_requests))
    return [next(judgements) if judgement is None else judgement for judgement in decided]


class Frozen:
    """A model in evaluation mode that is never trained, and the single thread that runs it."""

    def __init__(self, model: Any, config: FrozenModelConfig) -> None:
        self.device = torch.device(_best_device() if config.device == "auto" else config.device)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.most_tokens = _most_tokens(self.model)
        self._rows = int(self.model.get_input_embeddings().num_embeddings)
        self._config: Any = config
        self._commit = _commit_of(model.config, config.model)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpo-judge")

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs in the model's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

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


class FrozenJudge(ABC):
    """A `grpo_core.Judge` with a model of its own; a subclass loads it and judges with it."""

    name: ClassVar[str]
    """The judge's name, for messages."""
    config: FrozenModelConfig
    _frozen: Frozen

    @abstractmethod
    def _judge_all(self, requests: list[JudgeRequest]) -> list[Judgement]:
        """Judge requests whose texts a tokenizer can take; runs in the model's thread."""

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Judge each request; one with a text that no tokenizer can take needs no model."""
        judgements = await self._frozen.run(
            lambda: judge_rest(requests, unsayable, self._judge_all)
        )
        note_replies(self.config.model, requests, judgements)
        return judgements

    def fingerprint(self) -> str:
        """Return a digest of the model and of the settings that scores depend on."""
        return self._frozen.fingerprint()

    async def close(self) -> None:
        """End the model's thread."""
        self._frozen.close()

    def _refuse_settings(self, *numbers: str) -> None:
        """Refuse a config without a model, and one with a number below 1.

        Args:
            numbers: The names of the settings that are at least 1.

        Raises:
            ConfigError: A setting cannot be used.
        """
        if not self.config.model:
            raise ConfigError(
                f"the judge {self.name!r} needs a model; set judges.NAME.settings.model to a "
                "folder or a hub id"
            )
        if any(getattr(self.config, number) < 1 for number in numbers):
            raise ConfigError(
                f"the judge {self.name!r} needs {' and '.join(numbers)} of at least 1"
            )

    def _load(self, auto: Any, fault: str | None = None, **options: Any) -> Any:
        """Return what a class of transformers loads from the model's files.

        Args:
            auto: The class, such as AutoTokenizer.
            fault: What the message says of a model whose files cannot be read; without it, what
                the library says is passed on.
            options: Further options of `from_pretrained`.

        Raises:
            ConfigError: The files cannot be used.
        """
        model = self.config.model
        expected = (OSError, ValueError) if fault else ()
        with loading_errors(model, "loaded as a judge"):
            try:
                return auto.from_pretrained(
                    model, revision=self.config.revision, trust_remote_code=False, **options
                )
            except expected as error:
                raise ConfigError(
                    f"the judge's model {model!r} {fault}: {str(error).splitlines()[0]}"
                ) from error


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
