"""Write dialogues as requests of the OpenAI API, and read its answers as turns of the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from grpo_core import ConfigError, Message, ToolCall
from grpo_core.api.protocol import MAX_CALLS, Tags, opens_thought, read_api_calls
from grpo_core.calls.api_client import CallError, FailureKind, error_text
from grpo_core.extract import is_text
from grpo_evals.thoughts import is_thought, read_thoughts
from grpo_evals.types import EndpointUsage, NoText, Refusal

_MOST_TOKENS = 10**9
"""A larger count of tokens in one answer is not plausible, and is ignored."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Holds one turn of the policy."""

    text: str
    """What it says as the server wrote it, without the calls that stand apart."""
    finish: Literal["stop", "length"] = "stop"
    """Whether it ended by itself, or was cut off."""
    tool_calls: tuple[ToolCall, ...] | None = None
    """Its calls of tools; None: there are none apart from the text."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """The message as later requests repeat it."""
    refused: Refusal | None = None
    """Why the server gave no whole answer."""
    usage: EndpointUsage = field(default_factory=EndpointUsage)
    """What it cost; nothing is known of requests that failed."""
    tokens: int = 0
    """Number of its tokens, as the endpoint counts them; 0 if it does not say."""
    thoughts: str = ""
    """What the model thought before, if the server sends it apart."""
    thoughts_in: str = ""
    """The field with the thoughts."""
    no_text: NoText | None = None
    """Why the content of the answer is empty; None: it is not, or calls of tools are its turn."""
    said: Message = field(default_factory=lambda: Message("assistant", ""))
    """The turn as verifiers take it: its thoughts apart from its content (see `split`)."""

    def split(self, tags: Tags | None, *, opened: bool) -> ChatTurn:
        """Return the turn with `said`: thoughts that stand in the text are split off.

        Those that the server sent apart stay as they are.

        Args:
            tags: the texts that open and close thoughts; None: nothing is a thought.
            opened: whether the prompt opened a thought.
        """
        if self.thoughts:
            said = Message("assistant", self.text, self.tool_calls, self.thoughts)
            return replace(self, said=said)
        said = Message.turn(self.text, tags, opened=opened, tool_calls=self.tool_calls)
        is_cut = self.finish == "length" and self.refused is None and not self.tool_calls
        if is_cut and said.thoughts and not said.content:
            return replace(self, said=said, no_text="thoughts_cut")
        return replace(self, said=said)


def read_body(body: bytes) -> Any:
    """Return the JSON value of a body, in which every text is valid.

    Raises:
        CallError: it is not JSON.
    """

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        start = body[:100].decode(errors="replace")
        message = f"the answer is not JSON ({error}): {start}"
        raise CallError(message, FailureKind.UNREADABLE) from None


def read_turn(value: Any, *, has_tools: bool) -> ChatTurn:
    """Return the turn in an answer to a chat or text completion request.

    Args:
        value: the JSON value of its body.
        has_tools: whether the policy may call tools; otherwise calls in the answer are ignored.

    Raises:
        CallError: it holds no turn.
    """
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and isinstance(choice.get("text"), str):
        message = {**choice, "content": choice["text"]}
    if not isinstance(choice, dict) or not isinstance(message, dict):
        text = error_text(json.dumps(value).encode())[:200]
        raise CallError(f"the answer holds no completion: {text}", FailureKind.UNREADABLE)
    reason = choice.get("finish_reason")
    if reason in ("abort", "error"):
        raise CallError(f"the server gave up the answer ({reason})", FailureKind.UNAVAILABLE)
    written = message.get("tool_calls") if has_tools else None
    calls = read_api_calls(written)
    content = _content(message)
    thoughts, thoughts_in = read_thoughts(message)
    usage = _usage(value.get("usage"))
    sent_back: dict[str, Any] = {"role": "assistant", "content": content}
    if calls and isinstance(written, list):
        sent_back["tool_calls"] = written[:MAX_CALLS]
    return ChatTurn(
        content,
        "length" if reason in ("length", "content_filter") else "stop",
        calls or None,
        sent_back,
        "filter" if reason == "content_filter" else None,
        usage,
        usage.completion_tokens,
        thoughts,
        thoughts_in,
        None if calls else _why_no_text(value, message, reason, has_tools=has_tools),
    )


class Dialogue:
    """Holds the messages of one attempt in the form in which requests repeat them."""

    def __init__(self, prompt: str | tuple[Message, ...]) -> None:
        """Begin a dialogue.

        Args:
            prompt: raw text, which a request has continued, or a chat.

        Raises:
            ConfigError: the prompt is no valid text.
        """
        self.is_chat = not isinstance(prompt, str)
        self._text = "" if self.is_chat else str(prompt)
        self._messages: list[Mapping[str, Any]] = []
        self._unanswered: list[str] = []
        """The ids of the last calls that no result follows yet."""
        self._calls = 0
        texts = [prompt] if isinstance(prompt, str) else [message.content for message in prompt]
        for text in texts:
            if not is_text(text):
                raise ConfigError(
                    "a prompt holds half of a surrogate pair, which is not valid text and cannot "
                    f"be sent; remove it: {text!a:.200}"
                )
        if not isinstance(prompt, str):
            self.add(prompt)

    def opens_thought(self, tags: Tags | None) -> bool:
        """Return whether a raw text ends with an opening tag; of a chat only the server knows."""
        return not self.is_chat and opens_thought(self._text, tags)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request that asks for the next turn."""
        return {"messages": list(self._messages)} if self.is_chat else {"prompt": self._text}

    def add(self, messages: Sequence[Message]) -> None:
        """Append messages that are not a turn of this attempt's policy.

        A result of a tool is linked to its call by the call's id. Since the API wants a result for
        each call, calls that nothing answers get an empty one.
        """
        for message in messages:
            content = message.raw if any(message.thought_marks) else message.content
            self._text += content
            entry: dict[str, Any] = {"role": message.role, "content": content}
            if message.role == "tool":
                entry["tool_call_id"] = self._unanswered.pop(0) if self._unanswered else "call"
            else:
                self._end_calls()
            if message.tool_calls:
                entry["tool_calls"] = [self._written(call) for call in message.tool_calls]
                self._unanswered = [call["id"] for call in entry["tool_calls"]]
            self._messages.append(entry)
        self._end_calls()

    def add_turn(self, turn: ChatTurn) -> None:
        """Append a turn of the policy, as the server wrote it."""
        self._text += turn.text
        message = dict(turn.message)
        if "tool_calls" in message:
            message["tool_calls"] = [self._with_id(call) for call in message["tool_calls"]]
            self._unanswered = [call["id"] for call in message["tool_calls"]]
        self._messages.append(message)

    def _end_calls(self) -> None:
        self._messages += [
            {"role": "tool", "content": "", "tool_call_id": call_id} for call_id in self._unanswered
        ]
        self._unanswered = []

    def _written(self, call: ToolCall) -> dict[str, Any]:
        """Return a call of a message that an environment wrote, such as an example."""
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
        return self._with_id({"id": call.id, "type": "function", "function": function})

    def _with_id(self, call: Any) -> dict[str, Any]:
        """Return a call with an id; one that is no object is repeated as a call without a name."""
        self._calls += 1
        fields = dict(call) if isinstance(call, dict) else {"function": {"name": ""}}
        call_id = fields.get("id")
        named = isinstance(call_id, str) and call_id
        return {**fields, "type": "function", "id": call_id if named else f"call_{self._calls}"}


def _content(message: Mapping[str, Any]) -> str:
    """Return the text of a message, or else that of its refusal; "" if there is none."""
    content = message.get("content")
    if isinstance(content, list):  # parts, as some servers send them
        parts = [
            part.get("text") for part in content if isinstance(part, dict) and not is_thought(part)
        ]
        content = "".join(text for text in parts if isinstance(text, str))
    text = content or message.get("refusal")
    return text if isinstance(text, str) else ""


def _why_no_text(
    value: Mapping[str, Any], message: Mapping[str, Any], reason: object, *, has_tools: bool
) -> NoText | None:
    """Return why the content of an answer is empty; None if it is not, or a filter emptied it.

    Args:
        value: the answer.
        message: its message.
        reason: its finish_reason.
        has_tools: whether the policy may call tools.
    """
    if reason == "content_filter" or _content({**message, "refusal": None}).strip():
        return None
    if _content(message).strip():
        return "refusal"
    has_thoughts = bool(read_thoughts(message)[0])
    if reason == "length":
        return "thoughts_cut" if has_thoughts or _thought_tokens(value.get("usage")) else "cut"
    if message.get("tool_calls") and not has_tools:
        return "calls"
    return "thoughts" if has_thoughts else "empty"


def _usage(usage: object) -> EndpointUsage:
    """Return what an answer cost; thoughts that a server counts apart are written tokens, too."""
    counts = usage if isinstance(usage, dict) else {}
    read, written, total = (
        _count(counts.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    return EndpointUsage(
        requests=1,
        prompt_tokens=read,
        completion_tokens=max(written, total - read) if read else written,
    )


def _thought_tokens(usage: object) -> int:
    """Return the number of tokens of the thoughts; 0 if the endpoint does not say."""
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    return _count(details.get("reasoning_tokens")) if isinstance(details, dict) else 0


def _count(value: object) -> int:
    """Return a count of tokens, or 0 for a value that cannot be one."""
    plausible = type(value) is int and 0 <= value <= _MOST_TOKENS
    return value if plausible and isinstance(value, int) else 0
