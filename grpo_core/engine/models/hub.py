"""Fetch models of the Hugging Face hub completely into its cache.

Everything after `resolve` then needs no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from grpo_core.config.modelcache import cached_models, missing_files
from grpo_core.engine.models.progress import LoadingReport
from grpo_core.engine.models.quiet import quiet_loading
from grpo_core.protocol.errors import UserError

ANSWER_SECONDS = 5.0
"""Timeout of the query for the list of files."""
TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
DESCRIPTIONS = ("config.json", "generation_config.json", "*.index.json")
"""Files that say what a model is, without its weights and tokenizer."""


FAMILIES = (
    ("qwen", "Qwen"),
    ("smollm", "HuggingFaceTB"),
    ("llama", "meta-llama"),
    ("meta-llama", "meta-llama"),
    ("gemma", "google"),
    ("mistral", "mistralai"),
    ("ministral", "mistralai"),
    ("mixtral", "mistralai"),
    ("phi-", "microsoft"),
    ("olmo", "allenai"),
    ("deepseek", "deepseek-ai"),
    ("granite", "ibm-granite"),
)
"""How the names of a family of models begin, in lower case, and the organisation that publishes it.
"""


class HubUnreachableError(UserError):
    """The hub could not be reached; another source may still have the model."""


class HubRefusedError(UserError):
    """The hub answered that it does not have the model, or not for this user."""


def whole_name(name: str) -> str | None:
    """Return the hub id that `name`, which names no organisation, probably stands for.

    That is a cached model of this name, else one of the organisation that publishes the family.
    The hub is not asked.

    Args:
        name: a model, with @revision or without.
    """
    for cached in cached_models():
        if cached.name.partition("/")[2].lower() == name.lower():
            return cached.name
    for prefix, organisation in FAMILIES:
        if name.lower().startswith(prefix):
            return f"{organisation}/{name}"
    return None


def is_cached(repo: str, revision: str | None) -> bool:
    """Return whether the config and all weights of `repo` are in the hub's cache."""
    try:
        return not missing_files(Path(snapshot(repo, revision)))
    except (LocalEntryNotFoundError, ValueError):
        return False


def has_config(repo: str, revision: str | None) -> bool:
    """Return whether the config of `repo` is in the hub's cache."""
    try:
        return (Path(snapshot(repo, revision)) / "config.json").is_file()
    except (LocalEntryNotFoundError, ValueError):
        return False


def snapshot(repo: str, revision: str | None) -> str:
    """Return the folder of `repo` in the hub's cache; never use the network."""
    return huggingface_hub.snapshot_download(
        repo, revision=revision, local_files_only=True, allow_patterns=["config.json"]
    )


def fetch(
    repo: str,
    revision: str | None,
    *,
    code: bool,
    report: LoadingReport,
    only: Sequence[str] = (),
) -> None:
    """Download `repo` into the hub's cache.

    Weights come as safetensors where the repository has them.

    Args:
        revision: branch, tag or commit; None for the default.
        code: also fetch the repository's Python files.
        report: shows the progress.
        only: patterns of the files to fetch, instead of all that a model needs.

    Raises:
        HubUnreachableError: the hub cannot be reached, or the download broke off.
        HubRefusedError: the hub does not have the model, or not for this user.
    """
    sizes = _file_sizes(repo, revision)
    weights = (
        "*.safetensors"
        if any(name.endswith(".safetensors") for name in sizes if "/" not in name)
        else "pytorch_model*.bin"
    )
    patterns = only or [*TEXT_FILES, weights, *(["*.py"] if code else [])]
    file_names = [
        name
        for name in sizes
        if "/" not in name and any(Path(name).match(pattern) for pattern in patterns)
    ]
    try:
        with (
            quiet_loading(),
            report.step(
                f"Fetching {repo} from the hub",
                folder=Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}",
                total_bytes=sum(sizes[name] for name in file_names),
            ),
        ):
            huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=file_names)
    except Exception as error:  # see _file_sizes
        raise HubUnreachableError(
            f"the download of {repo!r} from the hub broke off ({_root_cause(error)}); run again "
            "to continue it"
        ) from error


def _file_sizes(repo: str, revision: str | None) -> dict[str, int]:
    """Return the size in bytes of each file of `repo`, by its name.

    The hub is asked without retries, so that an unreachable hub is known within seconds.
    """
    model_name = repo if revision is None else f"{repo}@{revision}"
    if constants.HF_HUB_OFFLINE:
        raise HubUnreachableError(
            f"model {model_name!r} is not cached and HF_HUB_OFFLINE is set; unset it, or pass a "
            "model folder"
        )
    try:
        info = huggingface_hub.HfApi().model_info(
            repo, revision=revision, timeout=ANSWER_SECONDS, files_metadata=True
        )
    except GatedRepoError as error:
        raise HubRefusedError(
            f"model {model_name!r} is gated; accept its licence on the hub and set HF_TOKEN"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise HubRefusedError(
            f"the hub has no model {model_name!r}, or it is private; check the name, or set "
            "HF_TOKEN"
        ) from error
    except Exception as error:  # of the client, its HTTP library or the system: all mean the same
        raise HubUnreachableError(
            f"model {model_name!r} is not cached and the hub cannot be reached "
            f"({_root_cause(error)}); connect once, or pass a model folder"
        ) from error
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _root_cause(error: BaseException) -> str:
    """Return the type and first line of the error that started the chain of causes."""
    while error.__cause__ is not None:  # the client wraps "no such host" in other advice
        error = error.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0]
