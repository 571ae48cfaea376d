"""Split what a model writes into its thoughts and its answer.

Only a thought that opens the turn, or was opened by the prompt, is one, up to its first closing
tag. A later opening tag is ordinary text, and so is a closing tag that no thought precedes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Tags = tuple[str, str]
"""The texts that open and close a model's thoughts."""
DEFAULT_TAGS: Tags = ("<think>", "</think>")
"""The tags of most models, and those that R1-Zero's prompt asks a base model for."""
_KNOWN_TAGS: tuple[Tags, ...] = (
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<ifm|think>", "</ifm|think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    DEFAULT_TAGS,
)
"""The tags of the models of Mistral (Magistral), IBM, Google, ByteDance (Seed), MiniMax, MBZUAI,
Moonshot (Kimi-VL), Cohere (Command A), Swiss AI (Apertus), Google (Gemma 4), OpenAI (gpt-oss), and
of all others. The default is the last: some templates accept it beside their own."""
_BLANK = re.compile(r"[\s\ufeff]*")
"""White space, and byte order marks."""
_HARMONY = "<|channel|>analysis"
"""What a template of gpt-oss holds, which writes its messages piece by piece."""


@dataclass(frozen=True, slots=True)
class SplitTurn:
    """Holds a turn of the policy in its parts; `marks[0] + thoughts + marks[1] + content` is it."""

    thoughts: str
    """What stands between the tags, without the white space around it."""
    content: str
    """What follows the thoughts; all of the turn if there are none."""
    marks: Tags = ("", "")
    """The texts before and after the thoughts: the tags, with the white space around them."""


def split_thoughts(
    text: str, tags: Tags | None = DEFAULT_TAGS, *, opened: bool = False
) -> SplitTurn:
    """Return the thoughts and the content of a turn of the policy.

    A thought that is never closed leaves no content: there is no answer yet.

    Args:
        text: the turn.
        tags: the tags; None: nothing is a thought.
        opened: whether the prompt ends with the opening tag, so that the turn begins as a thought.
            The turn may repeat the tag.
    """
    if tags is None:
        return SplitTurn("", text)
    opening, closing = tags
    blank = _BLANK.match(text)
    start = blank.end() if blank is not None else 0
    if text.startswith(opening, start):
        start += len(opening)
    elif opened:
        start = 0
    else:
        return SplitTurn("", text)
    end = text.find(closing, start)
    inside = text[start:] if end < 0 else text[start:end]
    content = "" if end < 0 else text[end + len(closing) :].lstrip()
    thoughts = inside.strip()
    before = start + len(inside) - len(inside.lstrip())
    after = before + len(thoughts)
    return SplitTurn(thoughts, content, (text[:before], text[after : len(text) - len(content)]))


def opens_thought(text: str, tags: Tags | None) -> bool:
    """Return whether a prompt ends with the opening tag, white space aside."""
    return tags is not None and text.rstrip().endswith(tags[0])


def template_tags(template: object) -> Tags:
    """Return the tags that a chat template shows, by the closing one; else the default.

    Args:
        template: the template, or several by their names.
    """
    text = str(template)
    if _HARMONY in text:
        return next(tags for tags in _KNOWN_TAGS if tags[0].startswith(_HARMONY))
    return next((tags for tags in _KNOWN_TAGS if tags[1] in text), DEFAULT_TAGS)


def chosen_tags(setting: Sequence[str] | None, template: object = None) -> Tags | None:
    """Return the tags that `model.thought_tags` stands for; None: nothing is a thought.

    Args:
        setting: the setting; None: as the template shows, () for none.
        template: the chat template of the model, if it is known.
    """
    if setting is None:
        return template_tags(template)
    return (setting[0], setting[1]) if setting else None


def closing_tag(marks: Tags) -> str:
    """Return the closing tag that belongs to the opening one in the marks; "" if it is unknown."""
    opening = _BLANK.sub("", marks[0], count=1).rstrip()
    return next((tags[1] for tags in _KNOWN_TAGS if tags[0] == opening), "")
