"""Begin or continue an evaluation; what needs an extra is imported here, late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core import MissingExtraError
from grpo_core.api.calls import StopRequest
from grpo_core.api.settings import RunConfig
from grpo_core.api.verify import Sources
from grpo_core.plugins.versions import check_versions
from grpo_evals.types import EvaluationSettings

if TYPE_CHECKING:
    from grpo_evals.evaluation import EndpointEvaluation

SUBJECT = "grpo eval"
"""What messages call the evaluation."""


def open_evaluation(
    config: RunConfig,
    sources: Sources,
    settings: EvaluationSettings,
    *,
    out: Path | None,
    stop: StopRequest,
) -> EndpointEvaluation:
    """Return an evaluation that is ready to run, new or continued.

    Args:
        config: the settings of tasks, sampling and verification.
        sources: the environments of `config`.
        settings: the endpoint, and how it is asked.
        out: its folder; None for a new one, runs/eval-MODEL-DATE-TIME.
        stop: after a request to stop, no attempt begins.

    Raises:
        MissingExtraError: a package is not installed.
        ConfigError: the folder cannot be used, or holds an evaluation with other settings.
    """
    check_versions("grpo eval --endpoint", "judge")
    try:
        from grpo_core.calls.api_client import check_connections
        from grpo_evals.evaluation import EndpointEvaluation, identity
        from grpo_evals.folder import EvalFolder
    except ModuleNotFoundError as error:
        raise MissingExtraError("grpo eval --endpoint", "judge", package=error.name or "") from None
    check_connections(SUBJECT)
    folder = EvalFolder(
        out,
        identity(config, sources, settings),
        name=f"eval-{settings.model.name}",
        tags=settings.model.thought_tags,
    )
    return EndpointEvaluation(config, sources, settings, folder=folder, stop=stop)
