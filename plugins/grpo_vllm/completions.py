"""Requests as vLLM's completions endpoint takes them, and its answers as completions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from grpo_core import GrpoError
from grpo_core.protocol.sampler import JSON_WHITESPACE, Completion, ModelToSample, Request
from grpo_vllm.client import ServerFailedError

_LARGEST_SEED = 2**63 - 1
_OPTIONS = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
"""What a JSON schema says to the library that follows it."""
SCORED_AT_ONCE = 64
"""Tokens that one request scores; vLLM allows 128."""


def is_narrowed(request: Request) -> bool:
    """Return whether some tokens cannot be drawn, so that the server's log-probs are not ours.

    vLLM gives log-probs among the tokens that may be drawn, and the trainer needs those of the full
    distribution.
    """
    return bool(_narrowing(request)) or request.json_schema is not None


def completion_body(request: Request, model: str, end_ids: frozenset[int]) -> dict[str, Any]:
    """Return the body of a request for a completion by the model or adapter `model`."""
    params, schema = request.params, request.json_schema
    return {
        "model": model,
        "prompt": list(request.prefix),
        "max_tokens": len(request.uniforms),
        "temperature": params.temperature,
        **_narrowing(request),
        **({} if schema is None else {"structured_outputs": {"json": {**_OPTIONS, **schema}}}),
        "seed": request.seed & _LARGEST_SEED,
        "stop": list(params.stop),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,  # a stop string may be one, such as a closing tag
        "spaces_between_special_tokens": False,
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,  # the trainer says which tokens end a completion
        "logprobs": 0,  # of the drawn token alone
        "return_token_ids": True,
    }


def scoring_bodies(
    request: Request, token_ids: Sequence[int], model: str
) -> list[tuple[Sequence[int], dict[str, Any]]]:
    """Return requests for the log-probs of given tokens, each with the tokens that it scores.

    Each token is scored as the next one after those before it, where nothing keeps it from being
    drawn. The server has the texts before them in its cache. Log-probs of a prompt, which take one
    request, are wrong or end the server in vLLM 0.32 where an adapter is used.
    """
    bodies: list[tuple[Sequence[int], dict[str, Any]]] = []
    for start in range(0, len(token_ids), SCORED_AT_ONCE):
        chunk = token_ids[start : start + SCORED_AT_ONCE]
        places = range(start, start + len(chunk))
        body = {
            "model": model,
            "prompt": [[*request.prefix, *token_ids[:place]] for place in places],
            "max_tokens": 1,
            "temperature": request.params.temperature,
            "ignore_eos": True,
            "logprobs": 0,
            "logprob_token_ids": sorted({*chunk}),
            "return_tokens_as_token_ids": True,
        }
        bodies.append((chunk, body))
    return bodies


def read_completion(
    answer: Any, request: Request, model: ModelToSample, version: int
) -> Completion:
    """Return the completion that the server answered, cut after the first token that ends it.

    Raises:
        ServerFailedError: the server gave it up, as it does when it ends.
        GrpoError: the answer holds no tokens or no log-probs.
    """
    try:
        (choice,) = answer["choices"]
        reason = choice["finish_reason"]
        token_ids = [int(token) for token in choice["token_ids"]]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError):
        raise GrpoError(
            f"the vLLM server answered without token ids and log-probs: {str(answer)[:300]}; it "
            "has to be vLLM 0.32 or newer"
        ) from None
    if reason not in ("stop", "length"):
        raise ServerFailedError(f"the completion ended with {reason!r}")
    if len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
        raise GrpoError("the vLLM server's log-probs are not finite; lower optimizer.lr")
    end = _end(token_ids, request.params.stop, model)
    count = len(token_ids) if end is None else end
    finish: Literal["stop", "length"] = "stop" if end is not None or reason == "stop" else "length"
    return Completion(tuple(token_ids[:count]), tuple(logprobs[:count]), finish, version=version)


def read_scores(answer: Any, token_ids: Sequence[int]) -> list[float]:
    """Return the log-probs (T,) of given tokens from the answer to one of `scoring_bodies`."""
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    rows: list[Mapping[str, float]] = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
    return [row[f"token_id:{token}"] for row, token in zip(rows, token_ids, strict=True)]


def with_full_logprobs(completion: Completion, logprobs: Sequence[float]) -> Completion:
    """Return a completion with log-probs under the full distribution instead of the kept one."""
    pairs = zip(logprobs, completion.logprobs, strict=True)
    kept_mass = min((math.exp(full - kept) for full, kept in pairs), default=1.0)
    return Completion(
        completion.token_ids,
        tuple(logprobs),
        completion.finish,
        min(1.0, kept_mass),
        completion.version,
    )


def _narrowing(request: Request) -> dict[str, float]:
    """Return top-p, top-k and min-p where one of them keeps tokens from being drawn."""
    params = request.params
    limits = params.top_p < 1 or params.top_k > 0 or params.min_p > 0
    if params.temperature == 0 or not limits:
        return {}
    return {"top_p": params.top_p, "top_k": params.top_k, "min_p": params.min_p}


def _end(token_ids: Sequence[int], stop: Sequence[str], model: ModelToSample) -> int | None:
    """Return how many tokens there are up to the first that ends the completion; None if none does.

    The text is decoded as the trainer reads it, which may differ from vLLM's reading. A tail is
    enough: n bytes span at most n visible tokens.
    """
    tail = max((len(text.encode()) for text in stop), default=0) + 1
    for count, token in enumerate(token_ids, start=1):
        if token in model.end_ids:
            return count
        if stop:
            text = model.decode(token_ids[max(0, count - tail) : count])
            if any(string in text for string in stop):
                return count
    return None
