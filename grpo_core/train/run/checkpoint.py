"""Atomic checkpoints: everything that the next step depends on."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_core.calls.deadline import describe
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import remove_folder, whole_folder, write_whole
from grpo_core.runs.lines import writing
from grpo_core.runs.seal import (
    FORMAT,
    DamagedError,
    check_files,
    check_format,
    file_digests,
    read_sealed,
    seal,
)
from grpo_core.train.models.disk import as_os_error
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.sharding import like, optimizer_state_like, put_together
from grpo_core.train.update.optimizer import load_optimizer, load_schedule
from grpo_core.train.update.updater import Updater

PREFIX = "step-"
PROGRESS = "progress.json"


@dataclass(frozen=True, slots=True)
class Learned:
    """What training has changed; whole, whatever part of it a process keeps."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, policy: Policy, updater: Updater) -> Learned:
        """To be called by all processes."""
        weights = {name: tensor.detach() for name, tensor in policy.trainable()}
        return cls(put_together(weights), put_together(updater.optimizer.state_dict()))


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The states of the global generators, which verifiers and dropout may use."""

    torch: Tensor
    cuda: list[Tensor]
    python: Any
    numpy: list[Any]

    @classmethod
    def now(cls) -> RandomStates:
        """Return those of this moment."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        name, keys, position, has_gauss, cached = np.random.get_state()
        return cls(
            torch.get_rng_state(),
            cuda,
            random.getstate(),
            [name, np.asarray(keys).tolist(), position, has_gauss, cached],
        )


def save_checkpoint(
    folder: Path,
    learned: Learned,
    *,
    step: int,
    policy: Policy,
    updater: Updater,
    states: RandomStates,
    more: dict[str, Any],
    keep: int,
) -> Path:
    """Write `folder`/step-N after step N, whole or not at all, and remove checkpoints beyond `keep`.

    Args:
        states: of the random generators after step N, which a failed step N + 1 may have changed.
        more: what else is wanted back, as JSON.
    """
    final = folder / f"{PREFIX}{step:06d}"
    if final in checkpoints(folder):
        return final
    for leftover in folder.glob(f".{PREFIX}*"):  # of a run that was killed while it saved
        shutil.rmtree(leftover, ignore_errors=True)
    with writing(final), as_os_error(), whole_folder(final) as partial:
        _write(
            partial, learned, step=step, policy=policy, updater=updater, states=states, more=more
        )
    for old in checkpoints(folder)[:-keep]:
        remove_folder(old)
    return final


def _write(
    folder: Path,
    learned: Learned,
    *,
    step: int,
    policy: Policy,
    updater: Updater,
    states: RandomStates,
    more: dict[str, Any],
) -> None:
    weights = {name: tensor.contiguous().cpu() for name, tensor in learned.weights.items()}
    save_file(weights, folder / "trainable.safetensors")
    if reference := policy.reference.weights():
        save_file(
            {name: tensor.contiguous().cpu() for name, tensor in reference.items()},
            folder / "reference.safetensors",
        )
    state = {
        "optimizer": learned.optimizer,
        "scaler": updater.accelerator.scaler.state_dict()
        if updater.accelerator.scaler is not None
        else None,
        "torch_rng": states.torch,
        "cuda_rng": states.cuda,
    }
    torch.save(state, folder / "state.pt")
    progress = {
        "format": FORMAT,
        "files": file_digests(folder),
        "step": step,
        **more,
        "skipped": updater.skipped,
        "beta": updater.beta,
        "optimizer": updater.config.optimizer.name,
        "python_rng": states.python,
        "numpy_rng": states.numpy,
    }
    write_whole(folder / PROGRESS, json.dumps(seal(progress)))


def agree(path: Path, *, updater: Updater, more: dict[str, Any]) -> None:
    """The checkpoint as one of the run with its present settings, which it was resumed with; more: as for `save_checkpoint`."""
    progress = saved_progress(path)
    progress |= {"optimizer": means_of(progress), "beta": updater.beta, **more}
    with writing(path):
        write_whole(path / PROGRESS, json.dumps(seal(progress)))


def checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, oldest first; some may be damaged (see `check_checkpoint`)."""
    paths = [
        path
        for path in folder.glob(f"{PREFIX}*")
        if path.is_dir() and path.name.removeprefix(PREFIX).isdecimal()
    ]
    return sorted(paths, key=lambda path: int(path.name.removeprefix(PREFIX)))


def check_checkpoint(path: Path) -> dict[str, Any]:
    """Return the progress of a checkpoint all of whose files are as they were written.

    Raises:
        DamagedError: one of them is not.
        ConfigError: a newer version wrote it.
    """
    progress = read_sealed(path / PROGRESS)
    check_format(path, progress)
    if missing := {"step", "config"} - progress.keys():
        raise DamagedError(f"{PROGRESS} says nothing of {', '.join(sorted(missing))}")
    if progress.get("format", 1) > 1 and "files" not in progress:
        raise DamagedError(f"{PROGRESS} says nothing of its files")
    check_files(path, progress.get("files", {}))
    return progress


def saved_progress(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says of the run: the step, the settings, and what `save_checkpoint` got as `more`."""
    try:
        return read_sealed(path / PROGRESS)
    except DamagedError as error:
        raise ConfigError(_damaged(path, str(error))) from None


def _damaged(path: Path, reason: str) -> str:
    return f"the checkpoint {path} is damaged: {reason}; restore it from a copy, or go on from another one: --from step-N or --from start"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what libraries say of a damaged file into one message; checkpoints of format 1 have no digests."""
    try:
        yield
    except (
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        EOFError,
        SafetensorError,
        UnpicklingError,
    ) as error:
        raise ConfigError(_damaged(path, describe(error).splitlines()[0])) from None


def load_checkpoint(path: Path, *, policy: Policy, updater: Updater) -> dict[str, Any]:
    """Put everything back; returns the progress: the step that was done last, and what `save_checkpoint` got as `more`.

    What has been learned comes from the checkpoint, what is configured from the present settings: with the same ones nothing differs by a
    bit, with others the next step already uses the new rate, decay, plan and beta. Another optimizer begins without running means. A
    reference that follows the policy only from here on begins as the model was before training, not as the present policy.
    """
    with _readable(path):
        weights = load_file(path / "trainable.safetensors")
        moved = path / "reference.safetensors"
        reference = load_file(moved) if policy.reference.weights() and moved.exists() else {}
        state = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
    progress = saved_progress(path)
    parameters = dict(policy.trainable())
    if weights.keys() != parameters.keys() or any(
        weights[n].shape != parameters[n].shape for n in weights
    ):
        raise ConfigError(
            f"{path} does not fit this model and adapter; resume with the settings of the run's config.json"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(parameter, weights[name]))
        for name, tensor in reference.items():
            policy.reference.weights()[name].copy_(tensor)
    if means_of(progress) == updater.config.optimizer.name:
        load_optimizer(
            updater.optimizer, optimizer_state_like(updater.parameters, state["optimizer"])
        )
    load_schedule(updater.schedule, done=progress["step"] * updater.steps_per_batch)
    if state["scaler"] is not None and updater.accelerator.scaler is not None:
        updater.accelerator.scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["torch_rng"])
    if state["cuda_rng"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    updater.skipped = progress["skipped"]
    if (
        progress["config"]["kl"]["beta"] == updater.config.kl.beta
    ):  # it may have been moved towards kl.target since
        updater.beta = progress["beta"]
    version, internal, gauss = progress["python_rng"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = progress["numpy_rng"]
    np.random.set_state(
        (name, np.array(keys, dtype=np.uint32), *rest)
    )  # the global one: a verifier may use it
    return progress


def means_of(progress: dict[str, Any]) -> str:
    """The name of the optimizer whose running means a checkpoint holds."""
    return str(progress.get("optimizer", progress["config"]["optimizer"]["name"]))
