"""Tests of the words that messages are made of: cut texts, and prompts as texts."""

import pytest

from grpo_core import Message, Task, TaskKey
from grpo_core.words import (
    common_prefix,
    cut,
    fit,
    joined,
    last_text,
    normalized_prompt,
    prompt_text,
)

KEY = TaskKey("words", "train", 0)
CHAT = (Message("system", "Be brief."), Message("user", "What is 2 + 2?"))


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 12, 13, 14, 1000])
def test_a_long_text_is_cut_behind_its_size_and_fitted_within_it(length: int) -> None:
    text = "".join(str(number % 10) for number in range(length))
    if length <= 10:
        assert cut(text, 10) == fit(text, 10) == text
    else:
        assert cut(text, 10) == "0123456789..."
        assert fit(text, 10) == "0123456..."


def test_a_prompt_is_one_text_whether_it_is_a_chat_or_not() -> None:
    text, chat = Task(KEY, "What is 2 + 2?", None), Task(KEY, CHAT, None)
    assert prompt_text(text) == last_text(text) == last_text(chat) == "What is 2 + 2?"
    assert prompt_text(chat) == joined(chat.prompt) == "Be brief.\nWhat is 2 + 2?"
    assert joined(()) == ""


def test_prompts_are_the_same_in_other_case_spacing_and_final_punctuation() -> None:
    written = [
        Task(KEY, text, None) for text in ("What is 2+2?", " what  IS 2 + 2 ", "What is 2+2.")
    ]
    assert len({normalized_prompt(task) for task in written}) == 1
    assert normalized_prompt(Task(KEY, "What is 2-2?", None)) != normalized_prompt(written[0])


@pytest.mark.parametrize(
    ("texts", "shared"),
    [
        ([], ""),
        ([""], ""),
        (["alone"], "alone"),
        (["say yes", "say no"], "say "),
        (["say", "say no"], "say"),
        (["yes", "no"], ""),
    ],
)
def test_texts_share_what_all_of_them_begin_with(texts: list[str], shared: str) -> None:
    assert common_prefix(texts) == shared
