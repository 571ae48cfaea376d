"""Write deltas of completions as the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_core.protocol.endpoint import Choice, CompletionAnswer
from grpo_endpoint.answer_types import ChatLogprobs, FinishReason
from grpo_endpoint.answers import chat_logprobs, text_logprobs, usage_of, written_call
from grpo_endpoint.requests import Delta


class Chunks(ABC):
    """Write the chunks of an answer.

    Args:
        model: name of the model.
        logprobs: whether the log-prob of each token is wanted.
        usage: whether the last chunk has the numbers of tokens.
    """

    def __init__(self, model: str, *, logprobs: bool, usage: bool) -> None:
        self._logprobs, self._usage = logprobs, usage
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
        }
        self._finished: set[int] = set()

    prefix: str
    """Of the id of an answer."""
    kind: str
    """What each chunk calls itself."""

    def of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a delta."""
        if delta.finish is not None:
            self._finished.add(delta.choice)
        yield from self._of(delta)

    def rest(self, answers: Sequence[CompletionAnswer]) -> Iterator[dict[str, Any]]:
        """Yield the chunks that follow all deltas, also of completions that came whole."""
        choices = [choice for answer in answers for choice in answer.choices]
        for index, choice in enumerate(choices):
            if index not in self._finished:
                yield from self.of(self._whole(index, choice))
        if self._usage:
            yield {**self._head, "choices": [], "usage": usage_of(answers)}

    @abstractmethod
    def _of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a delta."""

    def _whole(self, index: int, choice: Choice) -> Delta:
        """Return a completion as its only delta."""
        message = choice.message
        return Delta(
            index,
            message.thoughts,
            message.content,
            choice.tokens,
            choice.logprobs,
            calls=message.tool_calls or (),
            finish=choice.finish,
        )

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self._usage else {}
        return {**self._head, "choices": [choice], **usage}


class ChatChunks(Chunks):
    """Write the chunks of messages; the first one of each has the role."""

    prefix = "chatcmpl"
    kind = "chat.completion.chunk"

    def __init__(self, model: str, *, logprobs: bool, usage: bool) -> None:
        super().__init__(model, logprobs=logprobs, usage=usage)
        self._begun: set[int] = set()

    def _of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        index = delta.choice
        if index not in self._begun:
            self._begun.add(index)
            yield self._part(index, {"role": "assistant", "content": ""})
        logprobs = chat_logprobs(delta) if self._logprobs and delta.tokens else None
        if delta.thoughts:
            later = delta.content or delta.finish
            own = None if later else logprobs
            yield self._part(index, {"reasoning_content": delta.thoughts}, own)
            logprobs = logprobs if later else None
        if delta.content or logprobs:
            yield self._part(index, {"content": delta.content}, logprobs)
        if delta.calls:
            calls = [written_call(call, number) for number, call in enumerate(delta.calls)]
            yield self._part(index, {"tool_calls": calls})
        if delta.finish is not None:
            yield self._part(index, {}, finish=delta.finish)

    def _part(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: ChatLogprobs | None = None,
        finish: FinishReason | None = None,
    ) -> dict[str, Any]:
        return self._chunk(
            {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        )


class TextChunks(Chunks):
    """Write the chunks of texts."""

    prefix = "cmpl"
    kind = "text_completion"

    def __init__(self, model: str, *, logprobs: bool, usage: bool) -> None:
        super().__init__(model, logprobs=logprobs, usage=usage)
        self._offsets: Counter[int] = Counter()

    def _whole(self, index: int, choice: Choice) -> Delta:
        return Delta(
            index,
            content=choice.text,
            tokens=choice.tokens,
            logprobs=choice.logprobs,
            finish=choice.finish,
        )

    def _of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        index, logprobs = delta.choice, None
        if self._logprobs:
            logprobs = text_logprobs(delta, self._offsets[index])
            self._offsets[index] += sum(map(len, delta.tokens))
        yield self._chunk(
            {"index": index, "text": delta.content, "logprobs": logprobs, "finish_reason": None}
        )
        if delta.finish is not None:
            finish = "length" if delta.finish == "length" else "stop"
            yield self._chunk(
                {"index": index, "text": "", "logprobs": None, "finish_reason": finish}
            )
