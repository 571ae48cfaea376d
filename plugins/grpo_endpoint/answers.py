"""Answers as clients of the OpenAI API read them, whole and in chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import ToolCall
from grpo_core.protocol.endpoint import Choice, CompletionAnswer
from grpo_endpoint.answer_types import (
    AnswerMessage,
    ChatCompletion,
    ChatLogprobs,
    FinishReason,
    Health,
    Model,
    Models,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
    WrittenCall,
)


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
                    "logprobs": self._logprobs(choice),
                    "finish_reason": choice.finish,
                }
                for index, choice in enumerate(self.answer.choices)
            ],
            "usage": _usage([self.answer]),
        }

    def chunks(self, *, usage: bool) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the answer; with `usage`, the last one has the numbers of tokens."""
        for index, choice in enumerate(self.answer.choices):
            deltas: list[tuple[dict[str, Any], ChatLogprobs | None]] = [
                ({"role": "assistant", "content": ""}, None)
            ]
            if choice.message.thoughts:
                deltas.append(({"reasoning_content": choice.message.thoughts}, None))
            if choice.message.content or self.logprobs:
                deltas.append(({"content": choice.message.content}, self._logprobs(choice)))
            if calls := choice.message.tool_calls:
                deltas.append(({"tool_calls": [_call(c, i) for i, c in enumerate(calls)]}, None))
            for delta, logprobs in deltas:
                yield self._chunk(index, delta, logprobs, None, usage=usage)
            yield self._chunk(index, {}, None, choice.finish, usage=usage)
        if usage:
            yield {**self._head(), "choices": [], "usage": _usage([self.answer])}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: ChatLogprobs | None,
        finish: FinishReason | None,
        *,
        usage: bool,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head(), "choices": [choice], **({"usage": None} if usage else {})}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }

    def _logprobs(self, choice: Choice) -> ChatLogprobs | None:
        if not self.logprobs:
            return None
        return {
            "content": [
                {
                    "token": token,
                    "logprob": logprob,
                    "bytes": None if "\ufffd" in token else list(token.encode()),
                    "top_logprobs": [],
                }
                for token, logprob in zip(choice.tokens, choice.logprobs, strict=True)
            ],
            "refusal": None,
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
            "usage": _usage(self.answers),
        }

    def chunks(self, *, usage: bool) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the answer; with `usage`, the last one has the numbers of tokens."""
        head = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            **({"usage": None} if usage else {}),
        }
        for choice in self._choices():
            yield {**head, "choices": [{**choice, "finish_reason": None}]}
            yield {**head, "choices": [{**choice, "text": "", "logprobs": None}]}
        if usage:
            yield {**head, "choices": [], "usage": _usage(self.answers)}

    def _choices(self) -> list[TextChoice]:
        choices = [choice for answer in self.answers for choice in answer.choices]
        return [
            {
                "index": index,
                "text": choice.text,
                "logprobs": _text_logprobs(choice) if self.logprobs else None,
                "finish_reason": "length" if choice.finish == "length" else "stop",
            }
            for index, choice in enumerate(choices)
        ]


def model_list(name: str, created: int) -> Models:
    """Return the list of the only model."""
    return {"object": "list", "data": [model_card(name, created)]}


def health() -> Health:
    """Return what says that the server is there."""
    return {"status": "ok"}


def model_card(name: str, created: int) -> Model:
    """Return the description of a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "grpo-core"}


def _message(choice: Choice) -> AnswerMessage:
    calls, content = choice.message.tool_calls, choice.message.content
    message: AnswerMessage = {"role": "assistant", "content": content, "refusal": None}
    if choice.message.thoughts:
        message["reasoning_content"] = choice.message.thoughts
    if calls:
        message["content"] = content or None
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(call: ToolCall, index: int | None = None) -> WrittenCall:
    written: WrittenCall = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
    }
    return written if index is None else {"index": index, **written}


def _text_logprobs(choice: Choice) -> TextLogprobs:
    offsets, offset = [], 0
    for token in choice.tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": [*choice.tokens],
        "token_logprobs": [*choice.logprobs],
        "top_logprobs": None,
        "text_offset": offsets,
    }


def _usage(answers: Sequence[CompletionAnswer]) -> Usage:
    prompts = sum(answer.prompt_tokens for answer in answers)
    completions = sum(len(choice.token_ids) for answer in answers for choice in answer.choices)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completions,
        "total_tokens": prompts + completions,
    }
