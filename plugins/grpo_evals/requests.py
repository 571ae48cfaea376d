"""Write the requests to an endpoint for the turns of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_evals.chat import Dialogue
from grpo_evals.types import ModelSettings


def request_body(
    settings: ModelSettings, dialogue: Dialogue, *, limit: int, seed: int, tools: Sequence[Any]
) -> dict[str, Any]:
    """Return the fields of a request for the next turn of a dialogue.

    Args:
        settings: which model is asked, and how.
        dialogue: the messages so far.
        limit: most tokens of the turn.
        seed: the seed of the request.
        tools: the descriptions of the tools.
    """
    params = settings.params
    fields = {
        "model": settings.name,
        **dialogue.fields(),
        "max_tokens": limit,
        "temperature": params.temperature,
        "top_p": params.top_p if params.top_p < 1 else None,
        "top_k": params.top_k or None,
        "min_p": params.min_p or None,
        "stop": list(params.stop) or None,
        "seed": seed,
        "tools": list(tools) or None,
        **settings.request,
    }
    return {name: value for name, value in fields.items() if value is not None}
