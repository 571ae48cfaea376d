"""Save and load atomic checkpoints: everything that the next step depends on."""

from __future__ import annotations

import json
import os
import random
import re
import zipfile
from collections.abc import Mapping
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
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.sharding import like, optimizer_state_like
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import remove_leftovers, whole_folder, write_whole
from grpo_core.runs.files import names_in, open_to_read
from grpo_core.runs.folder import is_inner_folder
from grpo_core.runs.lines import unreadable, writing
from grpo_core.runs.seal import (
    FORMAT,
    DamagedError,
    check_files,
    check_format,
    file_digests,
    read_sealed,
    seal,
)
from grpo_core.train.update.optimizer import load_optimizer, load_schedule
from grpo_core.train.update.updater import Updater

PREFIX = "step-"
"""Start of the name of a checkpoint folder; the step follows."""
PROGRESS = "progress.json"
"""File of what a checkpoint records of the run."""
_NAME = re.compile(rf"{PREFIX}[0-9]{{1,18}}")


@dataclass(frozen=True, slots=True)
class RandomStates:
    """Holds the states of the global generators, which verifiers and dropout may use."""

    torch: Tensor
    cuda: list[Tensor]
    python: Any
    numpy: list[Any]

    @classmethod
    def now(cls) -> RandomStates:
        """Return the present states."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        name, keys, position, has_gauss, cached = np.random.get_state()
        return cls(
            torch.get_rng_state(),
            cuda,
            random.getstate(),
            [name, np.asarray(keys).tolist(), position, has_gauss, cached],
        )

    def restore(self) -> None:
        """Set the global generators to these states."""
        torch.set_rng_state(self.torch)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        name, keys, *rest = self.numpy
        # The global generator: a verifier may use it.
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    weights: dict[str, Tensor],
    optimizer: dict[str, Any],
    policy: Policy,
    updater: Updater,
    states: RandomStates,
    more: dict[str, Any],
) -> Path:
    """Write `folder`/step-N after step N, completely or not at all.

    Args:
        weights: the trainable weights by name, gathered from all processes.
        optimizer: the optimizer's state dict, gathered from all processes.
        states: of the random generators after step N, which a failed step N + 1 may have changed.
        more: further values to restore, as JSON.
    """
    final = folder / f"{PREFIX}{step:06d}"
    if final in checkpoints(folder):
        return final
    remove_leftovers(folder, f".{PREFIX}")  # of a run that was killed during a save
    with writing(final), as_os_error(), whole_folder(final) as partial:
        _save_tensors(weights, partial / "trainable.safetensors")
        if reference := policy.reference.weights():
            _save_tensors(reference, partial / "reference.safetensors")
        scaler = updater.accelerator.scaler
        state = {
            "optimizer": optimizer,
            "scaler": None if scaler is None else scaler.state_dict(),
            "torch_rng": states.torch,
            "cuda_rng": states.cuda,
        }
        torch.save(state, partial / "state.pt")
        progress = {
            "format": FORMAT,
            "files": file_digests(partial),
            "step": step,
            **more,
            "skipped": updater.skipped,
            "beta": updater.beta,
            "optimizer": updater.config.optimizer.name,
            "python_rng": states.python,
            "numpy_rng": states.numpy,
        }
        write_whole(partial / PROGRESS, json.dumps(seal(progress)))
    return final


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)


def record_settings(path: Path, *, updater: Updater, more: dict[str, Any]) -> None:
    """Record in a checkpoint the present settings, with which the run was resumed.

    Args:
        more: as for `save_checkpoint`.
    """
    progress = saved_progress(path)
    progress |= {"optimizer": saved_optimizer_name(progress), "beta": updater.beta, **more}
    with writing(path):
        write_whole(path / PROGRESS, json.dumps(seal(progress)))


def checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, oldest first; some may be damaged (see `check_checkpoint`).

    Raises:
        ConfigError: the folder or a checkpoint is a link, or the folder cannot be read.
    """
    if not is_inner_folder(folder):
        return []
    try:
        names = [name for name in names_in(folder) if _NAME.fullmatch(name)]
    except OSError as error:
        raise ConfigError(unreadable(folder, error)) from None
    names.sort(key=lambda name: int(name.removeprefix(PREFIX)))
    return [path for path in map(folder.joinpath, names) if is_inner_folder(path)]


def check_checkpoint(path: Path) -> dict[str, Any]:
    """Return the progress of a checkpoint after checking that all its files are as they were
    written.

    Raises:
        DamagedError: a file is not.
        ConfigError: a newer version wrote it.
    """
    progress = read_sealed(path / PROGRESS)
    check_format(path, progress)
    if missing := {"step", "config"} - progress.keys():
        raise DamagedError(f"{PROGRESS} lacks {', '.join(sorted(missing))}")
    if type(progress["step"]) is not int or not isinstance(progress["config"], dict):
        raise DamagedError(f"{PROGRESS} names no step or no settings")
    if progress.get("format", 1) > 1 and "files" not in progress:
        raise DamagedError(f"{PROGRESS} lacks the digests of its files")
    check_files(path, progress.get("files", {}))
    return progress


def saved_progress(path: Path) -> dict[str, Any]:
    """Return what a checkpoint records of the run.

    That is the step, the settings, and the argument `more` of `save_checkpoint`.
    """
    try:
        return read_sealed(path / PROGRESS)
    except DamagedError as error:
        raise ConfigError(_damage_message(path, str(error))) from None


def _damage_message(path: Path, reason: str) -> str:
    """Return the message for a damaged checkpoint."""
    return (
        f"the checkpoint {path} is damaged: {reason}; restore it from a copy, or continue from "
        "another one: --from step-N or --from start"
    )


def _read_tensors(
    path: Path, policy: Policy
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return the weights, the reference, which may be empty, and the state of a checkpoint.

    Checkpoints of format 1 have no digests, so damage shows only when they are read.

    Raises:
        ConfigError: a file is damaged.
    """
    reference = path / "reference.safetensors"
    try:
        return (
            _load_tensors(path / "trainable.safetensors"),
            _load_tensors(reference)
            if policy.reference.weights() and os.path.lexists(reference)
            else {},
            _load_state(path / "state.pt"),
        )
    except (
        OSError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        KeyError,
        EOFError,
        SafetensorError,
        UnpicklingError,
    ) as error:
        raise ConfigError(_damage_message(path, describe(error).splitlines()[0])) from None


def _load_tensors(path: Path) -> dict[str, Tensor]:
    open_to_read(path).close()  # a link or a pipe is refused
    tensors: dict[str, Tensor] = load_file(path)
    return tensors


def _load_state(path: Path) -> dict[str, Any]:
    """Return what torch.save wrote, which compresses nothing: what is compressed is not read."""
    with open_to_read(path) as file:
        with zipfile.ZipFile(file) as archive:
            if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
                raise ValueError(f"{path.name} is compressed, as no checkpoint is")
        file.seek(0)
        state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return state


def load_checkpoint(path: Path, *, policy: Policy, updater: Updater) -> dict[str, Any]:
    """Restore weights, optimizer, schedule and random states from a checkpoint.

    Learned values come from the checkpoint, configured ones from the present settings: with the
    same settings nothing differs by a bit, with others the next step already uses the new rate,
    decay, plan and beta. Another optimizer begins without running means. A reference that follows
    the policy only from here on begins as the model was before training, not as the present policy.

    Returns:
        The progress: the step that was done last, and the argument `more` of `save_checkpoint`.

    Raises:
        ConfigError: the checkpoint is damaged or does not fit the model and adapter.
    """
    weights, reference, state = _read_tensors(path, policy)
    progress = saved_progress(path)
    parameters = dict(policy.trainable())
    if weights.keys() != parameters.keys() or any(
        weights[name].shape != parameters[name].shape for name in weights
    ):
        raise ConfigError(
            f"{path} does not fit this model and adapter; resume with the settings of the run's "
            "config.json"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(parameter, weights[name]))
        for name, tensor in reference.items():
            policy.reference.weights()[name].copy_(tensor)
    if saved_optimizer_name(progress) == updater.config.optimizer.name:
        load_optimizer(
            updater.optimizer, optimizer_state_like(updater.parameters, state["optimizer"])
        )
    load_schedule(updater.schedule, done=progress["step"] * updater.steps_per_batch)
    if state["scaler"] is not None and updater.accelerator.scaler is not None:
        updater.accelerator.scaler.load_state_dict(state["scaler"])
    updater.skipped = progress["skipped"]
    # Adaptation towards kl.target may have moved beta since the start of the run.
    if progress["config"]["kl"]["beta"] == updater.config.kl.beta:
        updater.beta = progress["beta"]
    version, generator_state, gauss = progress["python_rng"]
    RandomStates(
        state["torch_rng"],
        state["cuda_rng"],
        (version, tuple(generator_state), gauss),
        progress["numpy_rng"],
    ).restore()
    return progress


def saved_optimizer_name(progress: dict[str, Any]) -> str:
    """Return the name of the optimizer whose running means a checkpoint holds."""
    return str(progress.get("optimizer", progress["config"]["optimizer"]["name"]))
