"""Call reward functions in the forms in which they are written for different trainers.

The names of a function's parameters tell its form:

* `solution_str` or `ground_truth`: `compute_score(data_source, solution_str, ground_truth,
  extra_info)`, as in verl;
* `completions`: `f(prompts, completions, **columns)`, as in TRL, for a list of completions;
* `completion`, or `answer` with `state`: `f(completion, answer, state, ...)`, as in verifiers;
* a second parameter that is called like an answer: `f(text, answer)`;
* otherwise `f(text, row)`, the form of this environment.

A function is called for one completion at a time, so that its reward depends on nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_core import ConfigError, Message
from grpo_env_dataset.message_forms import (
    ChatMessage,
    NoTokens,
    Parser,
    as_chat,
    reads_messages,
)

FormName = Literal["text", "pair", "trl", "verifiers", "verl"]
SIGNATURES: Mapping[FormName, str] = {
    "text": "f(text, row)",
    "pair": "f(text, answer)",
    "trl": "f(prompts, completions, **columns)",
    "verifiers": "f(completion, answer, state, ...)",
    "verl": "compute_score(data_source, solution_str, ground_truth, extra_info)",
}
RETURNS: Mapping[FormName, str] = {
    "text": "a number from 0 to 1, a pair (number, note), or None where it does not apply",
    "pair": "a number from 0 to 1, or None where it does not apply",
    "trl": "a list with one number, or None, for each of `completions`",
    "verifiers": "a number, or None where it does not apply",
    "verl": "a number, or a dictionary with the number as 'score'",
}
_ANSWERS = (
    *("answer", "reference", "label", "target", "gold", "golden", "expected", "solution", "sol"),
    *("gt", "truth", "correct", "correct_answer", "expected_answer", "right_answer", "true_answer"),
)
"""What the second parameter of a function is called that compares two texts."""
_ROWS = ("row", "example", "sample", "item", "record", "doc", "entry", "fields", "data", "task")
"""What the second parameter of a function is called that gets the row."""
_SOLUTIONS = ("solution_str", "model_output", "predict_str", "solution", "response", "prediction")
"""What functions in the form of verl call the completion."""
_UNAVAILABLE = {
    "environments": "write an Episode for tools with state",
    "client": "a rubric's judge is the reward `judge` here",
    "judge": "a rubric's judge is the reward `judge` here",
}
"""Parameters of other trainers for which there is nothing here, with what to do instead."""


@dataclass(frozen=True, slots=True)
class RowAttempt:
    """Holds what a reward function may be told of a completion."""

    prompt: Sequence[Message]
    """The prompt, with its system message if it has one."""
    text: str
    """The completion without its thoughts."""
    raw: str
    """The completion with its thoughts, which is what other trainers give their functions."""
    row: Mapping[str, Any]
    answer: Any = None
    """The reference answer as it stands in the row; None if there is none."""
    source: str = ""
    """The name of the rows' file or data set."""
    has_messages: bool = False
    """The row's prompt is a list of messages, and not a text."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Receives what the function logs."""


@dataclass(frozen=True, slots=True)
class RewardForm:
    """Knows how a function is called, and what it returns."""

    name: FormName
    parameters: Mapping[str, inspect.Parameter]
    takes_all: bool
    """It has `**kwargs`."""
    wants_messages: bool
    """It reads a completion as a list of messages, and not as a text."""

    def missing(self, fields: Collection[str]) -> list[str]:
        """Return the required parameters for which rows with these fields have nothing."""
        if self.name in ("text", "pair"):
            return []
        known = {*_GIVEN[self.name], *(fields if self.name in ("trl", "verifiers") else ())}
        return [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is parameter.empty and name not in known
        ]

    def call(self, function: Callable[..., Any], attempt: RowAttempt) -> Any:
        """Return what the function returns for a completion; it may be awaitable."""
        if self.name == "text":
            return function(*(attempt.text, dict(attempt.row))[: len(self.parameters) or 2])
        if self.name == "pair":
            return function(attempt.text, attempt.answer)
        values = _VALUES[self.name](self, attempt)
        if not self.takes_all:
            values = {name: value for name, value in values.items() if name in self.parameters}
        return function(**values)

    def score(self, returned: Any) -> Any:
        """Return the score in what the function returned.

        Raises:
            TypeError: it is not of this form; the message says what it is.
        """
        if self.name == "trl":
            values = returned.tolist() if hasattr(returned, "tolist") else returned
            if not isinstance(values, list | tuple) or len(values) != 1:
                raise TypeError
            return values[0]
        if self.name == "verl" and isinstance(returned, Mapping):
            if "score" not in returned:
                raise TypeError
            return returned["score"]
        return returned


def form_of(function: Callable[..., Any], *, name: str, messages: bool | None = None) -> RewardForm:
    """Return the form in which a reward function is written.

    Args:
        function: the function.
        name: what messages call it.
        messages: whether it reads completions as lists of messages; None: its source tells.

    Raises:
        ConfigError: it is written in none of the forms.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are written in C
        return RewardForm("text", {}, takes_all=False, wants_messages=False)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {
        key: value for key, value in signature.parameters.items() if value.kind not in variable
    }
    kinds = [value.kind for value in signature.parameters.values()]
    form_name = _name_of(named)
    if form_name in ("text", "pair"):
        _check_own_form(signature, name)
        if form_name == "text":
            _check_second(named, name)
        required = [key for key, value in named.items() if value.default is value.empty]
        if len(required) < 2 and [*named][1:2] and [*named][1] not in (*_ROWS, *_ANSWERS):
            named = {key: named[key] for key in [*named][:1]}  # an option of its own
        # A third parameter with a default is the function's own affair.
        named = {key: named[key] for key in list(named)[: max(len(required), min(len(named), 2))]}
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            named = {}
    for key, value in named.items():
        if value.default is value.empty and key in _UNAVAILABLE:
            raise ConfigError(
                f"the reward function {name!r} wants {key!r}, which it cannot get here: "
                f"{_UNAVAILABLE[key]}"
            )
    return RewardForm(
        form_name,
        named,
        takes_all=inspect.Parameter.VAR_KEYWORD in kinds,
        wants_messages=reads_messages(function) if messages is None else messages,
    )


def _name_of(parameters: Mapping[str, inspect.Parameter]) -> FormName:
    """Return the form that has these parameters."""
    if "solution_str" in parameters or "ground_truth" in parameters:
        return "verl"
    if {"completions", "completion_ids"} & set(parameters):
        return "trl"
    if "completion" in parameters or {"answer", "state"} <= set(parameters):
        return "verifiers"
    return "pair" if [*parameters][1:2] and _is_answer(parameters) else "text"


def _is_answer(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether the second parameter is the answer, by its name or else its type."""
    second = [*parameters.values()][1]
    is_text = second.annotation in (str, "str") and second.name not in _ROWS
    return second.name in _ANSWERS or is_text


def _check_second(parameters: Mapping[str, inspect.Parameter], name: str) -> None:
    """Raise ConfigError if nothing tells whether the second parameter is the row or its answer."""
    second = [*parameters.values()][1:2]
    if not second or second[0].kind is second[0].POSITIONAL_ONLY:
        return
    is_typed = second[0].annotation is not second[0].empty
    if second[0].default is second[0].empty and second[0].name not in _ROWS and not is_typed:
        raise ConfigError(
            f"the second parameter of the reward function {name!r} is called {second[0].name!r}, "
            "which does not tell what it gets: call it `row` for the row's fields as a dictionary, "
            "or `answer` for the reference answer"
        )


def _check_own_form(signature: inspect.Signature, name: str) -> None:
    """Raise ConfigError unless a function can be called with a text and a row, or a text alone."""
    for arguments in (("text", "row"), ("text",)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return
    forms = "; ".join(SIGNATURES.values())
    raise ConfigError(
        f"the reward function {name!r} has the parameters {signature}, from which no form can be "
        f"told; write it as one of {forms}"
    )


def _trl_values(form: RewardForm, attempt: RowAttempt) -> dict[str, Any]:
    """Return the arguments by name, as lists with one item."""
    messages = attempt.has_messages or form.wants_messages
    chat = as_chat(attempt.prompt)
    prompt = chat if messages else attempt.prompt[-1].content
    columns = {
        key: [value]
        for key, value in attempt.row.items()
        if key not in ("prompt", "completion", "completion_ids")
    }
    return {
        **columns,
        "prompts": [prompt],
        "completions": [as_completion(attempt.raw) if messages else attempt.raw],
        "completion_ids": [NoTokens()],
        "prompt_ids": [NoTokens()],
        "trainer_state": None,
        "log_metric": lambda name, value: attempt.metrics.__setitem__(str(name), float(value)),
        "log_extra": lambda name, values: None,
    }


def _verifiers_values(form: RewardForm, attempt: RowAttempt) -> dict[str, Any]:
    """Return the arguments by name, with what a rollout's `state` holds."""
    messages = attempt.has_messages or form.wants_messages or "parser" in form.parameters
    row = attempt.row
    told: dict[str, Any] = {
        "prompt": as_chat(attempt.prompt) if messages else attempt.prompt[-1].content,
        "completion": as_completion(attempt.raw) if messages else attempt.raw,
        "answer": attempt.answer if attempt.answer is not None else "",
        "task": row.get("task", "default"),
        "info": row.get("info", {}),
        "example_id": row.get("example_id", 0),
    }
    return {**row, **told, "state": {**row, **told, "responses": []}, "parser": Parser()}


def _verl_values(form: RewardForm, attempt: RowAttempt) -> dict[str, Any]:
    row = attempt.row
    return {
        **dict.fromkeys(_SOLUTIONS, attempt.raw),
        "data_source": row.get("data_source", attempt.source),
        "ground_truth": attempt.answer,
        "extra_info": row.get("extra_info", {}),
    }


def as_completion(text: str) -> list[ChatMessage]:
    """Return a completion as a list with the assistant's message."""
    return [ChatMessage(role="assistant", content=text)]


_VALUES: Mapping[FormName, Callable[[RewardForm, RowAttempt], dict[str, Any]]] = {
    "trl": _trl_values,
    "verifiers": _verifiers_values,
    "verl": _verl_values,
}
_GIVEN: Mapping[FormName, frozenset[str]] = {
    "trl": frozenset(
        {
            *("prompts", "completions", "completion_ids", "prompt_ids"),
            *("trainer_state", "log_metric", "log_extra"),
        }
    ),
    "verifiers": frozenset(
        {"prompt", "completion", "answer", "task", "info", "example_id", "state", "parser"}
    ),
    "verl": frozenset({"data_source", *_SOLUTIONS, "ground_truth", "extra_info"}),
}
"""The parameters that get a value whatever the rows hold."""
