"""Implement `grpo eval --endpoint`, which measures a model behind an OpenAI-compatible server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from grpo_core.bridges.endpoint.opening import SUBJECT, open_evaluation
from grpo_core.bridges.endpoint.types import (
    Evaluated,
    EvaluationSettings,
    ModelSettings,
    Progress,
    Refusal,
)
from grpo_core.calls.api_settings import NO_KEY, check_address, is_variable_name, key_in
from grpo_core.calls.deadline import wait_for
from grpo_core.calls.stopping import StopRequest
from grpo_core.cli.output import INTERRUPTED, print_json, print_line, prints_to_stderr, remark
from grpo_core.cli.progress import progress_bar
from grpo_core.cli.run_config import read_eval_config
from grpo_core.cli.stopping import stoppable
from grpo_core.cli.summary_table import print_summaries
from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.thoughts import chosen_tags
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.bridges.endpoint.evaluation import EndpointEvaluation

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


def evaluate_endpoint(
    endpoint: str,
    given: Mapping[str, Any],
    *,
    envs: Sequence[str],
    options: Mapping[str, Any],
    settings: Sequence[str],
    attempts: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Measure a model behind an endpoint, and print the result.

    Args:
        endpoint: the value of --endpoint.
        given: the other options about it, by their names; None where one is not given.
        envs: the values of --env.
        options: the options that stand for settings, by the setting's dotted name.
        settings: the values of --set.
        attempts: which attempts are made, by the names in `EvaluationSettings`.
        as_json: whether JSON is printed.

    Raises:
        ConfigError: an option or a setting is wrong, or the server refuses the requests.
    """
    _refuse_unused(settings)
    config = read_eval_config(envs, None, options, settings, trust=False)
    evaluation_settings = _read_settings(config, endpoint, given, attempts)
    stop = StopRequest()
    sources = Sources.of(config, {})
    evaluation = open_evaluation(
        config, sources, evaluation_settings, out=given["--out"], stop=stop
    )
    folder = evaluation.folder
    _tell_begin(len(folder.attempts), folder.damaged, folder.shown)
    started = time.monotonic()
    try:
        evaluated = _ask(evaluation, evaluation_settings, stop)
    except GrpoError:
        remark(f"to go on, give the same command with --out {folder.shown}")
        raise
    seconds = time.monotonic() - started
    if as_json:
        result = {**evaluated.to_json(evaluation_settings), "seconds": round(seconds, 1)}
        print_json({**result, "folder": str(folder.shown)})
    else:
        _print_result(evaluated, evaluation_settings, seconds)
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

        return wait_for(evaluation.run(show), on_interrupt=stop.make)


def _read_settings(
    config: RunConfig, endpoint: str, given: Mapping[str, Any], attempts: Mapping[str, Any]
) -> EvaluationSettings:
    """Return the settings of the evaluation; the arguments are those of `evaluate_endpoint`.

    Raises:
        ConfigError: an option is wrong, or the key cannot be sent.
    """
    check_address(endpoint, subject=SUBJECT, option="--endpoint", key_option="--key-env")
    if given["--model-name"] is None:
        raise ConfigError(
            "--endpoint needs the name that the model has there; add --model-name NAME"
        )
    fields = dict(map(_read_field, given["--request"] or ()))
    if own := sorted(fields.keys() & set(_OWN_FIELDS)):
        raise ConfigError(
            f"--request {own[0]} cannot be changed: the evaluation sets it itself; remove it"
        )
    params = config.sampling.params(config.eval.temperature)
    tags = chosen_tags(config.model.thought_tags)
    model = ModelSettings(endpoint, given["--model-name"], params, fields, tags)
    more = {name: given[option] for option, name in _FIELDS.items() if given[option] is not None}
    return EvaluationSettings(model, _read_key(given["--key-env"]), **attempts, **more)


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
