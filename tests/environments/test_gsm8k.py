"""GSM8K: what is read, what is paid in both sets of reward functions, and what never earns correctness."""

import json
import os
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

from grpo_core import ConfigError, Rollout, Task, TaskKey, UserError
from grpo_core.testing import assert_environment
from grpo_core.verify.engine import Verifier
from grpo_env_gsm8k import fixed, legacy
from grpo_env_gsm8k.env import GSM8K, GSM8KConfig
from grpo_env_gsm8k.records import WordProblem

PUBLISHED = Path(
    os.environ.get("GRPO_GSM8K", Path(__file__).parents[3] / "shared" / "data" / "gsm8k")
)
GOOD = "<reasoning>\nOne and one.\nThat is two.\n</reasoning>\n<answer>\n18\n</answer>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two records for each split, in the published form."""
    for name, numbers in (("train", ("1,080", "18")), ("test", ("-5", "$70,000"))):
        text = "She has 2 * 3 = <<2*3=6>>6 eggs.\nThen more.\n#### "
        records = [{"question": f"{name} {n}?", "answer": text + n} for n in numbers]
        lines = [json.dumps(record) + "\n" for record in records]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def env(folder: Path, **more: Any) -> GSM8K:
    return GSM8K(GSM8KConfig(path=str(folder), **more))


def ask(
    environment: GSM8K, index: int = 0, *, split: str = "train", level: float = 0.0
) -> Task[WordProblem]:
    return environment.task(TaskKey("gsm8k", split, index, 0, level))  # type: ignore[arg-type]


def verdict(text: str, answer: str = "18", **more: Any) -> Any:
    environment = GSM8K(GSM8KConfig(source="templates", **more))
    task = ask(environment)
    return environment.verify(
        Task(task.key, task.prompt, WordProblem("?", answer, "")), Rollout.of(text)
    )


# What is read


def test_records_are_read_as_published(folder: Path) -> None:
    environment = env(folder)
    assert (environment.size("train"), environment.size("eval")) == (2, 2)
    assert [ask(environment, i).data.answer for i in (0, 1)] == ["1080", "18"]
    assert [ask(environment, i, split="eval").data.answer for i in (0, 1)] == ["-5", "70000"]
    assert ask(environment).data.reasoning == "She has 2 * 3 = 6 eggs.\nThen more."
    assert [message.role for message in ask(environment).prompt] == ["system", "user"]  # type: ignore[union-attr]
    assert len(ask(env(folder, example=True)).prompt) == 4


@pytest.mark.slow
@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published data is not here; name its folder by GRPO_GSM8K"
)
def test_every_published_record_is_parsed_and_its_reference_earns_everything() -> None:
    environment = GSM8K(GSM8KConfig(path=str(PUBLISHED)))
    assert (environment.size("train"), environment.size("eval")) == (7473, 1319)
    for split, count in (("train", 7473), ("eval", 1319)):
        for index in range(count):
            task = ask(environment, index, split=split)
            found = environment.verify(task, Rollout.of(environment.reference(task)))
            assert found.total == pytest.approx(1), (split, index)
            accuracies = [found.metrics[f"accuracy/{name}"] for name in ("strict", "lenient")]
            assert (found.passed, accuracies) == (True, [1, 1])


def test_without_data_the_error_names_the_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ["grpo-core[gsm8k]", "env.path=FOLDER", "env.source=templates"]
    with pytest.raises(ConfigError) as missing:
        env(tmp_path / "nothing")
    assert all(way in str(missing.value) for way in ways)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError) as not_installed:
        GSM8K()
    ways = ["[gsm8k]", "env.path", "env.source=templates"]
    assert all(way in str(not_installed.value) for way in ways)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"question": "q"}', r"test\.jsonl, line 3"),
        (b'{"question": "q", "answer": "#### one"}', r"test\.jsonl, line 3"),
        (b'{"question": "q", "answer": "#### 1\\n#### 2"}', r"test\.jsonl, line 3"),
        (b"[]", r"test\.jsonl, line 3"),
        (b"not JSON", r"test\.jsonl, line 3"),
        ('"Äpfel"'.encode("latin-1"), r"test\.jsonl: it is not UTF-8"),
    ],
)
def test_a_line_that_is_no_record_is_named(folder: Path, line: bytes, said: str) -> None:
    with (folder / "test.jsonl").open("ab") as file:
        file.write(line)
    with pytest.raises(ConfigError, match=said):
        env(folder)


# Templates


def test_templates_make_right_problems_that_grow_with_the_level() -> None:
    environment = GSM8K(GSM8KConfig(source="templates"))
    lengths = []
    for level in (0.0, 0.5, 1.0):
        problems = [ask(environment, index, level=level).data for index in range(100)]
        lengths.append(sum(len(problem.question) for problem in problems))
        for problem in problems:
            assert int(problem.answer) >= 1
            assert f"= {problem.answer} " in problem.reasoning.splitlines()[-1]
            for part in problem.reasoning.replace("\n", " ").split(". "):
                left, right = part.split(" = ")
                digits = "".join(c for c in left if c in "0123456789+-* ").strip(" ")
                assert eval(digits) == int(right.split()[0]), problem
    assert lengths == sorted(lengths)


def test_no_template_problem_is_asked_in_both_splits() -> None:
    environment = GSM8K(GSM8KConfig(source="templates"))
    trained, held_out = (
        {ask(environment, i, split=split).data.question for i in range(500)}
        for split in ("train", "eval")
    )
    assert trained & held_out == set()


@pytest.mark.slow
def test_it_keeps_the_promises_of_an_environment(folder: Path) -> None:
    assert_environment(GSM8K(GSM8KConfig(source="templates")))
    assert_environment(env(folder))


# The set `fixed`


def test_a_good_answer_earns_everything_with_or_without_a_newline_at_its_end() -> None:
    for text in (GOOD, GOOD + "\n"):
        found = verdict(text)
        assert found.total == pytest.approx(1)
        assert {part.value for part in found.rewards.values()} == {1}
    assert found.metrics["reasoning/words"] == 6
    assert found.metrics["reasoning/distinct_3"] == 1
    wrong = verdict(GOOD.replace("18", "19"))
    assert (wrong.total, wrong.passed) == (pytest.approx(0.2), False)


def test_accuracy_is_told_strictly_and_leniently_side_by_side() -> None:
    """The last number counts only where there is no answer block."""
    found = verdict("So she has $18 in all.")
    assert (found.metrics["accuracy/strict"], found.metrics["accuracy/lenient"]) == (0, 1)
    assert not found.passed
    assert verdict(GOOD.replace("18", "17") + "\nOr 18.").metrics["accuracy/lenient"] == 0


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        (GOOD, 4),
        (GOOD + "\n", 4),
        ("Well.\n" + GOOD + "\nDone.", 4),
        ("x<reasoning>\n r\n</reasoning>\n y<answer>\n 5\n</answer>zzz", 1),
        (GOOD.replace("\n", " "), 0),
        (GOOD + "\n" + GOOD, 0),
        (GOOD + "</answer>", 3),
        (GOOD.replace("<answer>\n", "<answer> "), 3),
    ],
)
def test_marks_count_that_stand_once_and_on_lines_of_their_own(text: str, marks: int) -> None:
    assert verdict(text).rewards["xmlcount"].value == marks / 4


@pytest.mark.parametrize(
    "text",
    [
        "<answer>18</answer>",
        "<answer>\n18\n</answer>\n<reasoning>\nLater.\n</reasoning>",
        "<reasoning>\n<answer>\n18\n</answer>\n</reasoning>",
        GOOD.replace("One", "<reasoning> One"),
    ],
)
def test_the_only_answer_counts_wherever_it_stands_and_the_format_is_paid_apart(text: str) -> None:
    found = verdict(text)
    assert found.passed
    assert found.rewards["correctness"].value == 1
    assert found.rewards["soft_format"].value == found.rewards["strict_format"].value == 0


def test_thoughts_are_no_part_of_fixed_and_a_part_of_legacy() -> None:
    thoughtful = f"<think>As <answer>...</answer> I write 18.</think>\n{GOOD}\n"
    assert verdict(thoughtful).total == pytest.approx(1)
    plain, thinking = (verdict(text, rewards="legacy") for text in (f"{GOOD}\n", thoughtful))
    assert plain.rewards["strict_format"].value == 0.5
    assert thinking.rewards["strict_format"].value == 0
    hidden = verdict(f"<think>{GOOD}</think>\nIt is 18.")
    assert (hidden.rewards["correctness"].value, hidden.passed) == (0, False)
    assert hidden.metrics["accuracy/lenient"] == 1


@pytest.mark.parametrize("answer", ["18", "18.0", "$18", " 18 ", "0018"])
def test_numbers_are_compared_as_decimals(answer: str) -> None:
    assert verdict(GOOD.replace("18", answer)).rewards["correctness"].value == 1
    assert verdict(GOOD.replace("18", "1,080"), answer="1080").passed
    assert verdict(GOOD.replace("18", "-$5"), answer="-5").passed


def test_the_reason_for_which_no_answer_is_read_is_noted() -> None:
    for text, note in (
        ("It is 18.", "exactly one block <answer>...</answer>: there is none"),
        (GOOD + GOOD, "<answer> occurs 2 times"),
        (GOOD.replace("18", "18 or 19"), "not one number: '18 or 19'"),
        (GOOD.replace("18", "36/2"), "not one number: '36/2'"),
    ):
        assert note in verdict(text).rewards["correctness"].note
    assert verdict(GOOD.replace("18", "1/2"), answer="0.5").passed


HACKS = {
    "bare number": "18",
    "all numbers listed": GOOD.replace("18", " ".join(map(str, range(100)))),
    "numbers with commas": GOOD.replace("18", ",".join(map(str, range(100)))),
    "tags in the reasoning": GOOD.replace("One", "<answer>18</answer> One"),
    "unicode digits": GOOD.replace("18", "１８"),
    "a sum": GOOD.replace("18", "9+9"),
    "18 and 10^5 zeros": GOOD.replace("18", "18." + "0" * 10**5),
    "misplaced commas": GOOD.replace("18", "1,8"),
    "1 MB of tags": "</reasoning><answer>" * 50_000,
    "1 MB of blocks": (GOOD + "\n") * 14_000,
    "null": "\x00",
}


@pytest.mark.parametrize("text", HACKS.values(), ids=HACKS)
def test_no_hack_earns_correctness_and_none_raises_or_takes_long(text: str) -> None:
    started = time.process_time()
    found = verdict(text)
    assert (found.rewards["correctness"].value, found.passed) == (0, False)
    assert found.total <= 0.2
    verdict(text, rewards="legacy")
    verdict(text, rewards="legacy", dotall=False)
    assert time.process_time() - started < 1


LAST = {
    "It weighs 3.5kg": "3.5",
    "about 1,080.50kg.": "1080.50",
    "it falls by \u22125": "-5",
    "-\u20ac5": "-5",
    "12\xa0345\u202f678.5 m": "12345678.5",
    "in 2019 100": "100",
    "72 clips, altogether.": "72",
    "10\u22125": "5",
    "18/2 = 9": "9",
    "50%": "50",
    "18" + "." * (fixed.TAIL - 2): "18",
}
"""Texts, and the last number in them."""
UNREADABLE = ["5k", "the 5th", "1e5", "3.5.1", "10,20", "of .5", "18/2", "at 12:30", "5 million"]
UNREADABLE += ["2½", "1 1/2", "5²", "cost –5", "1e999", "1" * 10**5]


@pytest.mark.parametrize("text", LAST)
def test_the_last_number_is_read_with_its_unit_its_sign_and_its_groups(text: str) -> None:
    assert fixed.last_number(text) == Decimal(LAST[text])


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:9])
def test_a_last_number_that_cannot_be_read_is_not_taken_for_another_one(text: str) -> None:
    assert fixed.last_number(f"First 7. {text}") is None
    assert fixed.last_number("x18") is None
    # What begins before the tail that is looked at is not cut.
    assert fixed.last_number("18" + "." * (fixed.TAIL - 1)) is None


# The set `legacy`


def test_legacy_values_are_those_that_were_reproduced() -> None:
    long = f"<reasoning>\n{'x' * 600}\n</reasoning>\n<answer>\n18\n</answer>"
    assert legacy.xmlcount(long) == pytest.approx(-0.146)
    assert legacy.xmlcount(long + "\n") == pytest.approx(0.5)
    assert verdict("18", rewards="legacy").total == 2.5  # a bare number
    assert verdict(long + "\n", rewards="legacy").total == pytest.approx(4)
    assert [legacy.integer(text) for text in ("-5", "1,000", "18.0", "²")] == [0, 0, 0, 0.5]
    assert legacy.correctness("<answer>18.0</answer>", "18") == 0
    twice = "<answer>17</answer><answer>18</answer>"  # the last answer wins
    assert legacy.correctness(twice, "18") == 2
    assert legacy.strict_format(GOOD) == 0
    assert legacy.strict_format(GOOD + "\n") == 0.5
    assert legacy.soft_format(GOOD + GOOD) == 0.5  # blocks twice
    assert legacy.soft_format(GOOD, dotall=False) == 0  # the first version knew one line
    one = GOOD.replace("\nThat is two.", "") + "\n"
    assert legacy.strict_format(one, dotall=False) == 0.5


@pytest.mark.parametrize(("rewards", "total"), [("legacy", 4.0), ("fixed", 1.0)])
async def test_a_run_pays_each_set_with_its_own_weights(
    rewards: Literal["legacy", "fixed"], total: float
) -> None:
    async with Verifier(GSM8K(GSM8KConfig(source="templates", rewards=rewards))) as verifier:
        (task,) = await verifier.tasks([TaskKey("gsm8k", "train", 0)])
        reference = Rollout.of(await verifier.reference(task) or "")
        ((verdict,),) = await verifier.verify([task], [[reference]])
    assert verdict.total == pytest.approx(total)
