"""Requests to a server outside of training, which takes more parameters, as vLLM's does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.protocol.sampler import Extras
from grpo_endpoint.chat import ChatBody
from grpo_endpoint.errors import ApiError
from grpo_endpoint.fields import Body, Name, Only, Sampling
from grpo_endpoint.requests import as_served
from grpo_endpoint.text import DEFAULT_MAX_TOKENS, TextBody

_MOST_ALTERNATIVES = 20
_MOST_BIASES = 1024
_MOST_ARGUMENTS = 64
_MOST_TOKEN_ID = 2**31


class ServedSampling(Sampling):
    """Hold the further parameters that all requests share."""

    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Draw from the k most likely tokens; 0 and -1: from all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Draw from tokens at least this fraction as likely as the most likely one."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Is subtracted from the logits of tokens that the completion has."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Is subtracted from the logit of a token as often as the completion has it."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Divides the logits of tokens of prompt and completion; negative ones are multiplied."""
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=_MOST_BIASES)
        ]
        | None
    ) = None
    """Is added to the logits of tokens, which are named by their ids."""
    min_tokens: Annotated[Any, Only((None, 0))] = None
    """Not supported."""
    ignore_eos: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    skip_special_tokens: Annotated[Any, Only((None, True))] = None
    """Tokens that end a turn are left out; others are in the text."""
    spaces_between_special_tokens: Annotated[Any, Only((None, True))] = None
    """Nothing is put between tokens."""
    include_stop_str_in_output: Annotated[Any, Only((None, False))] = None
    """A stop string is left out."""
    stop_token_ids: Annotated[Any, Only((None, []))] = None
    """Not supported; see `stop`."""
    prompt_logprobs: Annotated[Any, Only((None,))] = None
    """Not supported; see `echo` of a text."""
    truncate_prompt_tokens: Annotated[Any, Only((None,))] = None
    """Not supported."""
    use_beam_search: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    length_penalty: Annotated[Any, Only((None, 1))] = None
    """Not supported."""
    priority: Annotated[Any, Only((None, 0))] = None
    """Requests are answered in the order in which they come."""
    return_token_ids: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    return_tokens_as_token_ids: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    allowed_token_ids: Annotated[Any, Only((None,))] = None
    """Not supported; see `logit_bias`."""
    bad_words: Annotated[Any, Only((None, []))] = None
    """Not supported; see `logit_bias`."""
    logprob_token_ids: Annotated[Any, Only((None,))] = None
    """Not supported."""
    structured_outputs: Annotated[Any, Only((None,))] = None
    """Not supported; see `response_format` of a chat."""
    thinking_token_budget: Annotated[Any, Only((None,))] = None
    """Not supported."""
    truncation_side: Annotated[Any, Only((None,))] = None
    """Not supported."""
    watermarking: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    request_id: Name | None = None
    """Changes nothing."""
    session_id: Name | None = None
    """Changes nothing."""

    @field_validator("logit_bias")
    @classmethod
    def _check_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for name in bias or {}:
            if not (name.isascii() and name.isdigit() and int(name[:10]) < _MOST_TOKEN_ID):
                raise ValueError("its keys have to be ids of tokens")
        return bias

    def sampling_fields(self, alternatives: int) -> dict[str, Any]:
        """Return what the parameters mean, by the fields of `ServedRequest`.

        Args:
            alternatives: how many of the most likely tokens are wanted at each place.
        """
        return {
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "extras": Extras(
                logit_bias={int(name): bias for name, bias in (self.logit_bias or {}).items()},
                repetition_penalty=self.repetition_penalty or 1.0,
                presence_penalty=self.presence_penalty or 0.0,
                frequency_penalty=self.frequency_penalty or 0.0,
                alternatives=alternatives,
            ),
        }


class NamedFunction(Body):
    """Names a function."""

    name: Name


class NamedTool(Body):
    """Names the tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class ServedChatBody(ServedSampling, ChatBody):
    """Asks for the next message of a chat."""

    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None  # type: ignore[assignment]
    """none: the policy is told of no tools. required, or a tool: it has to call one."""
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_ALTERNATIVES)] | None = None
    """Send as many of the most likely tokens at each place; needs `logprobs`."""
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=_MOST_ARGUMENTS)] | None = None
    """Arguments of the model's chat template, such as enable_thinking."""
    add_generation_prompt: Annotated[Any, Only((None, True))] = None
    """The policy's turn begins after the messages."""
    continue_final_message: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    echo: Annotated[Any, Only((None, False))] = None
    """Not supported; see /v1/completions."""
    include_reasoning: Annotated[Any, Only((None, True))] = None
    """Thoughts are sent."""
    add_special_tokens: Annotated[Any, Only((None, False))] = None
    """The chat template writes them."""
    documents: Annotated[Any, Only((None,))] = None
    """Not supported."""
    chat_template: Annotated[Any, Only((None,))] = None
    """Not supported; it is the one of the model."""

    def requests(self) -> list[CompletionRequest]:
        """Return what is asked of the policy, as a single request.

        Raises:
            ApiError: two parameters contradict each other, or a tool is not known.
        """
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400,
                "top_logprobs: it needs logprobs=true; send both, or neither",
                param="top_logprobs",
            )
        (plain,) = super().requests()
        more = self.sampling_fields(self.top_logprobs or 0)
        more["template_args"] = self.chat_template_kwargs or {}
        name = self._called()
        if name is not None:
            more |= {"called": name, "json_schema": _schema_of_calls(plain.tools, name)}
        return [as_served(plain, **more)]

    def _called(self) -> str | None:
        """Return the name of the tool that has to be called, "" for any; None if none has to be.

        Raises:
            ApiError: there is no such tool.
        """
        if self.tool_choice in (None, "auto", "none"):
            return None
        names = [tool.function.name for tool in self.tools or ()]
        name = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else ""
        if not names or (name and name not in names):
            problem = f"there is no tool {name[:80]!r}" if name else "there are no tools"
            raise ApiError(
                400,
                f"tool_choice: {problem}; name one of those in tools",
                param="tool_choice",
            )
        return name


class ServedTextBody(ServedSampling, TextBody):
    """Asks for the continuation of texts."""

    max_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = DEFAULT_MAX_TOKENS
    """Most tokens of a completion; 0 with `echo` alone."""
    logprobs: Annotated[int, Field(ge=0, le=_MOST_ALTERNATIVES)] | None = None
    """Send the log-prob of each token, and as many of the most likely tokens at its place."""
    echo: bool | None = None
    """Whether a completion begins with its prompt."""
    add_special_tokens: Annotated[Any, Only((None, True))] = None
    """A text is tokenised as the tokenizer does."""
    response_format: Annotated[Any, Only((None, {"type": "text"}))] = None
    """Not supported; see /v1/chat/completions."""

    def requests(self) -> list[CompletionRequest]:
        """Return what is asked of the policy, a request for each prompt.

        Raises:
            ApiError: no tokens are wanted.
        """
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(
                400,
                "max_tokens: 0 was found; it has to be at least 1, except with echo",
                param="max_tokens",
            )
        more = self.sampling_fields(self.logprobs or 0)
        more |= {"echoes": bool(self.echo), "scores_prompt": self.logprobs is not None}
        if self.max_tokens == 0:
            more["max_tokens"] = 0
        return [as_served(plain, **more) for plain in super().requests()]


def _schema_of_calls(tools: Any, name: str) -> Mapping[str, Any]:
    """Return the JSON schema of the arguments of a tool, or of a list of calls of any tools."""
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name:
        return parameters[name]  # type: ignore[no-any-return]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"enum": [tool]}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool, schema in parameters.items()
    ]
    return {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
