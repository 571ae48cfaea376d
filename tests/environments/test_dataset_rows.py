"""Odd rows are named before anything is paid; what a row holds is compared as it was meant."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_core import ConfigError, Environment, Rollout, TaskKey, Verdict
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.verify.engine import Verifier

ODD = {
    "null": "is null",
    '""': "is empty",
    '" \\u00a0\\n"': "is empty",
    '"\\u200b\\ufeff"': "is empty",
    '"\\u2028"': "is empty",
    "NaN": "there is NaN or Infinity",
    "-Infinity": "there is NaN or Infinity",
    "{}": "is an object",
    '{"a": 1}': "is an object",
    "[]": "is an empty list",
    '"\\u3164"': "is empty",  # a character that nobody sees
    '["a", null]': "an item of the field 'answer' is null",
    '["a", " "]': "an item of the field 'answer' is empty",
    '[["a"]]': "is a list of lists",
    '["a", {}]': "an item of the field 'answer' is an object",
}
"""Answers as JSON that nothing can be compared with, and what is said of them."""


def line(number: int, answer: str) -> str:
    return f'{{"question": "What is {number} plus 1?", "answer": {answer}}}'


def dataset(**settings: Any) -> Environment[Any]:
    return load_environment(PluginHost(), "dataset", settings)


def key(index: int = 0) -> TaskKey:
    return TaskKey("dataset", "train", index)


@pytest.fixture
def one_row(tmp_path: Path) -> Callable[..., Environment[Any]]:
    """Build an environment with one row, whose answer is given as JSON."""

    def build(answer: str, **settings: Any) -> Environment[Any]:
        path = tmp_path / "one.jsonl"
        path.write_text(line(1, answer), encoding="utf-8")
        return dataset(path=str(path), eval_share=0.0, **settings)

    return build


def paid(env: Environment[Any], reply: str) -> float:
    verdict = env.verify(env.task(key()), Rollout.of(f"<answer>{reply}</answer>"))
    assert verdict.passed == (verdict.total == 1)
    return verdict.total


@pytest.mark.parametrize("reward", ["exact", "number"])
def test_of_200_rows_each_odd_one_is_named_with_its_number(tmp_path: Path, reward: str) -> None:
    lines = [line(number, f'"{number + 1}"') for number in range(200)]
    places = dict(zip(range(3, 200, 12), ODD, strict=False))
    assert len(places) == len(ODD)
    for place, answer in places.items():
        lines[place] = line(place, answer)
    lines[100] = '{"question": null, "answer": "1"}'
    lines[101] = '{"question": " ", "answer": "1"}'
    lines[102] = '{"answer": "1"}'
    lines[103] = '{"question": "What is 103 plus 1?"}'
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        dataset(path=str(tmp_path / "rows.jsonl"), reward=reward)
    named = {
        int(number): problem
        for numbers, problem in re.findall(
            r"rows? ([0-9, and]+) of rows\.jsonl: ([^;]+)", str(refused.value)
        )
        for number in re.findall("[0-9]+", numbers)
    }
    assert named.keys() == {place + 1 for place in (*places, 100, 101, 102, 103)}
    assert all(ODD[answer] in named[place + 1] for place, answer in places.items())
    assert "'question' of env.prompt is null" in named[101]
    assert "gives an empty text" in named[102]
    assert "there is no field 'question'" in named[103]
    assert "there is no field 'answer' (the row has question)" in named[104]
    (tmp_path / "rows.jsonl").write_text(line(1, '"2"'))
    (tmp_path / "eval.jsonl").write_text(f"{line(1, '2')}\n{line(2, 'null')}")
    with pytest.raises(ConfigError, match=r"^row 2 of eval\.jsonl: the field 'answer' is null"):
        dataset(path=str(tmp_path / "rows.jsonl"), eval_path=str(tmp_path / "eval.jsonl"))


def test_of_many_rows_with_one_problem_some_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    lines = [line(number, "null" if number % 2 else '"1"') for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match="rows 3, 7, 11, 15, 19, 23, 27, 31 and 12 more of rows"):
        dataset(path=str(tmp_path / "rows.jsonl"))  # the numbers are those of the lines


def test_an_answer_that_no_reply_could_give_is_refused(one_row: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"holds a tag of env\.tag, so that no reply could be"):
        one_row('"a</answer>"')
    assert one_row('"a</answer>"', tag="").size("train") == 1


@pytest.mark.parametrize("write", [json.dumps, str], ids=["JSON", "Python, as pandas writes it"])
def test_a_prompt_that_is_the_text_of_a_list_of_messages_is_that_list(
    tmp_path: Path, write: Callable[[Any], str]
) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 plus 1?"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": write(chat), "answer": "2"}))
    prompt = dataset(path=str(tmp_path / "rows.jsonl"), eval_share=0.0, tag="").task(key()).prompt
    assert [(message.role, message.content) for message in prompt] == [
        ("system", "Be brief."),
        ("user", "1 plus 1?"),
    ]


@pytest.mark.parametrize("question", ['""', '" "', "[]", "{}"])
def test_a_row_that_puts_nothing_into_the_prompt_is_refused(tmp_path: Path, question: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": {question}, "hint": "", "answer": "1"}}')
    with pytest.raises(ConfigError, match=r"row 1 of rows\.jsonl: the row has nothing in"):
        dataset(path=str(path), prompt="Answer this: {question} {hint}", eval_share=0.0)
    path.write_text('{"question": "Why?", "hint": "", "answer": "1"}')
    env = dataset(path=str(path), prompt="Answer this: {question} {hint}", eval_share=0.0)
    assert env.size("train") == 1


@pytest.mark.parametrize(
    ("answer", "pattern", "said"),
    [
        ('"about five"', "", "'answer' is not a number of at most 30 digits ('about five')"),
        ('["5", "five"]', "", "is not a number of at most 30 digits ('five')"),
        ("true", "", "is not a number of at most 30 digits ('true')"),
        ("1e40", "", "is not a number of at most 30 digits"),
        ('"5"', "#### (.*)", "env.answer_pattern '#### (.*)' finds nothing in the field 'answer'"),
        ('"#### "', "#### (.*)", "finds nothing in the field 'answer'"),
        ('"5 ####  #"', "#### (.*)#", "finds nothing in the field 'answer'"),
        ("1e-400", "", "line 1 is not JSON: the number 1e-400 is too small"),
        ("1e400", "", "line 1 is not JSON: the number 1e400 is too large"),
    ],
)
def test_a_reference_of_the_reward_number_is_a_number(
    one_row: Callable[..., Environment[Any]], answer: str, pattern: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        one_row(answer, reward="number", answer_pattern=pattern)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("0.00001", "0.00001"),
        ("1E-7", "0.0000001"),
        ("1e5", "100000"),
        ("-0.0", "0"),
        ("5.0", "5"),
        ("5", "5.00"),
        ("12345678901234567890", "12,345,678,901,234,567,890"),
        ("3.14159265358979323846", "3.14159265358979323846"),
        ('"1,080.50"', "1080.5"),
        ('["7", 8.5]', "8.50"),
    ],
)
def test_a_number_of_json_is_compared_as_it_is_written(
    one_row: Callable[..., Environment[Any]], answer: str, reply: str
) -> None:
    env = one_row(answer, reward="number")
    assert paid(env, reply) == 1
    assert paid(env, reply + "1" if "." in reply else f"{reply}.1") == 0
    reference = env.reference(env.task(key()))
    assert env.verify(env.task(key()), Rollout.of(reference)).passed
    assert paid(one_row(answer), reference.removeprefix("<answer>").removesuffix("</answer>")) == 1


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ('["NYC", "New York"]', ("NYC", "new  york"), ("['NYC', 'New York']", "York", "NYC, New York")),
        ('"caf\\u00e9"', ("cafe\u0301", "CAFE\u0301", "caf\xe9"), ("cafe", "caf", "e\u0301\u0323" * 400_000)),
        ('"\\u1fb7"', ("\u03b1\u0342\u0345", "\u1fb6\u0399"), ("\u03b1",)),
        ('"Stra\\u00dfe"', ("STRASSE",), ("Strase",)),
        ('"\\ufb01"', ("fi",), ("f",)),
        ('"x\\u00b2"', ("X\xb2",), ("x2",)),
        ("true", ("true", "True"), ("1", "yes")),
        ('"None"', ("None", "none"), ("", "null")),
    ],
)  # fmt: skip
def test_texts_are_the_same_whatever_their_case_spaces_and_composition(
    one_row: Callable[..., Environment[Any]],
    answer: str,
    right: tuple[str, ...],
    wrong: tuple[str, ...],
) -> None:
    env = one_row(answer)
    assert paid(env, env.reference(env.task(key())).removeprefix("<answer>")[:-9]) == 1
    assert [paid(env, reply) for reply in right] == [1.0] * len(right)
    assert [paid(env, reply) for reply in (*wrong, "", " ")] == [0.0] * (len(wrong) + 2)


def test_a_file_of_another_system_has_the_same_rows(tmp_path: Path) -> None:
    texts = [f"a{mark}b" for mark in " \u2028\x85\u2029"]
    lines = [line(number, f'"{text}"') for number, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    env = dataset(path=str(tmp_path / "rows.jsonl"), eval_share=0.0)
    count = env.size("train") or 0
    assert [env.task(key(index)).data["answer"] for index in range(count)] == texts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (line(1, '"a"').encode("utf-16"), "it is UTF-16 or UTF-32 text"),
        (line(1, '"a"').encode("utf-16-le"), r"not plain text \(byte 0 in line 1\)"),
        ("\n" + line(1, '"\xe9"'), r"it is not UTF-8 text \(byte 0xe9 in line 2\)"),
        (
            "\n" + line(1, '"a", "answer": "b"'),
            "line 2 is not JSON: the key 'answer' is there twice",
        ),
        (line(1, '"\\ud800"'), "line 1 holds half of a surrogate pair"),
        (line(1, "[" * 10_000), "line 1 is not JSON: .*recursion"),
        ("", "holds no rows"),
        ("\ufeff\r\n \n", "holds no rows"),
        ("null", "line 1 holds null; every line must be a JSON object"),
        ("[1]", "line 1 holds a list; every line must be a JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    encoding = "latin-1" if "\xe9" in str(content) else "utf-8"
    data = content if isinstance(content, bytes) else content.encode(encoding)
    (tmp_path / "rows.jsonl").write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        dataset(path=str(tmp_path / "rows.jsonl"))


OWN = """
import asyncio, functools, math
from decimal import Decimal
import numpy

def ordinary(text, row):
    values = [row["n"], row["deep"][0]["n"]]
    return float([type(value) for value in values] == [float] * 2 and str(values[0]) == "1e-05")

async def waits(text, row):
    await asyncio.sleep(0)
    return 1

class Waits:
    async def __call__(self, text, row):
        return numpy.float32(1)

def later(text, row):
    return waits(text, row)

opened = []
async def same_loop(text, row):
    opened.append(asyncio.get_running_loop())
    return float(opened[0] is opened[-1] and not opened[0].is_closed())

scaled = functools.partial(lambda scale, text, row: scale, 1.0)
partly = functools.partial(waits)
waiting = Waits()
sums = lambda text, row: 0.7 + 0.2 + 0.1
above = lambda text, row: 1.0000000000000002
numpy_true = lambda text, row: numpy.bool_(True)
tensor = lambda text, row: __import__("torch").tensor(True)
decimal = lambda text, row: Decimal("1.0")

none = lambda text, row: None
text = lambda text, row: "1"
numpy_text = lambda text, row: numpy.str_("1")
array = lambda text, row: numpy.array([1.0])
masked = lambda text, row: numpy.ma.masked
nan = lambda text, row: numpy.float64("nan")
notes = lambda text, row: (1.0, 2.0)
async def async_none(text, row): pass
async def fails(text, row): raise LookupError("the table is gone")
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Environment[Any]]:
    """Build an environment with a function of `OWN`."""
    (tmp_path / "own.py").write_text(OWN)
    row = {"question": "What?", "answer": "7", "n": 0.00001, "deep": [{"n": 0.00001}]}
    (tmp_path / "rows.jsonl").write_text(f"\n{json.dumps(row)}")

    def build(function: str, **settings: Any) -> Environment[Any]:
        reward = f"{tmp_path / 'own.py'}:{function}"
        settings = {"path": str(tmp_path / "rows.jsonl"), "eval_share": 0.0, **settings}
        return dataset(reward=reward, **settings)

    return build


def judged(env: Environment[Any]) -> Verdict:
    async def verdict() -> Verdict:
        async with Verifier(env, spec=None) as verifier:
            (task,) = await verifier.tasks([key()])
            return (await verifier.verify([task], [[Rollout.of("7")]]))[0][0]

    return asyncio.run(verdict())


@pytest.mark.parametrize(
    "function",
    [
        "ordinary",
        "waiting",
        "later",
        "partly",
        "same_loop",
        "scaled",
        "above",
        "sums",
        "numpy_true",
        "tensor",
        "decimal",
    ],
)
def test_a_function_of_ones_own_may_wait_and_return_what_counts_as_1(
    own: Callable[..., Environment[Any]], function: str
) -> None:
    env = own(function)
    for _ in range(2):
        verdict = env.verify(env.task(key()), Rollout.of("7"))
        assert verdict.passed
        assert 1 >= verdict.total == pytest.approx(1, abs=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("function", "returned"),
    [
        ("text", "'1'"),
        ("numpy_text", r"np\.str_\('1'\)"),
        ("array", r"array\(\[1\.\]\)"),
        ("masked", "masked"),
        ("nan", r"np\.float64\(nan\)"),
        ("notes", r"\(1\.0, 2\.0\)"),
        ("fails", "LookupError: the table is gone"),
    ],
)
def test_anything_else_is_an_error_that_names_the_function_and_the_row(
    own: Callable[..., Environment[Any]], function: str, returned: str
) -> None:
    error = judged(own(function)).error
    assert error is not None
    called = rf"own\.py:{function}' returned {returned} for row 2 of rows\.jsonl; as f\(text, row\) it must return a number"
    assert re.search(returned if function == "fails" else called, error), error


@pytest.mark.parametrize("answer", ["null", '""', "{}", "[]", '["a", null]', '[{"input": 1}]'])
def test_with_a_function_of_ones_own_a_row_needs_no_answer(
    own: Callable[..., Environment[Any]], tmp_path: Path, answer: str
) -> None:
    (tmp_path / "odd.jsonl").write_text(f'{line(1, answer)}\n{{"question": "No field?"}}')
    env = own("waits", path=str(tmp_path / "odd.jsonl"))
    assert [env.reference(env.task(key(index))) for index in (0, 1)] == [None, None]
    with pytest.raises(ConfigError, match=r"env\.answer_pattern 'x\(y\)' finds nothing"):
        own("waits", answer_pattern="x(y)")


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the package `datasets` return the given rows."""

    def publish(*rows: dict[str, Any]) -> None:
        loads = SimpleNamespace(load_dataset=lambda name, subset, split: rows)
        monkeypatch.setitem(sys.modules, "datasets", loads)

    return publish


def test_published_rows_are_looked_at_in_the_same_way(published: Callable[..., None]) -> None:
    import numpy

    good = {"question": "What?", "answer": numpy.float64(1e-05), "score": float("nan")}
    published(good)
    env = dataset(name="some/set", reward="number", eval_share=0.0)
    assert paid(env, "0.00001") == 1
    odd = [None, float("nan"), numpy.float32("nan"), float("inf"), b"7", {"a": 1}, [], [None], ""]
    published(good, *({"question": "What?", "answer": answer} for answer in odd))
    with pytest.raises(ConfigError) as refused:
        dataset(name="some/set", reward="number", eval_share=0.0)
    said = str(refused.value)
    problems = {"row 2": "null", "rows 3 and 4": "NaN", "row 5": "infinite", "row 7": "an object"}
    problems |= {"row 6": "of the type bytes", "row 8": "an empty list"}
    for number, problem in problems.items():
        assert f"{number} of some/set (train): the field 'answer' is {problem}" in said
