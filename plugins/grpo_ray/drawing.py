"""Run a sampler in a Ray actor: the built-in engine, or the sampler of another plugin."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core import GrpoError
from grpo_core.engine.models import pieces
from grpo_core.plugins.services import installed_sampler
from grpo_core.protocol.sampler import (
    ModelToSample,
    Request,
    Sampler,
    SamplingParams,
    UnsupportedSchemaError,
)
from grpo_ray.actor import node_name, node_versions


class RayDrawing:
    """Draw completions with another sampler. Ray makes an actor of it."""

    def __init__(self, description: str) -> None:
        """Take JSON text with the sampler's name and settings and the model; open nothing yet."""
        self._described = json.loads(description)
        self._sampler: Sampler | None = None
        self._version: int | None = None

    async def open(self) -> str:
        """Load the sampler; return JSON text as `Verification.open` does."""
        versions, fault = node_versions(), ""
        differing = "" if versions == self._described["versions"] else versions
        try:
            make = installed_sampler(self._described["sampler"], self._described["settings"])
            self._sampler = make(_model_from(self._described["model"]))
        except GrpoError as error:
            fault = str(error)
        return json.dumps(
            {"node": node_name(), "pid": os.getpid(), "differing": differing, "fault": fault}
        )

    async def sync(self, packed: bytes, is_adapter: bool, version: int) -> None:
        """Take weights, an archive of the files that the trainer saved."""
        assert self._sampler is not None
        await self._sampler.sync(_Received(packed, is_adapter), version)
        self._version = version

    async def generate(self, request: str, version: int) -> str:
        """Return a completion as JSON text, or the field `error` if there is none.

        The field `unsupported` says whether the JSON schema of the request is at fault, and `stale`
        that the weights here are of another version than wanted, as those of an actor that was
        started while others got new ones.
        """
        assert self._sampler is not None
        if version != self._version:
            return json.dumps({"stale": self._version})
        try:
            return json.dumps(asdict(await self._sampler.generate(_request_from(request))))
        except GrpoError as error:
            unsupported = isinstance(error, UnsupportedSchemaError)
            return json.dumps({"error": str(error), "unsupported": unsupported})

    async def rest(self) -> None:
        """Make the sampler leave its device."""
        if self._sampler is not None:
            await self._sampler.rest()

    async def ping(self) -> None:
        """Show that the actor's event loop works."""

    async def close(self) -> None:
        """Close the sampler."""
        if self._sampler is not None:
            await self._sampler.close()


class _Received:
    """Weights that came as an archive (see `grpo_core.protocol.sampler.Weights`)."""

    def __init__(self, packed: bytes, is_adapter: bool) -> None:
        self._packed, self.is_adapter = packed, is_adapter

    async def save(self, folder: Path) -> None:
        await asyncio.to_thread(_unpack, self._packed, folder)


def _unpack(packed: bytes, folder: Path) -> None:
    """Write the files of an archive into a folder, which may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def _request_from(text: str) -> Request:
    """Return the request that `RaySampler` wrote as JSON text."""
    data = json.loads(text)
    params = {**data["params"], "stop": tuple(data["params"]["stop"])}
    prefix = tuple(data.pop("prefix"))
    return Request(**{**data, "prefix": prefix, "params": SamplingParams(**params)})


def _model_from(data: dict[str, Any]) -> ModelToSample:
    """Return the description of the model, whose folder this machine has under the same path."""
    path = Path(data["path"])
    return ModelToSample(
        **{
            **data,
            "path": path,
            "end_ids": frozenset(data["end_ids"]),
            "decode": _decoder(path, data["trust_remote_code"], data["end_ids"]),
        }
    )


def _decoder(
    path: Path, trust_remote_code: bool, end_ids: Sequence[int]
) -> Callable[[Sequence[int]], str]:
    """Return what decodes tokens as the trainer does; the tokenizer is loaded when it is needed."""
    loaded: list[Any] = []

    def decode(token_ids: Sequence[int]) -> str:
        from transformers import AutoTokenizer

        if not loaded:
            loaded.append(AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code))
        return pieces.decode(loaded[0], token_ids, hidden=pieces.hidden_ids(loaded[0], end_ids))

    return decode
