"""`held_out`: which tasks are held out is decided by the words of what they ask."""

import itertools
import subprocess
import sys
from string import ascii_lowercase

import pytest

from grpo_core import held_out
from grpo_core.protocol.types import Message, Task, TaskKey
from grpo_core.words import normalized_prompt

WORDS = ["".join(letters) for letters in itertools.product(ascii_lowercase[:16], repeat=3)]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_about_the_share_of_the_texts_is_held_out(share: float) -> None:
    found = sum(held_out(word, share) for word in WORDS) / len(WORDS)
    assert all(held_out(word, share + 0.1) for word in WORDS if held_out(word, share))
    assert abs(found - share) < 4 * (share * (1 - share) / len(WORDS)) ** 0.5


VARIANTS = (
    "Which town is north of Straßburg?",
    "WHICH TOWN IS NORTH OF STRASSBURG",
    "  which\ttown is\n\nnorth of  straßburg ?! ",
    "Straßburg: north of which town is",
)


@pytest.mark.parametrize("text", VARIANTS)
def test_case_spacing_punctuation_and_order_of_words_do_not_matter(text: str) -> None:
    for share in (number / 100 for number in range(1, 100)):
        assert held_out(text, share) == held_out(VARIANTS[0], share)


def test_words_are_whole_and_count_as_often_as_they_occur() -> None:
    def side(text: str) -> list[bool]:
        return [held_out(text, number / 1000) for number in range(1, 1000)]

    assert len({tuple(side(text)) for text in ("ab c", "a bc", "abc", "abc abc")}) == 4


def test_texts_without_words_differ_by_their_characters_and_not_by_their_spacing() -> None:
    brackets = ["".join(signs) for signs in itertools.product("()[]{}", repeat=4)]
    found = sum(map(held_out, brackets)) / len(brackets)
    assert 0.15 < found < 0.25
    assert all(held_out(text) == held_out(" ".join(text)) for text in brackets)


def test_any_text_is_decided_also_an_empty_one_and_half_of_a_surrogate_pair() -> None:
    assert {type(held_out(text)) for text in ("", " ", "\ud800", "\x00", "é" * 10_000)} == {bool}


def test_prompts_that_the_check_of_splits_takes_for_one_are_on_one_side() -> None:
    def asked(text: str) -> Task[None]:
        return Task(TaskKey("any", "train", 0), (Message("user", text),), None)

    for text in (f"Say {word}." for word in WORDS[:500]):
        variant = text.upper().replace(" ", "  ").rstrip(".")
        assert normalized_prompt(asked(text)) == normalized_prompt(asked(variant))
        assert held_out(text) == held_out(variant)


def test_another_process_with_other_hashes_holds_out_the_same_texts() -> None:
    script = f"from grpo_core import held_out; print([held_out(w) for w in {WORDS[:200]!r}])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == str([held_out(word) for word in WORDS[:200]])


def test_these_texts_stay_where_they_are_in_every_version() -> None:
    words = ("hello", "world", "sun", "moon", "7", "9", "4 + 3")
    for share in ((), (0.2,)):
        assert [word for word in words if held_out(word, *share)] == ["hello", "sun", "9"]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="has to be from 0 to 1"):
        held_out("hello", share)
