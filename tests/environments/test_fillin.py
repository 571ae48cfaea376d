"""The fill-in environment: gaps that fit their texts, what is paid, what never is, and judges that fail."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from grpo_core import (
    MASK,
    ConfigError,
    Group,
    Judgement,
    JudgeRequest,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.testing import FakeJudge, assert_environment
from grpo_env_fillin.corpus import built_in
from grpo_env_fillin.env import FillIn, FillInConfig
from grpo_env_fillin.gaps import Gaps, cut


def likeness(request: JudgeRequest) -> float:
    """Share of the characters that are those of the reference."""
    wanted = request.reference or ""
    return sum(a == b for a, b in zip(request.candidate, wanted, strict=False)) / max(
        len(request.candidate), len(wanted), 1
    )


def environment(judge: Any = None, *, audit: Any = None, **settings: Any) -> FillIn:
    judges = {"default": judge or FakeJudge(likeness), **({"audit": audit} if audit else {})}
    return FillIn(FillInConfig(**settings), Services(judges=judges))


def ask(env: FillIn, index: int = 0, *, split: str = "train", level: float = 0.5) -> Task[Gaps]:
    return env.task(TaskKey("fillin", split, index, 0, level))  # type: ignore[arg-type]


def judged(env: FillIn, task: Task[Gaps], *answers: str) -> list[Verdict]:
    (verdicts,) = asyncio.run(
        env.verify_batch([Group(task, [Rollout.of(answer) for answer in answers])])
    )
    return verdicts


# What is asked


@pytest.mark.slow
@pytest.mark.parametrize("form", ["masked", "causal"])
@pytest.mark.parametrize("unit", ["word", "character"])
def test_it_keeps_the_promises_of_an_environment(form: str, unit: str) -> None:
    assert_environment(environment(form=form, unit=unit))


@pytest.mark.parametrize("unit", ["word", "character"])
def test_texts_with_their_golds_are_whole_and_each_token_has_a_mask(unit: Any) -> None:
    rng = random.Random(0)
    odd = "a", "?!", "", "two  spaces, and-hyphens (brackets)", "ein Wörterbuch für Größen"
    for text in (*built_in()["train"][:200], *odd):
        for rate in (0.05, 0.3, 1.0):
            gaps = cut(text, rng, unit=unit, rate=rate, span=4)
            assert gaps.filled(gaps.golds) == text
            assert gaps.masked.count(MASK) == sum(gaps.tokens) >= 1
            sizes = [len(gold.split()) if unit == "word" else len(gold) for gold in gaps.golds]
            assert [size or 1 for size in sizes] == list(gaps.tokens)
            core = text[len(gaps.pieces[0]) : len(text) - len(gaps.pieces[-1])]
            assert gaps.core(gaps.golds) == core
            assert all(gaps.pieces[1:-1])  # gaps do not touch


def test_more_is_missing_at_a_higher_level_and_the_settings_have_the_last_word() -> None:
    def share(level: float, **settings: Any) -> tuple[float, int]:
        env = environment(unit="character", **settings)
        found = [ask(env, index, level=level).data for index in range(200)]
        return sum(sum(g.tokens) for g in found) / sum(len(g.filled(g.golds)) for g in found), max(
            max(g.tokens) for g in found
        )

    shares = [share(level) for level in (0.0, 0.5, 1.0)]
    assert [a for a, _ in shares] == pytest.approx([0.1, 0.25, 0.4], abs=0.03)
    assert [longest for _, longest in shares] == [3, 7, 12]
    assert share(1.0, rate=0.1, span=2) == (pytest.approx(0.1, abs=0.03), 2)


def test_texts_of_a_file_are_asked_and_none_is_on_both_sides(tmp_path: Path) -> None:
    lines = [f"This is the line with the number {number}." for number in range(100)]
    (tmp_path / "texts.txt").write_text("\n\n".join(lines + lines[:10]) + "\n", encoding="utf-8")
    env = environment(path=str(tmp_path / "texts.txt"))
    trained, held_out = set[str](), set[str]()
    for split, found in (("train", trained), ("eval", held_out)):
        for index in range(env.size(split)):  # type: ignore[arg-type]
            gaps = ask(env, index, split=split).data
            found.add(gaps.filled(gaps.golds))
    assert trained | held_out == set(lines)
    assert not trained & held_out
    assert 5 <= len(held_out) <= 40
    before = env.fingerprint()
    (tmp_path / "texts.txt").write_text("\n".join(lines[:-1]), encoding="utf-8")
    assert environment(path=str(tmp_path / "texts.txt")).fingerprint() != before


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "one text on each line"),
        (b"only one\n", "too few"),
        (b"a [MASK] b\n", "marks gaps"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        environment(path=str(tmp_path / "texts.txt"))
    for settings in ({"path": str(tmp_path)}, {"rate": 1.5}, {"span": -1}):
        with pytest.raises(ConfigError, match=r"one text on each line|has to be a share"):
            environment(**settings)


# What is paid


def test_the_reference_gets_everything_and_the_judge_sees_the_gaps_alone() -> None:
    judge = FakeJudge(likeness)
    env = environment(judge, unit="character")
    task = ask(env)
    (verdict,) = judged(env, task, env.reference(task))
    assert (verdict.total, verdict.passed, verdict.rewards["exact"].value) == (1.0, True, 1.0)
    assert verdict.answer == task.data.filled(task.data.golds)
    assert verdict.metrics == {"judge/over_reference": 0.0}
    (request,) = judge.requests
    assert request.context + request.candidate + request.suffix == task.data.filled(task.data.golds)
    assert request.candidate == request.reference


def test_equal_answers_are_judged_once_and_the_judge_is_asked_once_for_all_groups() -> None:
    calls: list[int] = []

    class Counting(FakeJudge):
        async def judge(self, requests: Any) -> Any:
            calls.append(len(requests))
            return await super().judge(requests)

    env = environment(Counting(likeness), unit="character")
    tasks = [ask(env, index) for index in range(3)]
    wrong = [json.dumps(["qwzjxvkp"[: len(gold)] for gold in task.data.golds]) for task in tasks]
    groups = [Group(task, [Rollout.of(text)] * 4) for task, text in zip(tasks, wrong, strict=True)]
    assert len(asyncio.run(env.verify_batch(groups))) == 3
    assert calls == [6]  # each wrong answer and each reference


HACKS = {
    "nothing": lambda golds: "",
    "no array": lambda golds: " ".join(golds),
    "an object": lambda golds: json.dumps({"fills": golds}),
    "numbers": lambda golds: json.dumps([1] * len(golds)),
    "too few": lambda golds: json.dumps(golds[1:]),
    "empty": lambda golds: json.dumps([""] * len(golds)),
    "long": lambda golds: json.dumps([gold * 9 for gold in golds]),
    "one character again and again": lambda golds: json.dumps(
        ["e" * max(4, len(g)) for g in golds]
    ),
    "half of it deep": lambda golds: "[" * 5000,
    "two arrays": lambda golds: json.dumps(golds) * 2,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", HACKS)
@pytest.mark.parametrize("unit", ["word", "character"])
def test_a_judge_that_likes_everything_pays_no_hack(name: str, unit: str) -> None:
    env = environment(FakeJudge(lambda request: 1.0), unit=unit, rate=0.4, span=8)
    for index in range(5):
        task = ask(env, index)
        (verdict,) = judged(env, task, HACKS[name](list(task.data.golds)))
        assert (verdict.total, verdict.passed, verdict.error) == (0.0, False, None), verdict
        assert verdict.rewards["judge"].note


@pytest.mark.parametrize("unit", ["word", "character"])
def test_a_fill_that_is_no_utf8_gets_the_floor_and_spoils_no_other(unit: str) -> None:
    def writes(request: JudgeRequest) -> float:
        return float(bool(request.candidate.encode()))  # as every scorer that tokenizes it

    env = environment(FakeJudge(writes), unit=unit, form="causal")
    task = ask(env)
    broken = json.dumps([gold[:-1] + "\ud800" for gold in task.data.golds])
    bad, good = judged(env, task, broken, env.reference(task))
    assert (bad.total, bad.error) == (0.0, None)
    assert "not a JSON array of texts" in bad.rewards["judge"].note
    assert (good.total, good.error) == (1.0, None)


def test_a_copy_of_the_context_is_not_paid_unless_the_reference_is_one() -> None:
    env = environment(FakeJudge(lambda request: 1.0))
    around = ("the cook makes a very good soup and then ", ".")
    gaps = Gaps(around, ("eats all of it alone today",), (6,), "word")
    task = Task(TaskKey("fillin", "train", 0), gaps.masked, gaps)
    copy, own_words = '["cook makes a very good soup"]', '["sits down for a long while"]'
    assert [verdict.total for verdict in judged(env, task, copy, own_words)] == [0.0, 1.0]


def test_an_audit_is_logged_and_never_paid_and_a_judge_that_fails_is_an_error() -> None:
    class Failing(FakeJudge):
        async def judge(self, requests: Any) -> Any:
            return [Judgement(0.0, error="the server is down") for _ in requests]

    env = environment(Failing(likeness))
    task = ask(env)
    (verdict,) = judged(env, task, env.reference(task))
    assert verdict.error == "the judge: the server is down"
    env = environment(audit=FakeJudge(lambda request: 0.25))
    good, bad = judged(env, task, env.reference(task), "no array")
    assert (good.total, good.metrics["judge/audit"], bad.metrics["judge/audit"]) == (1.0, 0.25, 0.0)
    (verdict,) = judged(environment(audit=Failing(likeness)), task, env.reference(task))
    assert (verdict.total, dict(verdict.metrics)) == (1.0, {"judge/over_reference": 0.0})


def test_a_fill_that_the_judge_prefers_to_the_reference_is_logged_as_such() -> None:
    judge = FakeJudge(lambda request: 0.4 if request.candidate == request.reference else 0.9)
    env = environment(judge, unit="character")
    task = ask(env)
    fills = json.dumps([gold[::-1] for gold in task.data.golds])
    (verdict,) = judged(env, task, fills)
    assert verdict.metrics["judge/over_reference"] == pytest.approx(0.5)


def test_a_causal_answer_is_its_first_line_or_an_array_of_several() -> None:
    env = environment(form="causal")
    task = ask(env)
    assert task.prompt.endswith("Missing:")  # type: ignore[union-attr]
    assert task.prompt.count("___") == len(task.data.golds) + 3  # type: ignore[union-attr]
    answer, array = env.reference(task), json.dumps(list(task.data.golds), indent=2)
    right = [f" {answer}\n\nText: and so on", array]
    right += [array.replace("[\n  ", "[", 1), f"{array}\nDone."]
    wrong = (f"{answer} indeed", f"{array}\n\nText: and so on\nMissing: {array}")
    assert [verdict.total for verdict in judged(env, task, *right, *wrong)] == [1.0] * 4 + [0.0] * 2
