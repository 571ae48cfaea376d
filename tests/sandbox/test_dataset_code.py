"""Rows with tests: programs and tests of published shapes, run apart from one another in a real sandbox."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Environment, Rollout, Services, TaskKey, Verdict
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_sandbox.auto import Auto, AutoConfig

MBPP = {
    "text": "Write a function to find the shared elements of two tuples.",
    "code": "def similar(a, b):\n    return tuple(set(a) & set(b))",
    "test_list": ["assert set(similar((3, 4), (4, 7))) == {4}", "assert similar((1,), (2,)) == ()"],
    "test_setup_code": "",
}
HUMAN_EVAL = {
    "prompt": "from typing import List\n\n\ndef double(values: List[int]) -> List[int]:\n    \"\"\"Double each.\"\"\"\n",
    "entry_point": "double",
    "canonical_solution": "    return [2 * value for value in values]\n",
    "test": "def check(candidate):\n    assert candidate([]) == []\n    for n in range(5):\n"
    "        assert candidate([n, 1]) == [2 * n, 2]\n",
}  # fmt: skip
PAIRS = {
    "question": "Add two numbers.",
    "entry_point": "add",
    "tests": [{"input": [1, 2], "output": 3}, {"input": [2, 2], "output": 4}],
    "solution": "def add(a, b): return a + b",
}
CHAINED = {
    "question": "Write `encode` so that encoding twice gives the text, and refuses numbers.",
    "entry_point": "encode",
    "tests": [
        "import random\ntext = ''.join(random.choices('abc', k=9))\nassert encode(encode(text)) == text",
        "try:\n    encode(3)\nexcept TypeError:\n    pass\nelse:\n    assert False",
        "assert encode(text='ab', by=1) == 'ba' and encode('x') == 'x'",
    ],
    "solution": "def encode(text, by=0):\n    return text[::-1]",
}


def code_rows(path: Path, row: Mapping[str, Any], **settings: Any) -> Environment[Any]:
    path.write_text(json.dumps(row))
    given = {"path": str(path), "eval_share": 0.0, **settings}
    return load_environment(
        PluginHost(),
        "dataset/code",
        given,
        lend=lambda *_: Services(sandboxes={"default": Auto(AutoConfig())}),
    )


def judged(env: Environment[Any], sources: Sequence[str]) -> list[Verdict]:
    async def verdicts() -> list[Verdict]:
        task = env.task(TaskKey("dataset/code", "train", 0))
        try:
            texts = [f"```python\n{source}\n```" for source in sources]
            return [await env.averify(task, Rollout.of(text)) for text in texts]
        finally:
            await env.services.sandbox().close()

    return asyncio.run(verdicts())


CASES: Mapping[str, tuple[Mapping[str, Any], str, Sequence[str]]] = {
    "mbpp": (MBPP, "def similar(x, y): return tuple(i for i in x if i in y)", ["def similar(x, y): return ()", "def similar(x, y): return [4]"]),
    "humaneval": (HUMAN_EVAL, "def double(values: List[int]):\n    print('hi')\n    return [v + v for v in values]", ["def double(values): return values"]),
    "pairs": (PAIRS, "add = lambda a, b: b + a", ["def add(a, b): return 3", "def add(a): return 3"]),
    "chained": (CHAINED, "def encode(text, by=0): return text[::-1]", ["def encode(text, by=0): return text + 'x'", "def encode(text, by=0): return str(text)[::-1]"]),
}  # fmt: skip
THIEVES = (
    "import sys\nsys.exit(0)",
    "def {0}(*a, **k):\n    import os\n    os._exit(0)",
    "def {0}(*a, **k): return type('Equal', (), {{'__eq__': lambda s, o: True, '__iter__': lambda s: iter(())}})()",
    "import builtins\nbuiltins.AssertionError = Exception\ndef {0}(*a, **k): raise AssertionError('passed')",
    "def {0}(*a, **k):\n    import inspect\n    return inspect.stack()[1].frame.f_globals['KNOWN']",
)


@pytest.mark.parametrize("name", CASES)
def test_right_programs_pass_and_wrong_or_dishonest_ones_do_not(tmp_path: Path, name: str) -> None:
    row, right, wrong = CASES[name]
    env = code_rows(tmp_path / "rows.jsonl", row)
    task = env.task(TaskKey("dataset/code", "train", 0))
    entry = env._code(row).entry  # type: ignore[attr-defined]
    reference = str(env.reference(task)).removeprefix("```python\n").removesuffix("\n```")
    stolen = [thief.format(entry) for thief in THIEVES]
    verdicts = judged(env, [reference, right, *wrong, *stolen])
    assert [verdict.passed for verdict in verdicts] == [
        True,
        True,
        *[False] * (len(wrong) + len(stolen)),
    ]
    assert all("test " in verdict.rewards["passed"].note for verdict in verdicts[2:])


def test_a_part_of_the_tests_is_paid_where_it_is_asked_for(tmp_path: Path) -> None:
    (verdict,) = judged(
        code_rows(tmp_path / "rows.jsonl", PAIRS, partial=True), ["def add(a, b): return 3"]
    )
    assert (verdict.rewards["passed"].value, verdict.passed) == (0.25, False)
    assert verdict.rewards["passed"].note.startswith("test 2 of 2: AssertionError")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q"}, r"there are no tests \(tests, test_list, test, asserts, test_cases\)"),
        ({"question": "q", "tests": ["assert f(1) ="]}, "'tests' is not Python"),
        ({"question": "q", "tests": ["assert 1 == 1"]}, "calls no function of its own"),
        ({"question": "q", "tests": [{"input": 1}], "entry_point": "f"}, "has no input and output"),
        ({"question": "q", "tests": ["f(1) == 2"]}, "'tests' asserts nothing, so every program would pass it"),
        (
            {"question": "q", "test": "def check(f): return f(1) == 2", "entry_point": "g"},
            "'test' asserts nothing",
        ),
        (
            {"question": "q", "tests": ["assert g(1) == 2"], "entry_point": "f"},
            r"'entry_point' says 'f', and the tests do not call it \(they call 'g'",
        ),
    ],
)  # fmt: skip
def test_rows_without_tests_are_refused_before_anything_is_paid(
    tmp_path: Path, row: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        code_rows(tmp_path / "rows.jsonl", row)


def test_the_reward_code_stands_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the reward `code` stands alone, and env\.reward names exact, too"
    ):
        code_rows(tmp_path / "rows.jsonl", PAIRS, reward=["code", "exact"])
