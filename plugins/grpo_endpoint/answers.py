"""Answers as clients of the OpenAI API read them."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from grpo_core import ToolCall
from grpo_core.protocol.endpoint import Choice, CompletionAnswer
from grpo_endpoint.answer_types import (
    AnswerMessage,
    ChatCompletion,
    ChatLogprobs,
    Health,
    LikelyToken,
    Model,
    Models,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
    WrittenCall,
)
from grpo_endpoint.requests import Delta, Likely, ServedChoice


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Writes the answer to a chat."""

    answer: CompletionAnswer
    model: str
    logprobs: bool
    """Whether the log-prob of each token is wanted."""
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self) -> ChatCompletion:
        """Return the body of the answer."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [
                {
                    "index": index,
                    "message": _message(choice),
                    "logprobs": chat_logprobs(choice) if self.logprobs else None,
                    "finish_reason": choice.finish,
                }
                for index, choice in enumerate(self.answer.choices)
            ],
            "usage": usage_of([self.answer]),
        }


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """Writes the answer to one text or several."""

    answers: Sequence[CompletionAnswer]
    """The answer to each text."""
    model: str
    logprobs: bool
    """Whether the log-prob of each token is wanted."""
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self) -> TextCompletion:
        """Return the body of the answer."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": self._choices(),
            "usage": usage_of(self.answers),
        }

    def _choices(self) -> list[TextChoice]:
        choices = [choice for answer in self.answers for choice in answer.choices]
        return [
            {
                "index": index,
                "text": choice.text,
                "logprobs": text_logprobs(choice) if self.logprobs else None,
                "finish_reason": "length" if choice.finish == "length" else "stop",
            }
            for index, choice in enumerate(choices)
        ]


def model_list(card: Model) -> Models:
    """Return the list of the only model."""
    return {"object": "list", "data": [card]}


def health() -> Health:
    """Return what says that the server is there."""
    return {"status": "ok"}


def model_card(name: str, created: int, context: int | None = None) -> Model:
    """Return the description of a model.

    Args:
        name: its name.
        created: when the server was made, in seconds since 1970.
        context: most tokens of prompt and completion; None: nothing is said of it.
    """
    card: Model = {"id": name, "object": "model", "created": created, "owned_by": "grpo-core"}
    return card if context is None else {**card, "max_model_len": context}


def _message(choice: Choice) -> AnswerMessage:
    calls, content = choice.message.tool_calls, choice.message.content
    message: AnswerMessage = {"role": "assistant", "content": content, "refusal": None}
    if choice.message.thoughts:
        message["reasoning_content"] = choice.message.thoughts
    if calls:
        message["content"] = content or None
        message["tool_calls"] = [written_call(call) for call in calls]
    return message


def written_call(call: ToolCall, index: int | None = None) -> WrittenCall:
    """Return a call as clients read it; `index` is its number, in a chunk."""
    written: WrittenCall = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
    }
    return written if index is None else {"index": index, **written}


def chat_logprobs(choice: Choice | Delta) -> ChatLogprobs:
    """Return the log-probs of the tokens of a message, or of a part of it."""
    return {
        "content": [
            {
                **_token_logprob(token, logprob or 0.0),
                "top_logprobs": [_token_logprob(*each) for each in likely],
            }
            for token, logprob, likely in _tokens_of(choice)
        ],
        "refusal": None,
    }


def _token_logprob(token: str, logprob: float) -> LikelyToken:
    encoded = None if "\ufffd" in token else list(token.encode(errors="surrogatepass"))
    return {"token": token, "logprob": logprob, "bytes": encoded}


def text_logprobs(choice: Choice | Delta, offset: int = 0) -> TextLogprobs:
    """Return the log-probs of the tokens of a text, or of a part of it.

    Args:
        choice: the text.
        offset: number of the characters before it.
    """
    offsets = []
    for token in choice.tokens:
        offsets.append(offset)
        offset += len(token)
    has_alternatives = isinstance(choice, ServedChoice | Delta) and any(choice.alternatives)
    return {
        "tokens": [*choice.tokens],
        "token_logprobs": [*choice.logprobs],
        "top_logprobs": [
            None if logprob is None else {**dict(reversed(likely)), token: logprob}
            for token, logprob, likely in _tokens_of(choice)
        ]
        if has_alternatives
        else None,
        "text_offset": offsets,
    }


def _tokens_of(choice: Choice | Delta) -> Iterator[tuple[str, float | None, Likely]]:
    """Yield the text of each token, its log-prob, and the most likely tokens at its place."""
    likely = choice.alternatives if isinstance(choice, ServedChoice | Delta) else ()
    return zip(choice.tokens, choice.logprobs, likely or ((),) * len(choice.tokens), strict=True)


def usage_of(answers: Sequence[CompletionAnswer]) -> Usage:
    """Return the numbers of tokens of answers."""
    prompts = sum(answer.prompt_tokens for answer in answers)
    completions = sum(len(choice.token_ids) for answer in answers for choice in answer.choices)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completions,
        "total_tokens": prompts + completions,
    }
