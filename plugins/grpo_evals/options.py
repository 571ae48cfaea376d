"""Define the options of `grpo eval` for a model behind an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_core.cli.options import (
    AsJson,
    Envs,
    Levels,
    MaxNewTokens,
    Samples,
    Seed,
    Settings,
    Stop,
    Tasks,
    Temperature,
    TopP,
)


def _option(name: str, help: str, **more: Any) -> Any:
    return typer.Option(name, help=help, show_default=False, **more)


EndpointUrl = Annotated[
    str,
    _option(
        "--endpoint",
        "Address of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1; "
        "needs the extra judge.",
        metavar="URL",
    ),
]
ModelName = Annotated[str, _option("--model-name", "The model's name at the endpoint.")]
KeyEnv = Annotated[
    str | None,
    _option(
        "--key-env",
        "The environment variable that holds the key. \\[default: OPENAI_API_KEY]",
        metavar="NAME",
    ),
]
OutFolder = Annotated[
    Path | None,
    _option(
        "--out",
        "Folder of the attempts; one that holds a part of this evaluation is continued. "
        "\\[default: runs/eval-MODEL-DATE-TIME]",
        readable=False,
    ),
]
Concurrency = Annotated[
    int | None, _option("--concurrency", "Most requests in flight. \\[default: 16]", min=1)
]
PerMinute = Annotated[
    float | None,
    _option("--per-minute", "Most requests in a minute. \\[default: no limit]", min=0.0),
]
Timeout = Annotated[
    float | None,
    _option("--timeout", "Most seconds of one request. \\[default: 300]", min=0.1),
]
Retries = Annotated[
    int | None,
    _option(
        "--retries",
        "How often a request is repeated that the server does not answer, with growing pauses. "
        "\\[default: 6]",
        min=0,
    ),
]
PriceIn = Annotated[
    float | None,
    _option("--price-in", "Price of a million tokens that are read.", min=0.0),
]
PriceOut = Annotated[
    float | None,
    _option("--price-out", "Price of a million tokens that are written.", min=0.0),
]
Cache = Annotated[
    Path | None,
    _option(
        "--cache",
        "File of answers that evaluations share: an equal request is not sent again.",
        readable=False,
    ),
]
RequestFields = Annotated[
    list[str] | None,
    _option(
        "--request",
        "A further field of each request, such as reasoning_effort=low; null leaves one out, "
        "as in seed=null; may be repeated.",
        metavar="FIELD=VALUE",
    ),
]


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Hold the options of `grpo eval --endpoint`, in the order of its help page."""

    endpoint: EndpointUrl
    model_name: ModelName
    env: Envs = None
    tasks: Tasks = 128
    samples: Samples = 8
    level: Levels = None
    temperature: Temperature = None
    top_p: TopP = None
    stop: Stop = None
    max_new_tokens: MaxNewTokens = None
    seed: Seed = None
    settings: Settings = None
    as_json: AsJson = False
    key_env: KeyEnv = None
    out: OutFolder = None
    concurrency: Concurrency = None
    per_minute: PerMinute = None
    timeout: Timeout = None
    retries: Retries = None
    price_in: PriceIn = None
    price_out: PriceOut = None
    cache: Cache = None
    request: RequestFields = None
