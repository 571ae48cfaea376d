"""Rows as tasks: files, templates, rewards, and what is said when they do not fit."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Environment, MissingExtraError, Rollout, TaskKey
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.testing import check_environment
from grpo_core.verify.engine import Verifier

ROWS = [
    {"question": f"What is {n} + {n}?", "answer": f"It is easy.\n#### {2 * n:,}"}
    for n in range(600, 640)
]
REWARD = """
def half(text, row):
    print("saw", text)
    return 0.5 if str(row["n"]) in text else 0.0
"""


def write(path: Path, rows: Iterable[Mapping[str, Any]], end: str = "\n") -> Path:
    path.write_text("".join(json.dumps(row) + end for row in rows))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", ROWS, "\n\n")


def dataset(**settings: Any) -> Environment[Any]:
    return load_environment(PluginHost(), "dataset", settings)


def score(env: Environment[Any], text: str, index: int = 0) -> float:
    task = env.task(TaskKey("dataset", "train", index))
    return env.verify(task, Rollout.of(text)).total


def numbers(path: Path, **more: Any) -> Environment[Any]:
    return dataset(path=str(path), reward="number", answer_pattern="#### (.*)", **more)


FORMS = (str, str.upper, lambda text: f"  {text} ", lambda text: " ".join(text.split()[::-1]))
ASKED_AGAIN = {
    "equal": [{"question": f"How much is {n}", "answer": "1"} for n in range(40)] * 2,
    "with another field": [{"question": f"How much is {n % 40}", "answer": "1", "id": n} for n in range(120)],
    "in other case, spaces or order of words": [
        {"question": form(f"How much is {n}"), "answer": "1"} for n in range(40) for form in FORMS
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ASKED_AGAIN)
def test_rows_that_ask_the_same_are_on_the_same_side(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "rows.jsonl", ASKED_AGAIN[kind])
    env = dataset(path=str(path), eval_share=0.3, prompt="{question}")
    train, held_out = set[str](), set[str]()
    for split, found in (("train", train), ("eval", held_out)):
        for index in range(env.size(split) or 0):  # type: ignore[arg-type]
            question = env.task(TaskKey("dataset", split, index)).data["question"]  # type: ignore[arg-type]
            found.update(re.findall(r"\d+", question))
    assert (env.size("train") or 0) + (env.size("eval") or 0) == len(ASKED_AGAIN[kind])
    assert len(train | held_out) == 40
    assert not train & held_out
    assert held_out


def test_rows_that_all_ask_the_same_are_refused_as_one_side_would_have_none(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    write(path, ({"question": "Say a number.", "answer": str(number)} for number in range(40)))
    with pytest.raises(
        ConfigError, match=r"all 40 rows are on one side, .* name held-out rows \(env\.eval_path\)"
    ):
        dataset(path=str(path))
    assert dataset(path=str(path), eval_share=0.0).size("train") == 40
    write(path, ({"question": f"Say {number}.", "answer": "1"} for number in range(3)))
    few = dataset(path=str(path), eval_share=0.01)  # few rows may have none that is held out
    assert few.size("train") == 3


def test_the_fingerprint_knows_rows_and_reward(rows: Path) -> None:
    before = numbers(rows).fingerprint()
    assert numbers(rows).fingerprint() == before
    rewards = ("operator:eq", "operator:ne")
    others = {dataset(path=str(rows), reward=name).fingerprint() for name in rewards}
    write(rows, ROWS[:1])
    assert len({before, *others, numbers(rows).fingerprint()}) == 4


@pytest.mark.slow
def test_answers_of_rows_are_references_for_a_reward_function_of_ones_own(tmp_path: Path) -> None:
    own = "def bare(text, row): return float(text.strip() == row['sum'])"
    (tmp_path / "own.py").write_text(own)
    sums = ({"question": f"{n} + {7 * n}?", "sum": str(8 * n)} for n in range(111, 311))
    path, reward = write(tmp_path / "sums.jsonl", sums), f"{tmp_path / 'own.py'}:bare"
    report = check_environment(dataset(path=str(path), reward=reward, answer="sum"))
    assert report.problems == (), str(report)
    not_asked = {result.check for result in report.results if result.status == "not_checked"}
    assert not {"verdict.reference", "floor.near", "floor.suffix", "floor.listed"} & not_asked
    without = dataset(path=str(path), reward=reward, answer="")
    assert without.reference(without.task(TaskKey("dataset", "train", 0))) is None


def test_numbers_are_compared_as_numbers_and_texts_as_texts(rows: Path) -> None:
    env = numbers(rows)
    wanted = re.findall(r"\d+", env.task(TaskKey("dataset", "train", 0)).data["question"])[0]
    right = 2 * int(wanted)
    assert score(env, f"<answer>{right}</answer>") == 1
    assert score(env, f"<answer> {right:,}.00 </answer>") == 1
    assert score(env, f"<answer>{right + 1}</answer>") == 0
    assert score(env, f"{right}") == 0
    for listed in (",".join(str(right)), f",,{right}", f"{right},", f"{right // 10},{right % 10}"):
        assert score(env, f"<answer>{listed}</answer>") == 0, listed
    texts = dataset(path=str(rows), answer="question", tag="")
    assert score(texts, f"what  IS {wanted} + {wanted}?") == 1


async def test_a_reward_of_ones_own_is_named_by_file_and_runs_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(REWARD)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"n": 7, "question": "Say seven."}) + "\n")
    monkeypatch.chdir(tmp_path)
    settings = {"path": "rows.jsonl", "eval_path": "rows.jsonl", "reward": "mine.py:half"}
    spec = PluginHost().get("environment", "dataset")
    async with Verifier(dataset(**settings), spec=spec, overrides=settings) as verifier:
        tasks = await verifier.tasks([TaskKey("dataset", "train", 0)])
        ((first, second),) = await verifier.verify(tasks, [[Rollout.of("7!"), Rollout.of("8")]])
        assert [first.total, second.total] == [0.5, 0.0]
        assert [first.output, second.output] == ["saw 7!", "saw 8"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"needs rows: set env\.path \(or --data\) to a file of rows, or env\.name"),
        ({"path": "none.jsonl"}, "cannot be read: No such file"),
        ({"path": "broken.jsonl"}, r"broken\.jsonl, line 1 is not JSON"),
        (
            {"path": "rows.jsonl", "prompt": "{text}"},
            r"all 40 rows of rows\.jsonl: env\.prompt '{text}' does not fit: there is no field 'text' "
            r"\(the row has question, answer\)",
        ),
        ({"path": "rows.jsonl", "eval_share": 1.0}, "env.eval_share is 1; it must be at least 0 and below 1"),
        ({"path": "rows.jsonl", "prompt": "{question"}, "is not a template: expected '}'"),
        ({"path": "rows.jsonl", "prompt": "question"}, r"names no field of the rows.*'env\.prompt={question}'"),
        ({"path": "rows.jsonl", "reward": "mine:f"}, r"is no installed module; for the file here write mine\.py:f"),
        (
            {"path": "rows.jsonl", "answer": "truth", "reward": "operator:eq"},
            "no row has the field 'truth' that env.answer names",
        ),
        (
            {"path": "rows.jsonl", "subset": "main"},
            r"env\.subset='main' is about a published dataset, but env\.path names a file",
        ),
        ({"path": "rows.jsonl", "eval_split": "test"}, r"env\.eval_split='test' is about a published dataset"),
        ({"name": "openai/gsm8k", "eval_path": "rows.jsonl", "eval_split": "test"}, "both name the held-out rows"),
        (
            {"path": "rows.jsonl", "answer_pattern": "#### (.*"},
            r"env\.answer_pattern '#### \(\.\*' is not a regular expression",
        ),
        (
            {"path": "rows.jsonl", "answer_pattern": "#### .*"},
            r"env\.answer_pattern '#### \.\*' has no group",
        ),
        ({"path": "rows.jsonl", "reward": "exakt"}, "env.reward='exakt' is not known; it is exact, number, .* FILE.py:FUNCTION"),
        ({"path": "rows.jsonl", "reward": "broken.py:half"}, "'.*broken.py:half' cannot be loaded: SyntaxError"),
        ({"path": "rows.jsonl", "promt": "x"}, r"env\.promt is not a setting of 'dataset'; did you mean 'env\.prompt'"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_say_so(
    rows: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(rows.parent)
    (rows.parent / "broken.jsonl").write_text('{"a": \n')
    (rows.parent / "broken.py").write_text("def half(:")
    (rows.parent / "mine.py").write_text("def f(text, row): return 1.0")
    with pytest.raises(ConfigError, match=message):
        dataset(**settings).task(TaskKey("dataset", "train", 0))


def test_a_published_dataset_without_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'grpo-core\[datasets\]'"):
        dataset(name="openai/gsm8k").size("train")
