"""Every bundled environment makes of an answer what the table of forms says."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Environment, Services, Task, TaskKey, Verdict
from grpo_core.config.settings import VerifyConfig
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.testing import FakeJudge
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import play
from grpo_env_besiege.env import Car
from grpo_env_fillin.env import FillIn, FillInConfig
from grpo_env_fizzbuzz.env import FizzBuzz
from grpo_env_parentheses.env import Parentheses
from grpo_env_sql.env import Sql
from grpo_env_terminal.env import Terminal
from grpo_env_wordle.env import Wordle

from .answer_forms import ALL, FORMS, READ, WHOLE, WRONG, Given

HOST = PluginHost()


@dataclass(frozen=True, slots=True)
class Subject:
    """Holds an environment with a task, and the pieces of answers to it."""

    env: Environment[Any]
    task: Task[Any]
    given: Given
    whole: str
    """A whole right answer."""


def tagged(env: Environment[Any], name: str) -> Subject:
    """Return a subject whose answers stand between tags."""
    task = env.task(TaskKey(name, "train", 0))
    whole = env.reference(task)
    assert isinstance(whole, str)
    right = whole.split("<answer>")[1].split("</answer>")[0].strip()
    wrong = str(int(right) + 1) if right.lstrip("-").isdigit() else f"{right}1"
    return Subject(env, task, Given(right, wrong, "", "", ""), whole)


def fenced(env: Environment[Any], name: str, label: str, **given: str) -> Subject:
    """Return a subject whose answers stand in a fence."""
    task = env.task(TaskKey(name, "train", 0))
    reference = env.reference(task)
    whole = reference if isinstance(reference, str) else reference[0]  # type: ignore[index]
    right = whole.partition(f"```{label}\n")[2].partition("\n```")[0]
    entry = getattr(task.data, "entry", "")
    texts = {name: text.format(entry=entry) for name, text in given.items()}
    return Subject(env, task, Given(right=right, label=label, **texts), whole)


def besiege() -> Subject:
    env = Car()
    task = env.task(TaskKey("besiege/car", "train", 0))
    whole = env.reference(task)
    assert whole is not None
    right = whole.partition("```json\n")[2].partition("\n```")[0]
    return Subject(env, task, Given(right, "[]", "[nothing]", "", "json"), whole)


def fillin() -> Subject:
    judge = FakeJudge(lambda request: float(request.candidate == request.reference))
    env = FillIn(FillInConfig(form="causal"), Services(judges={"default": judge}))
    task = env.task(TaskKey("fillin", "train", 0, level=0.5))
    right = env.reference(task)
    return Subject(env, task, Given(right, json.dumps([""]), "[nothing]", "", "json"), right)


def wordle() -> Subject:
    env = Wordle()
    task = env.task(TaskKey("wordle", "train", 0))
    right = env.reference(task)
    return Subject(env, task, Given(right, "wrong", "", "", ""), right)


def subject_of(name: str, folder: Path, services: Callable[[], Services]) -> Subject:
    """Return the subject of an environment of the table."""
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"question": f"{i}?", "answer": 41}) + "\n" for i in range(9))
    )
    dataset = {"path": str(rows), "prompt": "{question}", "reward": "number", "tag": "answer"}
    program = {"label": "python", "usage": "print({entry}(3))", "broken": "def {entry}(:"}
    program["wrong"] = "def {entry}(*_):\n    return 7"
    makers: Mapping[str, Callable[[], Subject]] = {
        "arithmetic": lambda: tagged(load_environment(HOST, "arithmetic"), "arithmetic"),
        "gsm8k": lambda: tagged(load_environment(HOST, "gsm8k", {"source": "templates"}), "gsm8k"),
        "dataset": lambda: tagged(load_environment(HOST, "dataset", dataset), "dataset"),
        "reasoning-gym": lambda: tagged(
            load_environment(HOST, "reasoning-gym/basic_arithmetic"), "reasoning-gym"
        ),
        "fizzbuzz": lambda: fenced(FizzBuzz(services=services()), "fizzbuzz", **program),
        "parentheses": lambda: fenced(Parentheses(services=services()), "parentheses", **program),
        "sql": lambda: fenced(
            Sql(), "sql", "sql", wrong="SELECT 1 WHERE 0", broken="SELEC", usage="SELECT 1"
        ),
        "terminal": lambda: fenced(
            Terminal(services=services()), "terminal", "sh", wrong="true", broken="(", usage="ls"
        ),
        "besiege": besiege,
        "fillin": fillin,
        "wordle": wordle,
    }
    return makers[name]()


async def verdicts_on(subject: Subject, texts: list[str]) -> list[Verdict]:
    """Return the verdict on each text, as a run and `grpo env score` would give it."""
    env, settings = subject.env, VerifyConfig(isolation="inline")
    verdicts = []
    async with Verifier(env, settings=settings, closes_env=False) as verifier:
        for text in texts:
            script = (text, "Done.") if verifier.has_episodes else text
            played = await play(verifier, subject.task, script, max_turns=env.max_turns, judge=True)
            assert played.verdict is not None
            assert played.verdict.scored
            verdicts.append(played.verdict)
    return verdicts


def outcome(verdict: Verdict, expected: str) -> str:
    """Return the expected outcome if it is this verdict's, else a description of the verdict."""
    notes = "; ".join(part.note for part in verdict.rewards.values() if part.note)
    if expected == READ and verdict.passed:
        return READ
    if expected == WRONG and not verdict.passed:
        return WRONG
    is_refused = not verdict.passed and verdict.total == 0 and notes
    if expected not in (READ, WRONG) and is_refused and re.search(expected, notes):
        return expected
    return f"passed {verdict.passed}, total {verdict.total:g}, notes {notes!r}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALL)
def test_answers_in_all_forms_are_read_or_refused_as_the_table_says(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    subject = subject_of(name, tmp_path, lambda: request.getfixturevalue("services"))
    forms = [form for form in FORMS if name in form.environments]
    texts = [form.write(subject.given).replace(WHOLE, subject.whole) for form in forms]
    expected = {form.name: form.outcome_of(name) for form in forms}
    verdicts = asyncio.run(verdicts_on(subject, texts))
    assert expected == {
        form.name: outcome(verdict, expected[form.name])
        for form, verdict in zip(forms, verdicts, strict=True)
    }


def test_the_table_has_at_least_thirty_forms() -> None:
    names = [form.name for form in FORMS]
    assert len(set(names)) >= 30
