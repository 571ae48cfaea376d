"""The environment wordle: marks, what counts as a guess, and what it pays."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core import TaskKey
from grpo_core.testing import assert_environment
from grpo_env_wordle.env import STAGES, Wordle, marks, stage_at
from grpo_env_wordle.words import WORDS, words_of
from tests.environments.episodes import play, total

ENV = Wordle()
LETTERS = st.text("abc", min_size=5, max_size=5)


def ask(index: int = 0, *, split: str = "train", level: float = 0.0):
    return ENV.task(TaskKey("wordle", split, index, 0, level))  # type: ignore[arg-type]


@pytest.mark.slow
def test_it_keeps_the_promises_of_an_environment() -> None:
    assert_environment(Wordle(), tasks=5)


@pytest.mark.parametrize(
    ("secret", "guess", "expected"),
    [
        ("crane", "crane", "GGGGG"),
        ("crane", "caner", "GYYYY"),
        ("abbey", "babes", "YYGG-"),
        ("loose", "ooooo", "-GG--"),
        ("apple", "paper", "YYGY-"),
    ],
)
def test_letters_are_marked(secret: str, guess: str, expected: str) -> None:
    assert marks(secret, guess) == expected


@given(LETTERS, LETTERS)
def test_no_letter_is_marked_more_often_than_the_word_has_it(secret: str, guess: str) -> None:
    marked = marks(secret, guess)
    places = [i for i in range(5) if secret[i] == guess[i]]
    assert [i for i, sign in enumerate(marked) if sign == "G"] == places
    has, shown = Counter(secret), Counter(g for g, m in zip(guess, marked, strict=True) if m != "-")
    asked = Counter(guess)
    assert shown == Counter(
        {letter: min(has[letter], asked[letter]) for letter in asked if has[letter]}
    )


def test_words_are_words_and_held_out_ones_are_never_trained_on() -> None:
    for letters, text in WORDS.items():
        words = text.split()
        assert len(words) == len(set(words))
        assert all(len(word) == letters and word.isascii() and word.islower() for word in words)
        train, held_out = set(words_of("train", letters)), set(words_of("eval", letters))
        assert train | held_out == set(words)
        assert not train & held_out
        assert len(held_out) > 100


@pytest.mark.parametrize("level", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_a_stage_decides_letters_candidates_and_guesses(level: float) -> None:
    stage = stage_at(level)
    assert stage is STAGES[min(4, round(5 * level))]
    for index in range(20):
        puzzle = ask(index, level=level).data
        assert len(puzzle.secret) == stage.letters
        assert len(puzzle.candidates) == stage.candidates
        assert puzzle.secret in (puzzle.candidates or words_of("train", stage.letters))


def test_fewer_guesses_pay_more_and_the_dialogue_tells_the_marks() -> None:
    task = ask()
    others = [word for word in task.data.candidates if word != task.data.secret]
    rewards = []
    for wrong in range(3):
        messages, verdict = play(ENV, task, [*others[:wrong], task.data.secret])
        assert verdict.passed
        assert verdict.metrics["guesses"] == wrong + 1
        rewards.append(total(ENV, verdict))
        for number, word in enumerate(others[:wrong]):
            assert messages[2 * number + 1].content == (
                f"{word}: {marks(task.data.secret, word)}. {2 - number} left. Next guess?"
            )
    assert rewards == sorted(rewards, reverse=True)
    assert rewards[0] == 1.0
    assert rewards[2] > 0.5


def test_the_game_ends_after_the_guesses_of_its_stage() -> None:
    task = ask()
    wrong = next(word for word in task.data.candidates if word != task.data.secret)
    messages, verdict = play(ENV, task, [wrong, wrong, wrong, task.data.secret])
    assert [message.content for message in messages if message.role == "assistant"] == [wrong] * 3
    assert not verdict.passed
    assert total(ENV, verdict) == pytest.approx(0.2)


@pytest.mark.parametrize("text", ["", "qzxv", "the word", "\ud800", "a" * 100_000])
def test_what_is_no_guess_uses_one_up_and_is_not_valid(text: str) -> None:
    task = ask()
    messages, verdict = play(ENV, task, [text, task.data.secret])
    assert messages[1].content == "no guess. 2 left. Next guess?"
    assert verdict.passed
    assert verdict.rewards["valid"].value == 0.5
