"""Turn tokens into deltas of a completion, of which none takes anything back.

What later tokens may still change is held back: the bytes of half a character, the beginning of a
stop string or of a tag, white space at the end of thoughts, and what may be a call of a tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from grpo_core import Message
from grpo_core.api.training import Policy
from grpo_core.engine.models import pieces
from grpo_core.protocol.endpoint import Choice
from grpo_core.protocol.sampler import Alternatives
from grpo_endpoint.requests import Delta, Likely, ServedChoice

_UNFINISHED = "\ufffd"
"""Ends a text whose last bytes are no whole character."""
_BEGINS_CALL = re.compile(r"[<\[{]")
"""A character with which the calls of every format begin."""
_CONTEXT = 2
"""Tokens before a piece on which its text may depend."""


class Unfolding:
    """Tell the deltas of one completion.

    Args:
        number: number of the completion within its request.
        policy: the policy whose tokens these are.
        prompt_ids: the tokens (P,) that are continued.
        stop: the strings that end the completion.
        may_think: whether it may begin with thoughts.
        has_tools: whether it may have calls of tools.
        is_held: whether its content is told at the end alone, as it becomes a call.
        tell: is called with each delta.
    """

    def __init__(
        self,
        number: int,
        policy: Policy,
        prompt_ids: Sequence[int],
        *,
        stop: Sequence[str],
        may_think: bool,
        has_tools: bool,
        is_held: bool,
        tell: Callable[[Delta], None],
    ) -> None:
        self._number, self._policy, self._tell = number, policy, tell
        self._ids = [*prompt_ids[-_CONTEXT:]]
        self._prompt_ids, self._stop = prompt_ids, stop
        self._may_think, self._has_tools, self._is_held = may_think, has_tools, is_held
        self._window = self._known = len(self._ids)
        self._text = ""
        self._told = Message("assistant", "")
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._alternatives: list[Likely] = []
        self._count = 0

    def add(self, token: int, logprob: float, alternatives: Alternatives) -> None:
        """Go on with a token that was drawn."""
        self._ids.append(token)
        self._count += 1
        self._tokens.append(token_text(self._policy, token))
        self._logprobs.append(logprob)
        if alternatives:
            self._alternatives.append(likely(self._policy, alternatives))
        if self._is_held or not self._read_text():
            return
        thoughts, content = self._certain()
        self._tell_more(thoughts, content)

    def finish(self, choice: Choice) -> None:
        """Tell the rest of the completion, of which `choice` is all."""
        message, rest = choice.message, slice(self._count, None)
        self._tokens += choice.tokens[rest]
        self._logprobs += choice.logprobs[rest]
        if isinstance(choice, ServedChoice):
            self._alternatives += choice.alternatives[rest]
        self._tell(
            self._delta(
                _more(message.thoughts, self._told.thoughts),
                _more(message.content if self._may_think else choice.text, self._told.content),
                choice,
            )
        )

    def _tell_more(self, thoughts: str, content: str) -> None:
        new_thoughts = _more(thoughts, self._told.thoughts)
        new_content = _more(content, self._told.content)
        if new_thoughts or new_content:
            self._told = Message(
                "assistant",
                self._told.content + new_content,
                thoughts=self._told.thoughts + new_thoughts,
            )
            self._tell(self._delta(new_thoughts, new_content))

    def _delta(self, thoughts: str, content: str, choice: Choice | None = None) -> Delta:
        """Return a delta with the tokens since the last one; `choice` is all, in the last one."""
        tokens, logprobs = tuple(self._tokens), tuple(self._logprobs)
        alternatives = tuple(self._alternatives)
        self._tokens, self._logprobs, self._alternatives = [], [], []
        calls = () if choice is None else choice.message.tool_calls or ()
        finish = None if choice is None else choice.finish
        return Delta(self._number, thoughts, content, tokens, logprobs, alternatives, calls, finish)

    def _read_text(self) -> bool:
        """Add the text of the last tokens; return whether there is any."""
        start = max(0, self._window - _CONTEXT)
        after, window = self._ids[start : self._window], self._ids[self._window :]
        text = self._policy.decode(window, after=after)
        if text.endswith(_UNFINISHED):
            return False
        before = self._policy.decode(window[: self._known - self._window], after=after)
        self._window, self._known = self._known, len(self._ids)
        self._text += text[len(before) :]
        return len(text) > len(before)

    def _certain(self) -> tuple[str, str]:
        """Return the thoughts and the content that no later token changes."""
        ends = [place for place in map(self._text.find, self._stop) if place >= 0]
        text = self._text[: min(ends)] if ends else _without_beginnings(self._text, self._stop)
        if not self._may_think:
            return "", text
        tags = self._policy.thought_tags
        message = self._policy.split(text, self._prompt_ids)
        thoughts, content = message.thoughts, message.content
        if tags is not None and tags[0].startswith(text.lstrip()):
            return "", ""  # it may become the tag that opens a thought
        if tags is not None and thoughts and not content:
            thoughts = _without_beginnings(thoughts, [tags[1]]).rstrip()
        if self._has_tools:
            content = _BEGINS_CALL.split(content, maxsplit=1)[0].rstrip()
            content = "" if content[:1].isspace() else content
        return thoughts, content


def token_text(policy: Policy, token: int) -> str:
    """Return the text of one token, special ones included."""
    return pieces.decode(policy.tokenizer, [token])


def likely(policy: Policy, alternatives: Alternatives) -> Likely:
    """Return alternatives with the texts of their tokens."""
    return tuple((token_text(policy, token), logprob) for token, logprob in alternatives)


def _more(whole: str, told: str) -> str:
    """Return what a text has beyond the part of it that was told."""
    return whole[len(told) :] if whole.startswith(told) else ""


def _without_beginnings(text: str, strings: Sequence[str]) -> str:
    """Return a text without the longest end of it with which one of the strings may begin."""
    held = 0
    for string in strings:
        longest = min(len(string) - 1, len(text))
        held = max(
            held,
            next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0),
        )
    return text[: len(text) - held]
