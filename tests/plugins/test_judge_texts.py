"""Texts that a judge of this process cannot score get 0, without an error for a whole batch."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

from grpo_core import JudgeRequest
from grpo_judge.contrast import NO_SCORE
from grpo_judge.likelihood import Likelihood, LikelihoodConfig
from grpo_judge.scorer import Scorer, ScorerConfig

from ..train.tiny import tiny_tokenizer

POSITIONS = 40
SHAPE = {"vocab_size": 104, "n_embd": 32, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
LEARNED: dict[str, Any] = {**SHAPE, "n_positions": POSITIONS}


def scores(judge: Any, *requests: JudgeRequest) -> list[Any]:
    return list(asyncio.run(judge.judge(list(requests))))


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A random sequence classifier whose positions are learned and few."""
    torch.manual_seed(0)
    model = GPT2ForSequenceClassification(GPT2Config(**LEARNED, num_labels=2))
    model.save_pretrained(tmp_path / "judge")
    tiny_tokenizer().save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


def test_a_text_without_tokens_gets_0_alone_and_in_a_batch(classifier: Path) -> None:
    judge = Scorer(ScorerConfig(model=str(classifier), template="{candidate}"))
    (alone,) = scores(judge, JudgeRequest("hello"))
    (empty,) = scores(judge, JudgeRequest(""))
    assert (empty.score, empty.explanation, empty.error) == (0.0, NO_SCORE, None)
    hello = JudgeRequest("hello")
    first, second, third = scores(judge, hello, JudgeRequest(""), hello)
    assert second == empty
    assert first.score == third.score == pytest.approx(alone.score, abs=1e-6)


def test_a_text_longer_than_a_scorer_reads_is_cut_like_one_over_max_tokens(
    classifier: Path,
) -> None:
    judge = Scorer(ScorerConfig(model=str(classifier), max_tokens=512))
    end = "y" * POSITIONS
    long, short = scores(judge, JudgeRequest("x" * 1000 + end), JudgeRequest(end))
    assert (long.error, long.score) == (None, pytest.approx(short.score, abs=1e-6))


def test_a_token_that_the_model_has_no_row_for_is_its_own_texts_fault_alone(tmp_path: Path) -> None:
    """Some tokenizers know more tokens than their model, and whoever writes one chooses it."""
    tokenizer = tiny_tokenizer()
    few = {**LEARNED, "vocab_size": len(tokenizer)}
    tokenizer.add_tokens(["<odd>"])
    torch.manual_seed(0)
    GPT2ForSequenceClassification(GPT2Config(**few, num_labels=2)).save_pretrained(tmp_path / "s")
    GPT2LMHeadModel(GPT2Config(**few)).save_pretrained(tmp_path / "l")
    for name in ("s", "l"):
        tokenizer.save_pretrained(tmp_path / name)
    scorer = Scorer(ScorerConfig(model=str(tmp_path / "s"), template="{candidate}"))
    fine, hostile = scores(scorer, JudgeRequest("abc"), JudgeRequest("ab<odd>"))
    assert (hostile.score, hostile.explanation, hostile.error) == (0.0, NO_SCORE, None)
    assert fine.score > 0
    likelihood = Likelihood(LikelihoodConfig(model=str(tmp_path / "l")))
    outside, inside = likelihood._likelihoods([("", "ab<odd>", ""), ("", "abc", "")])
    assert math.isnan(outside)
    assert math.isfinite(inside)


def test_scores_that_overflow_are_0_for_a_text_and_an_error_where_all_do(classifier: Path) -> None:
    judge = Scorer(ScorerConfig(model=str(classifier), template="{candidate}"))
    embedding = judge._frozen.model.transformer.wte.weight.data
    embedding[tiny_tokenizer()("~")["input_ids"][0]] = math.nan
    fine, hostile = scores(judge, JudgeRequest("hello"), JudgeRequest("a~b"))
    assert 0 < fine.score < 1
    assert (hostile.score, hostile.explanation, hostile.error) == (0.0, NO_SCORE, None)
    judge._frozen.model.score.weight.data[:] = math.nan
    (broken,) = scores(judge, JudgeRequest("hello"))
    assert "not finite, also to a neutral text" in broken.error


def test_a_fill_longer_than_a_model_reads_gets_0_and_the_others_their_score(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = GPT2LMHeadModel(GPT2Config(**LEARNED, initializer_range=0.5))
    model.save_pretrained(tmp_path / "judge")
    tiny_tokenizer().save_pretrained(tmp_path / "judge")
    no_guards = {"longest": 99.0, "shortest": 0.0, "distinct": 0.0}
    judge = Likelihood(LikelihoodConfig(model=str(tmp_path / "judge"), **no_guards))

    def asked(fill: str, reference: str = "cd ab ef", context: str = "abc ") -> JudgeRequest:
        return JudgeRequest(fill, context=context, suffix=" x", reference=reference)

    words = ("cd", "ab", "ef", "qr", "st", "uv", "xy", "zz")
    references = [" ".join(words[place : place + 3]) for place in range(len(words) - 2)]
    judgeable = [text for text in references if scores(judge, asked(text, text))[0].error is None]
    assert judgeable, "a random model prefers none of the references"
    gold = judgeable[0]
    right, hostile = scores(judge, asked(gold, gold), asked(gold + " " + "mn op" * 10, gold))
    assert (right.score, right.error) == (1.0, None)
    assert (hostile.score, hostile.explanation, hostile.error) == (0.0, NO_SCORE, None)
    (nothing,) = scores(judge, asked(gold, gold, context="c" * 100))
    assert "gives the reference or an empty fill no score" in nothing.error
