"""Implement `grpo eval --endpoint`, which measures a model behind an OpenAI-compatible server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from grpo_core import ConfigError, GrpoError
from grpo_core.api.calls import StopRequest, stoppable, wait_for
from grpo_core.api.protocol import chosen_tags
from grpo_core.api.settings import RunConfig
from grpo_core.api.verify import Sources
from grpo_core.calls.api_settings import NO_KEY, check_address, is_variable_name, key_in
from grpo_core.cli.given import by_flag, settings_of, takes
from grpo_core.cli.output import INTERRUPTED, print_json, print_line, prints_to_stderr, remark
from grpo_core.cli.progress import progress_bar
from grpo_core.cli.run_config import read_eval_config
from grpo_core.cli.summary_table import print_summaries
from grpo_evals.opening import SUBJECT, open_evaluation
from grpo_evals.options import EndpointOptions
from grpo_evals.types import (
    Evaluated,
    EvaluationSettings,
    ModelSettings,
    Progress,
    Refusal,
)

if TYPE_CHECKING:
    from grpo_evals.evaluation import EndpointEvaluation

app = typer.Typer()

_KEY_VARIABLE = "OPENAI_API_KEY"
_FIELDS = {
    "--concurrency": "concurrency",
    "--per-minute": "per_minute",
    "--timeout": "timeout_seconds",
    "--retries": "retries",
    "--price-in": "price_in",
    "--price-out": "price_out",
    "--cache": "cache",
}
"""The names in `EvaluationSettings` of options that have a default there."""
_USED_SECTIONS = {
    *("environment", "mixture", "env", "weights", "level"),
    *("seed", "verify", "sandbox", "judges"),
}
_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop")
_USED_SETTINGS = {
    *("eval.temperature", "eval.also", "model.thought_tags"),
    *(f"sampling.{name}" for name in _SAMPLING),
}
"""The settings that --set may change, in sections of which others are about this machine."""
_OWN_FIELDS = ("model", "messages", "prompt", "tools", "n", "stream")
"""The fields of a request that --request does not change."""
_REFUSALS: Mapping[Refusal, str] = {
    "context": "refused: longer than the context",
    "filter": "refused: by a content filter",
}


@app.command(
    "eval",
    epilog="Example: grpo eval --endpoint http://127.0.0.1:8000/v1 --model-name qwen --env gsm8k",
)
@takes(EndpointOptions)
def evaluate(options: EndpointOptions) -> None:
    """Measure a model behind an OpenAI-compatible endpoint on held-out tasks.

    Prints what `grpo eval` prints for a model of this machine, and what the answers cost. Each
    attempt is stored as soon as it was judged, so that an evaluation can be continued.
    """
    config = read_eval_config(
        options.env or [], None, settings_of(options), options.settings or [], trust=False
    )
    _refuse_unused(options.settings or [])
    settings = _read_settings(config, options)
    stop = StopRequest()
    sources = Sources.of(config, {})
    evaluation = open_evaluation(config, sources, settings, out=options.out, stop=stop)
    folder = evaluation.folder
    _tell_begin(len(folder.attempts), folder.damaged, folder.shown)
    started = time.monotonic()
    try:
        evaluated = _ask(evaluation, settings, stop)
    except GrpoError:
        remark(f"to go on, give the same command with --out {folder.shown}")
        raise
    seconds = time.monotonic() - started
    if options.as_json:
        result = {**evaluated.to_json(settings), "seconds": round(seconds, 1)}
        print_json({**result, "folder": str(folder.shown)})
    else:
        _print_result(evaluated, settings, seconds)
    _tell_end(evaluated, folder.shown)
    if stop.is_made:
        raise typer.Exit(INTERRUPTED)


def _ask(
    evaluation: EndpointEvaluation, settings: EvaluationSettings, stop: StopRequest
) -> Evaluated:
    """Make the attempts, with a progress bar on stderr; Ctrl-C makes the request to stop."""
    columns = (
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeRemainingColumn(),
    )
    with (
        prints_to_stderr(),
        progress_bar("asking the model", *columns, facts="") as update,
        stoppable(stop, "finishing the attempts that were started"),
    ):

        def show(progress: Progress) -> None:
            update(completed=progress.done, total=progress.total, facts=_facts(progress, settings))

        return wait_for(evaluation.run(show))


def _read_settings(config: RunConfig, options: EndpointOptions) -> EvaluationSettings:
    """Return the settings of the evaluation.

    Raises:
        ConfigError: an option is wrong, or the key cannot be sent.
    """
    check_address(options.endpoint, subject=SUBJECT, option="--endpoint", key_option="--key-env")
    fields = dict(map(_read_field, options.request or ()))
    if own := sorted(fields.keys() & set(_OWN_FIELDS)):
        raise ConfigError(
            f"--request {own[0]} cannot be changed: the evaluation sets it itself; remove it"
        )
    params = config.sampling.params(config.eval.temperature)
    tags = chosen_tags(config.model.thought_tags)
    model = ModelSettings(options.endpoint, options.model_name, params, fields, tags)
    given = {_FIELDS[flag]: value for flag, value in by_flag(options, _FIELDS).items()}
    return EvaluationSettings(
        model,
        _read_key(options.key_env),
        tasks=options.tasks,
        samples=options.samples,
        levels=options.level or (),
        **{name: value for name, value in given.items() if value is not None},
    )


def _read_field(text: str) -> tuple[str, Any]:
    """Return name and value of a field; a value that is not JSON is a text.

    Raises:
        ConfigError: the text is not of the form FIELD=VALUE.
    """
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ConfigError(f"--request takes FIELD=VALUE, such as seed=null; found {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _read_key(key_env: str | None) -> str:
    """Return the API key; NO_KEY if there is none and no variable was named.

    Raises:
        ConfigError: the named variable is not set, or the key cannot be sent.
    """
    if key_env is not None and not is_variable_name(key_env):
        raise ConfigError(
            "--key-env takes the name of an environment variable, such as OPENAI_API_KEY, and "
            "never the key itself"
        )
    key = key_in(key_env or _KEY_VARIABLE, subject=SUBJECT)
    if not key and key_env is not None:
        raise ConfigError(f"the environment variable {key_env} is not set; set it to the key")
    return key or NO_KEY


def _refuse_unused(settings: Sequence[str]) -> None:
    """Raise ConfigError for a setting that changes nothing where the model is elsewhere."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name.partition(".")[0] not in _USED_SECTIONS and name not in _USED_SETTINGS:
            raise ConfigError(
                f"--set {setting} changes nothing with --endpoint, since another server runs the "
                "model; remove it (--request FIELD=VALUE adds a field to the requests)"
            )


def _tell_begin(known: int, damaged: int, folder: Path) -> None:
    if known:
        remark(f"continuing in {folder}, which has {known} attempts")
    else:
        remark(f"writing to {folder}")
    if damaged:
        remark(f"{damaged} lines of it could not be read; these attempts are made again")


def _tell_end(evaluated: Evaluated, folder: Path) -> None:
    """Say what is unusual about the answers, what failed, and how to go on."""
    for sentence in evaluated.remarks:
        remark(sentence)
    for reason, count in evaluated.errors.items():
        remark(f"{count} x {reason}")
    if not evaluated.is_complete:
        remark(
            "stopped before all attempts were made; these are the statistics of those that were. "
            f"Continue with the same command and --out {folder}"
        )
    elif evaluated.errors:
        remark(f"to try the failed attempts again, give the same command with --out {folder}")


def _facts(progress: Progress, settings: EvaluationSettings) -> str:
    """Return what the progress bar says beside the numbers of attempts."""
    usage = progress.usage
    facts = [f"{usage.prompt_tokens + usage.completion_tokens} tokens"]
    if cost := usage.cost(settings):
        facts.append(f"cost {cost:.2f} of about {cost * progress.total / progress.done:.2f}")
    if progress.failed:
        facts.append(f"{progress.failed} failed")
    return ", ".join(facts)


def _print_result(evaluated: Evaluated, settings: EvaluationSettings, seconds: float) -> None:
    """Print the table of the results, and below it what they cost."""
    refusals = {
        title: [refused.get(kind, 0) for refused in evaluated.refused]
        for kind, title in _REFUSALS.items()
    }
    no_text = {"answers without text": [sum(row.values()) for row in evaluated.no_text]}
    counts = {**refusals, **no_text}
    print_summaries(settings.model.name, evaluated.summaries, seconds, counts=counts)
    usage = evaluated.usage
    cached = f", {usage.cached} from the cache" if usage.cached else ""
    retries = f", {usage.retries} repeated" if usage.retries else ""
    cost = usage.cost(settings)
    shown_cost = f"; cost {cost:.4g}" if cost else ""
    print_line(
        f"{usage.requests} answers{cached}{retries}; {usage.prompt_tokens} tokens read, "
        f"{usage.completion_tokens} written{shown_cost}"
    )
