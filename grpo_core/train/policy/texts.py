"""Turn prompts and chats into tokens, and tokens into texts and calls of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message, Rollout, ToolCall
from grpo_core.train.models import chat, pieces
from grpo_core.train.models.chat import Frame
from grpo_core.train.models.load import end_of_turn_id
from grpo_core.train.policy.room import NoRoomError


class Texts:
    """Encode what a model reads, and decode what it writes.

    Args:
        tokenizer: the model's tokenizer.
        frame: system prompt and options of the chat template.
        end_ids: every token that ends a completion.
        context: most tokens that the model can attend to; None if unknown.
    """

    def __init__(
        self, tokenizer: Any, *, frame: Frame, end_ids: tuple[int, ...], context: int | None
    ) -> None:
        self.tokenizer = tokenizer
        self.frame = frame
        self.end_ids = end_ids
        """Every token that ends a completion."""
        self.context = context
        """Most tokens that the model can attend to; None if unknown."""

    def encode(
        self, prompt: str | tuple[Message, ...], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt.

        Args:
            prompt: raw text or chat messages.
            tools: JSON schemas of functions that the policy may call.
        """
        return chat.encode(self.tokenizer, prompt, replace(self.frame, tools=tools))

    def encode_checked(
        self,
        prompt: str | tuple[Message, ...],
        *,
        max_new_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt, as `encode`, and check its size.

        Raises:
            NoRoomError: the prompt leaves no room for `max_new_tokens` in the context.
            ConfigError: it has no tokens, or cannot be encoded.
        """
        ids = self.encode(prompt, tools=tools)
        if not ids:
            raise ConfigError(
                "the prompt has no tokens; the environment must return a prompt that is not empty"
            )
        if self.context is not None and len(ids) + max_new_tokens > self.context:
            raise NoRoomError(len(ids), max_new_tokens, self.context)
        return ids

    def encode_chat(
        self, messages: tuple[Message, ...], *, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Return the tokens of a chat whose calls of tools stand in `Message.tool_calls` alone.

        Args:
            messages: the chat.
            tools: JSON schemas of functions that the policy may call.
        """
        frame = replace(self.frame, tools=tools, calls_apart=True)
        return chat.encode(self.tokenizer, messages, frame)

    def encode_text(self, text: str, *, before: str) -> tuple[int, ...]:
        """Return the tokens of a text as it stands behind `before` (see `pieces.encode_after`)."""
        return tuple(pieces.encode_after(self.tokenizer, before, text))

    def encode_after(
        self,
        messages: tuple[Message, ...],
        more: tuple[Message, ...],
        *,
        last: int,
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...]:
        """Return the tokens that follow a chat whose tokens are known, as for `encode_chat`.

        Args:
            messages: the chat; it ends with a turn of the policy.
            more: the messages after it.
            last: the last token of that turn.
            tools: JSON schemas of functions that the policy may call.

        Raises:
            ConfigError: the template refuses the messages.
        """
        frame = replace(self.frame, tools=tools, calls_apart=True)
        end_id = last if last in self.end_ids else None
        return tuple(chat.encode_reply(self.tokenizer, (), messages, more, frame, end_id=end_id))

    def encode_answer(
        self, prompt: str | tuple[Message, ...] | tuple[int, ...], answer: str
    ) -> tuple[int, ...]:
        """Return the tokens of `answer` as the policy would have generated it behind a prompt.

        Its end token is included.

        Args:
            prompt: raw text, chat messages, or the tokens of an agent's request.
            answer: the text of the answer.
        """
        end = None if isinstance(prompt, str) else end_of_turn_id(self.tokenizer)
        end = end if end is not None else self.tokenizer.eos_token_id
        ends = [end] if end is not None else list(self.end_ids[:1])
        before = "" if pieces.is_context_free(self.tokenizer) else self._text_of(prompt)
        return (*self.encode_text(answer, before=before), *ends)

    def _text_of(self, prompt: str | tuple[Message, ...] | tuple[int, ...]) -> str:
        """Return the text of a prompt, as the model reads it."""
        if isinstance(prompt, str):
            return prompt
        messages = tuple(part for part in prompt if isinstance(part, Message))
        if messages:
            return chat.render(self.tokenizer, messages, self.frame)
        return pieces.decode(self.tokenizer, [part for part in prompt if isinstance(part, int)])

    def encode_reply(
        self,
        rollout: Rollout,
        prompt: str | tuple[Message, ...],
        turn: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the tokens of the environment's turn after `rollout`.

        They end where the policy's next turn begins.

        Args:
            rollout: the dialogue so far.
            prompt: its prompt.
            turn: the messages of the environment.
            tools: JSON schemas of functions that the policy may call.
        """
        last = rollout.token_ids[-1] if rollout.token_ids else None
        return chat.encode_reply(
            self.tokenizer,
            prompt,
            rollout.messages,
            turn,
            replace(self.frame, tools=tools),
            end_id=last if last in self.end_ids else None,
        )

    def tool_calls(
        self, token_ids: Sequence[int], *, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[ToolCall, ...] | None:
        """Return the tool calls in a turn of the policy, for `Message.tool_calls`.

        Args:
            token_ids: the tokens of the turn.
            tools: JSON schemas of functions that the policy may call.
        """
        text = self.decode(self._without_end(token_ids))
        return chat.tool_calls(self.tokenizer, text, replace(self.frame, tools=tools))

    def split_calls(
        self, token_ids: Sequence[int], *, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the text that the policy wrote beside its calls of tools, and these calls.

        Args:
            token_ids: the tokens of the turn.
            tools: JSON schemas of functions that the policy may call.
        """
        text = self.decode(self._without_end(token_ids))
        return chat.split_calls(self.tokenizer, text, replace(self.frame, tools=tools))

    def _without_end(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens of a turn without the one that ends it, if there is one."""
        ended = bool(token_ids) and token_ids[-1] in self.end_ids
        return token_ids[: len(token_ids) - ended]

    def completion_text(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """Return the text of the completion `token_ids` of a prompt."""
        return self.decode(token_ids, after=prompt_ids)

    def decode(self, token_ids: Sequence[int], *, after: Sequence[int] = ()) -> str:
        """Return the text of tokens that the policy drew (see `pieces.decode`).

        Special tokens are in it, except those that end a turn, and padding.

        Args:
            token_ids: the tokens.
            after: the tokens before.
        """
        return pieces.decode(self.tokenizer, token_ids, hidden=self.hidden_ids, after=after)

    @property
    def hidden_ids(self) -> frozenset[int]:
        """Return the tokens that have no text."""
        return pieces.hidden_ids(self.tokenizer, self.end_ids)
