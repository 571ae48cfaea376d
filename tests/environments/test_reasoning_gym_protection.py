"""What stands between a lazy or hostile answer and the verifiers of reasoning-gym."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from grpo_core import ConfigError, Outcome, Rollout, Services, Task, TaskKey, Verdict
from grpo_core.config.settings import VerifyConfig
from grpo_core.plugins.environments import build_environment
from grpo_core.testing import check_environment
from grpo_core.verify.engine import Verifier
from grpo_env_reasoning_gym import grpo_environments
from grpo_env_reasoning_gym.execution import EXECUTING, PARSED_BY_SYMPY, SANDBOXED
from grpo_env_reasoning_gym.faults import DatasetFault, faults

SPECS = {spec.name.partition("/")[2]: spec for spec in grpo_environments()}
ACCEPTED = {"execute_answers": True, "allow_faulty": True}
EXECUTES = {"eval", "exec", "compile", "__import__", "parse_expr", "sympify", "S", "lambdify"}
READS_KEY = """exec('''
import os
for process in os.listdir("/proc"):
    try:
        text = open(f"/proc/{process}/environ", errors="replace").read()
    except OSError:
        continue
    if "GRPO_TEST_SECRET" in text:
        open({path!r}, "w").write("stolen")
''')"""
REPLACES_VERIFIER = (
    "[setattr(__import__('reasoning_gym').factory.DATASETS['n_queens'][0], 'score_answer', "
    "lambda self, answer, entry: 1.0)]"
)
MEAN, TASKS = 0.8, 60


def judged(
    name: str, answers: Sequence[str], services: Services | None = None, **overrides: Any
) -> tuple[Task[Any], list[Verdict]]:
    """The verdicts on answers to one task, one after the other, as a run gets them."""

    async def run() -> tuple[Task[Any], list[Verdict]]:
        lend = None if services is None else lambda *_: services
        env = build_environment(SPECS[name], overrides, lend=lend)
        settings = VerifyConfig(workers=1, retries=0, namespace="off")
        async with Verifier(env, settings=settings) as verifier:
            (task,) = await verifier.tasks([TaskKey(f"reasoning-gym/{name}", "train", 0)])
            reference = await verifier.reference(task)
            verdicts = []
            for answer in answers:
                text = answer.replace("REFERENCE", str(reference)[8:-9])
                rollout = Rollout.of(f"<answer>{text}</answer>")
                verdicts += (await verifier.verify([task], [[rollout]]))[0]
            return task, verdicts

    return asyncio.run(run())


# Answers that run as Python


def names_used(function: Any, seen: set[CodeType]) -> Iterator[str]:
    """The names in the code of a function, and of what it calls in its own module."""
    module = function.__globals__

    def of_code(code: CodeType) -> Iterator[str]:
        if code in seen:
            return
        seen.add(code)
        for name in code.co_names:
            yield name
            called = module.get(name)
            if isinstance(called, FunctionType) and called.__module__ == function.__module__:
                yield from names_used(called, seen)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from of_code(constant)

    yield from of_code(function.__code__)


def executes_in_score_answer(name: str) -> bool:
    dataset_class = DATASETS[name][0]
    seen: set[CodeType] = set()
    names = set(names_used(dataset_class.score_answer, seen))
    for _ in range(4):  # the methods that these call, too
        for method in list(names):
            function = getattr(dataset_class, method, None)
            if isinstance(function, FunctionType):
                names |= set(names_used(function, seen))
    return bool(names & EXECUTES)


def test_the_datasets_that_execute_answers_are_those_whose_code_does() -> None:
    of_the_task = {"bitwise_arithmetic", "number_sorting"}  # eval on the question, or the reference
    found = {name for name in SPECS if executes_in_score_answer(name)}
    assert found - of_the_task == EXECUTING == SANDBOXED | PARSED_BY_SYMPY
    assert len(EXECUTING) == 9


def assert_refused(name: str, why: str, setting: str) -> None:
    """Fail unless a dataset is refused in one line, which names the setting that accepts it."""
    with pytest.raises(ConfigError) as refused:
        build_environment(SPECS[name])
    message = str(refused.value)
    assert message.startswith(why)
    assert f"--set env.{setting}=true" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", sorted(PARSED_BY_SYMPY))
def test_answers_for_sympys_parser_are_refused_unless_the_config_accepts_that(name: str) -> None:
    why = f"'reasoning-gym/{name}' scores an answer by running it as Python"
    assert_refused(name, why, "execute_answers")
    env = build_environment(SPECS[name], {"execute_answers": True})
    assert (env.rung(), env.needs, env.raises_at_answers) == ("verify", frozenset(), False)


@pytest.mark.parametrize("name", sorted(SANDBOXED))
def test_the_others_need_a_sandbox_unless_the_config_accepts_that_answers_run(name: str) -> None:
    env = build_environment(SPECS[name])
    assert (env.rung(), env.needs, env.raises_at_answers) == ("averify", {"sandbox"}, False)
    bare = build_environment(SPECS[name], {"execute_answers": True})
    assert (bare.rung(), bare.needs, bare.raises_at_answers) == ("verify", frozenset(), False)
    task = env.task(TaskKey("n", "train", 0))
    with pytest.raises(ConfigError, match="no sandbox 'default' is configured"):
        asyncio.run(env.averify(task, Rollout.of("<answer>x</answer>")))


@pytest.mark.parametrize("name", sorted(SANDBOXED))
def test_a_sandbox_pays_what_the_library_pays_for_texts_and_more(
    name: str, services: Services
) -> None:
    env = build_environment(SPECS[name], ACCEPTED)
    task = env.task(TaskKey(f"reasoning-gym/{name}", "train", 0))
    reference = task.data.entry["answer"]
    rows = [line.split() for line in reference.splitlines()]
    flat = [word for row in rows for word in row] if len(rows) > 1 else list(reference)
    texts = [
        *(reference, str(rows), str(tuple(rows)), str(flat), str(rows[0])),
        *(f"list({rows!r})", f"map(str, {flat!r})", f"({rows!r} for _ in 'a')"),
        *("range(3)", "1 / 0", "nonsense", "[1, 2", "", "5", "None", "lambda: 1", "[[]]"),
    ]
    published = [env.verify(task, Rollout.of(f"<answer>{text}</answer>")).total for text in texts]
    _, verdicts = judged(name, texts, services)
    assert [verdict.total for verdict in verdicts] == published
    assert published[0] == 1
    assert any(0 < total < 1 for total in published)


def test_an_answer_neither_reads_the_trainers_secrets_nor_replaces_the_verifier(
    services: Services, tmp_path: Path
) -> None:
    stolen = tmp_path / "stolen"
    tmp_path.chmod(0o777)
    hostile = [READS_KEY.replace("{path!r}", repr(str(stolen))), REPLACES_VERIFIER]
    _, verdicts = judged("n_queens", [*hostile, "wrong", "REFERENCE"], services)
    assert [verdict.total for verdict in verdicts] == [0, 0, 0, 1]
    assert not stolen.exists()
    assert "evaluating the answer failed (exception: " in verdicts[1].rewards["reward"].note


@pytest.mark.slow
def test_without_the_sandbox_both_attacks_succeed(tmp_path: Path) -> None:
    """So the test above shows what the sandbox does. The secret is that of this test's parent."""
    _, verdicts = judged("n_queens", [REPLACES_VERIFIER, "wrong"], execute_answers=True)
    assert [verdict.total for verdict in verdicts] == [0, 1]
    stolen = tmp_path / "stolen"
    program = (
        "from tests.environments.test_reasoning_gym_protection import READS_KEY, judged\n"
        f"text = READS_KEY.replace('{{path!r}}', repr({str(stolen)!r}))\n"
        "judged('n_queens', [text], execute_answers=True)\n"
    )
    environ = {**os.environ, "GRPO_TEST_SECRET": "s", "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert stolen.read_text() == "stolen"


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').write(3, b'{\"ok\": 1.0}') and __import__('os')._exit(0)",
        "exec('while True: pass')",
        "[0] * 10**10",
        "__import__('sys').exit(0)",
        "type('Same', (str,), {'__eq__': lambda self, other: True, '__hash__': str.__hash__})()",
        "[entry['answer']]",
        "eval.__globals__",
    ],
)
def test_what_a_hostile_answer_claims_is_a_value_and_no_score(
    answer: str, services: Services
) -> None:
    _, (verdict, right) = judged("string_insertion", [answer, "REFERENCE"], services)
    assert (verdict.total, verdict.passed, verdict.error) == (0, False, None)
    assert right.passed


def test_a_sandbox_that_fails_is_an_error_and_no_reward() -> None:
    class Down:
        async def run(self, programs: Any) -> Any:
            return [[Outcome("infra_error", error="no jail")]]

    services = Services(sandboxes={"default": Down()})  # type: ignore[dict-item]
    _, (verdict, right) = judged("n_queens", ["wrong", "REFERENCE"], services)
    assert verdict.error is not None
    assert "no jail" in verdict.error
    assert right.passed  # it is a reference, so nothing is evaluated


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(EXECUTING))
def test_the_kit_names_each_of_the_nine_where_nothing_protects_them(name: str) -> None:
    env = build_environment(SPECS[name], {"execute_answers": True})
    report = check_environment(env, tasks=8, only=["safety.eval"])
    (result,) = [result for result in report.results if result.check == "safety.eval"]
    assert result.status == "invalid"
    assert "executed what the policy wrote" in result.message


# Answers that are paid for nothing


def mean_reward(fault: DatasetFault, *, tasks: int = TASKS) -> float:
    env = build_environment(SPECS[fault.dataset], ACCEPTED)
    rewards = []
    for index in range(tasks):
        task = env.task(TaskKey(f"reasoning-gym/{fault.dataset}", "train", index, 0, fault.level))
        text = fault.answer(task.prompt[1].content)  # type: ignore[union-attr]
        rewards.append(env.verify(task, Rollout.of(f"<answer>{text}</answer>")).total)
    return sum(rewards) / tasks


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.dataset)
def test_each_known_fault_is_there_as_large_as_the_file_says(fault: DatasetFault) -> None:
    assert mean_reward(fault) == pytest.approx(fault.share, abs=0.002)
    assert fault.share >= MEAN
    assert fault.version == "0.1.25"


@pytest.mark.parametrize("name", sorted({fault.dataset for fault in faults()} - PARSED_BY_SYMPY))
def test_a_dataset_that_pays_for_nothing_is_refused_unless_the_config_accepts_it(name: str) -> None:
    why = f"the verifier of 'reasoning-gym/{name}' pays answers that solve"
    assert_refused(name, why, "allow_faulty")
    assert build_environment(SPECS[name], {"allow_faulty": True}).rung() == "verify"
    assert len([fault for fault in faults() if fault.dataset == name]) == 1


# Answers at which a verifier raises


@pytest.mark.slow
def test_an_answer_at_which_the_library_raises_gets_the_floor_and_others_their_reward() -> None:
    """The task and the verdicts are a worker's, which has found the class and has its settings."""
    name, settings = "prime_factorization", {"settings": {"min_value": 5, "max_value": 60}}
    answers = ["asdf", "×", "7 × 11 × 13", "2 × three", "REFERENCE"]
    task, verdicts = judged(name, answers, **settings)
    assert task.prompt == build_environment(SPECS[name], settings).task(task.key).prompt
    assert [verdict.raised for verdict in verdicts] == ["ValueError", "", "", "ValueError", ""]
    assert [verdict.total for verdict in verdicts] == [0, 0.01, 0.01, 0, 1]
    assert {verdict.error for verdict in verdicts} == {None}
    assert "raises ValueError" in verdicts[0].rewards["reward"].note
    assert [verdict.passed for verdict in verdicts] == [False] * 4 + [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("game_of_life", "{}"),  # a KeyError is none of those for which an answer is blamed
        ("boxnet", "5"),  # it has no reference
    ],
)
def test_what_else_verifiers_raise_stays_an_error(name: str, answer: str) -> None:
    _, (verdict,) = judged(name, [answer], allow_faulty=True)
    assert verdict.error is not None
