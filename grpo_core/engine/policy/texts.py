"""Turn prompts and chats into tokens, and tokens into texts and calls of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from grpo_core.engine.models import chat, pieces
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.templates import end_of_turn_id
from grpo_core.engine.policy.room import NoRoomError
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.thoughts import Tags, chosen_tags, opens_thought
from grpo_core.protocol.types import Message, ToolCall


class Texts:
    """Encode what a model reads, and decode what it writes.

    Args:
        tokenizer: the model's tokenizer.
        frame: system prompt and options of the chat template.
        end_ids: every token that ends a completion.
        context: most tokens that the model can attend to; None if unknown.
        thought_tags: the setting `model.thought_tags`.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        frame: ChatFrame,
        end_ids: tuple[int, ...],
        context: int | None,
        thought_tags: Sequence[str] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.frame = frame
        self.end_ids = end_ids
        """Every token that ends a completion."""
        self.context = context
        """Most tokens that the model can attend to; None if unknown."""
        self.thought_tags: Tags | None = chosen_tags(thought_tags, tokenizer.chat_template)
        """The texts that open and close the model's thoughts; None: nothing is a thought."""

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
        self,
        messages: tuple[Message, ...],
        *,
        tools: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[int, ...]:
        """Return the tokens of a chat whose calls of tools stand in `Message.tool_calls` alone.

        Args:
            messages: the chat.
            tools: JSON schemas of functions that the policy may call.
            arguments: arguments of the chat template besides those of the settings.
        """
        arguments = {**self.frame.arguments, **arguments}
        frame = replace(self.frame, tools=tools, calls_apart=True, arguments=arguments)
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
        self,
        prompt: str | tuple[Message, ...] | tuple[int, ...],
        answer: str,
        *,
        may_think: bool = False,
    ) -> tuple[int, ...]:
        """Return the tokens of `answer` as the policy would have generated it behind a prompt.

        Its end token is included. A thought that the prompt opened is closed before the answer,
        which would be a part of it otherwise.

        Args:
            prompt: raw text, chat messages, or the tokens of an agent's request.
            answer: the text of the answer.
            may_think: whether the answer may go on with the thought that the prompt opened, as
                examples in a file do; one that closes it is left as it is.
        """
        end = None if isinstance(prompt, str) else end_of_turn_id(self.tokenizer)
        end = end if end is not None else self.tokenizer.eos_token_id
        ends = [end] if end is not None else list(self.end_ids[:1])
        tags = self.thought_tags
        may_open = tags is not None and self._may_open(prompt, tags)
        is_alone = pieces.is_context_free(self.tokenizer)
        before = "" if is_alone and not may_open else self._text_of(prompt)
        if tags and opens_thought(before, tags) and not (may_think and tags[1] in answer):
            answer = f"{tags[1]}\n\n{answer}"
        return (*self.encode_text(answer, before=before), *ends)

    def _may_open(self, prompt: str | tuple[Message, ...] | tuple[int, ...], tags: Tags) -> bool:
        """Return whether a prompt may end with an opening tag; a chat is not rendered for it."""
        is_chat = not isinstance(prompt, str) and isinstance(next(iter(prompt), None), Message)
        return not is_chat or tags[0] in str(self.tokenizer.chat_template)

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
        token_ids: Sequence[int],
        prompt: str | tuple[Message, ...],
        messages: Sequence[Message],
        reply: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the tokens of the environment's reply in a dialogue.

        They end where the policy's next turn begins.

        Args:
            token_ids: all tokens after the prompt so far.
            prompt: the prompt.
            messages: all messages after the prompt so far, the last one the policy's.
            reply: the messages of the environment.
            tools: JSON schemas of functions that the policy may call.
        """
        last = token_ids[-1] if token_ids else None
        return chat.encode_reply(
            self.tokenizer,
            prompt,
            messages,
            reply,
            replace(self.frame, tools=tools),
            end_id=last if last in self.end_ids else None,
        )

    def turn(
        self,
        prefix_ids: Sequence[int],
        token_ids: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Message:
        """Return a turn of the policy: its thoughts, its content, and the calls in that.

        Args:
            prefix_ids: all tokens before it.
            token_ids: the tokens of the turn.
            tools: JSON schemas of functions that the policy may call.
        """
        text = self.completion_text(prefix_ids, token_ids)
        turn = Message.turn(text, self.thought_tags, opened=self._opens_thought(prefix_ids))
        calls = chat.tool_calls(self.tokenizer, turn.content, replace(self.frame, tools=tools))
        return replace(turn, tool_calls=calls)

    def split(self, text: str, prefix_ids: Sequence[int]) -> Message:
        """Return the text of a turn of the policy behind a prefix as thoughts and content."""
        return Message.turn(text, self.thought_tags, opened=self._opens_thought(prefix_ids))

    def _opens_thought(self, prefix_ids: Sequence[int]) -> bool:
        """Return whether a turn behind a prefix begins inside a thought."""
        return pieces.opens_thought(self.tokenizer, prefix_ids, self.thought_tags)

    def split_calls(
        self, content: str, *, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the text that the policy wrote beside its calls of tools, and these calls.

        Args:
            content: what it wrote after its thoughts.
            tools: JSON schemas of functions that the policy may call.
        """
        return chat.split_calls(self.tokenizer, content, replace(self.frame, tools=tools))

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

    @cached_property
    def longest_token(self) -> int:
        """Return the number of characters of the longest token; no token stands for more."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    @property
    def hidden_ids(self) -> frozenset[int]:
        """Return the tokens that have no text."""
        return pieces.hidden_ids(self.tokenizer, self.end_ids)
