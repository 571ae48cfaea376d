"""Upload the trained weights of a run to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from grpo_core import ConfigError, UserError
from grpo_core.api.runs import RunFolder, model_card
from grpo_core.cli.imports import needs_training
from grpo_core.cli.output import remark

_LEFT_OUT = ("README.md", "manifest.json")
"""Files that are not uploaded as they are: the card names the repository, and the manifest holds
digests of files before that."""
_CARD_NAME = "README.md"


def check_push(repo: str) -> None:
    """Refuse what cannot be uploaded before anything is computed.

    Args:
        repo: the repository, OWNER/NAME or NAME.

    Raises:
        ConfigError: this is no name of a repository, or there is no token.
        MissingExtraError: huggingface_hub is not installed.
    """
    with needs_training("grpo export --push"):
        import huggingface_hub
        from huggingface_hub import constants
        from huggingface_hub.errors import HFValidationError
    try:
        huggingface_hub.utils.validate_repo_id(repo)
    except HFValidationError:
        raise ConfigError(
            f"--push {repo!r} is no name of a repository; give OWNER/NAME, of letters, digits and "
            "the signs - _ . only"
        ) from None
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("--push needs the hub, and HF_HUB_OFFLINE is set; unset it")
    if huggingface_hub.get_token() is None:
        raise ConfigError(
            "--push needs a token of the hub with the right to write, and none was found; set "
            "HF_TOKEN, or run `hf auth login`"
        )


def push(run: RunFolder, weights: Path | None, repo: str, *, private: bool) -> None:
    """Upload the weights of a run in one commit, with a model card that names the repository.

    Args:
        run: the run whose weights they are.
        weights: the folder with merged weights; None for what the run has saved.
        repo: the repository; it is made if there is none.
        private: whether a repository that is made is private.

    Raises:
        UserError: the hub does not take them, or cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub import CommitOperationAdd

    final = run.path / "final"
    files = {
        name: path
        for name, path in _files_of(final if weights is None else weights).items()
        if name not in _LEFT_OUT
    }
    size = sum(path.stat().st_size for path in files.values()) / 2**20
    remark(f"uploading {len(files) + 1} files, {size:.1f} MiB, to {repo} ...")
    huggingface_hub.utils.disable_progress_bars()
    api = huggingface_hub.HfApi()
    with _hub_errors(repo, api.endpoint):
        made = api.create_repo(repo, private=private or None, exist_ok=True)
        card = model_card(run, final, location=made.repo_id, merged=weights is not None)
        operations = [
            CommitOperationAdd(_CARD_NAME, card.encode()),
            *(CommitOperationAdd(name, path) for name, path in files.items()),
        ]
        api.create_commit(
            made.repo_id, operations, commit_message=f"Upload {run.path.resolve().name} (grpo-core)"
        )
    remark(f"the model is at {made}")


def _files_of(folder: Path) -> dict[str, Path]:
    """Return the files in a folder by their names in the repository.

    Raises:
        ConfigError: one is a link: a run folder may come from a stranger, and a link in it would
            publish a file of this user.
    """
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_symlink():
            raise ConfigError(f"{path} is a link, which is not uploaded; remove it")
    return {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}


@contextmanager
def _hub_errors(repo: str, endpoint: str) -> Iterator[None]:
    """Turn what the client raises into one line.

    Raises:
        UserError: the block failed.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # Those of the HTTP library, which depends on the client's version, and of the system.
    no_answer = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        answer = (error.server_message or str(error)).strip().splitlines()[0]
        advice = {
            401: "set HF_TOKEN to a token that is valid, or run `hf auth login`",
            403: "take a repository of your own, or a token with the right to write: "
            "https://huggingface.co/settings/tokens",
            404: "check its name, and that the token may see it",
        }.get(status, "try again later")
        raise UserError(
            f"the hub does not take {repo!r} (status {status}: {answer}); {advice}"
        ) from error
    except no_answer as error:
        raise UserError(
            f"the hub at {endpoint} cannot be reached ({type(error).__name__}: {error}); check the "
            "network and HF_ENDPOINT, then export again"
        ) from error
    except ValueError as error:  # the hub refuses the card, or its answer is not JSON
        line = " ".join(str(error).split())
        raise UserError(f"the hub at {endpoint} does not take {repo!r}: {line}") from error
