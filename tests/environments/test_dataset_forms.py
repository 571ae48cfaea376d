"""Reward functions as they are written for other trainers, rows as they are published, and graders by name."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Environment, Rollout, TaskKey, Verdict
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost

REWARDS = '''
import asyncio, functools, re
import numpy

def own(text, row): return float(row["answer"] in text)
def text_alone(text): return (0.25, "short") if len(text) < 40 else None
def trl(completions, answer, **kwargs):
    return [1.5 if a in c else -0.5 for c, a in zip(completions, answer)]
def trl_chat(prompts, completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [2.0 if p[-1]["role"] == "user" and "<answer>" in t else 0.0 for p, t in zip(prompts, texts)]
def helped(completions, **kwargs): return [_length(c) for c in completions]
def _length(completion): return float(len(completion[-1].get("content")) > 3)
def trl_array(completions, log_metric=None, **kwargs):
    log_metric("seen", len(completions))
    return numpy.array([0.5] * len(completions))
async def trl_async(prompts, completions, trainer_state, **kwargs):
    await asyncio.sleep(0)
    return [None for _ in completions]
def verifiers(completion, answer, state, **kwargs):
    return 1.0 if completion[-1]["content"].endswith(answer) and state["answer"] == answer else 0.0
def verifiers_parser(parser, completion, answer): return float(answer in (parser.parse_answer(completion) or ""))
def verifiers_attribute(completion, info): return float(completion[-1].content != "" and info == {})
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": float(ground_truth in solution_str), "chars": len(solution_str)}
def model_score(model_output, ground_truth): return plain_score(model_output, ground_truth)
def pair(prediction, reference): return float(reference in prediction)
def plain_score(solution_str, ground_truth): return solution_str.count(ground_truth)
bound = functools.partial(trl, bonus=1)
class Callable:
    def __call__(self, completions, **kwargs): return [float("<answer>" in c) for c in completions]
called = Callable()

def unused(completion_ids, completions): return [1.0]
def ids(completion_ids, completions): return [len(each) for each in completion_ids]
def wants(completions, solution): return [1.0]
def judged_by(judge, completion): return 1.0
def boxed(completions, answer, **k): return [float(c == "\\\\boxed{" + a + "}") for c, a in zip(completions, answer)]
def three(text, row, more): return 1.0
def truth(text, gt): return float(gt in text)
def typed(text, wanted: str): return float(wanted in text)
def untold(text, query): return 1.0
def lenient(text, tolerance=0.5): return tolerance
def overlong(completion_ids, **kwargs): return [0.0 if len(ids) < 9 else -1.0 for ids in completion_ids]
def misread(text, row): return float(row["anwser"] in text)
scalar = lambda completions, **k: 1.0
texts = lambda completions, **k: ["1.0"]
two = lambda completions, **k: [1.0, 1.0]
nan = lambda completion, answer: float("nan")
unscored = lambda solution_str, ground_truth: {"accuracy": 1.0}
'''  # fmt: skip
RIGHT, WRONG = "I think so.\n<answer>24", "No"


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dataset(path: Path, kind: str = "dataset", **settings: Any) -> Environment[Any]:
    return load_environment(PluginHost(), kind, {"path": str(path), "eval_share": 0.0, **settings})


@pytest.fixture
def with_rewards(tmp_path: Path) -> Any:
    """Build an environment with functions of `REWARDS`, on rows of a plain or a conversational prompt."""
    (tmp_path / "rewards.py").write_text(REWARDS)

    def build(*functions: str, prompt: Any = "5 plus 19?", **settings: Any) -> Environment[Any]:
        path = write(tmp_path / "rows.jsonl", [{"prompt": prompt, "answer": "24"}])
        rewards = [f"{tmp_path / 'rewards.py'}:{name}" for name in functions]
        return dataset(path, reward=rewards, **settings)

    return build


def judged(env: Environment[Any], text: str) -> Verdict:
    return env.verify(env.task(TaskKey("dataset", "train", 0)), Rollout.of(text))


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "5 plus 19?"}]


@pytest.mark.parametrize("prompt", ["5 plus 19?", CHAT], ids=["text", "messages"])
@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("own", 1, 0), ("text_alone", 0.25, 0.25), ("trl_chat", 2, 0), ("helped", 1, 0),
        ("trl_array", 0.5, 0.5), ("trl_async", 0, 0), ("verifiers", 1, 0), ("verifiers_parser", 1, 0),
        ("verifiers_attribute", 1, 1), ("compute_score", 1, 0), ("plain_score", 1, 0),
        ("model_score", 1, 0), ("unused", 1, 1), ("pair", 1, 0), ("truth", 1, 0), ("typed", 1, 0),
        ("lenient", 0.5, 0.5),
    ],
)  # fmt: skip
def test_functions_are_called_in_the_form_in_which_they_are_written(
    with_rewards: Any, function: str, right: float, wrong: float, prompt: Any
) -> None:
    env = with_rewards(function, prompt=prompt)
    verdicts = [judged(env, text) for text in (RIGHT, WRONG)]
    assert [verdict.total for verdict in verdicts] == [right, wrong]
    assert [verdict.passed for verdict in verdicts] == [right >= 1, wrong >= 1]
    assert env.task(TaskKey("dataset", "train", 0)).prompt[-1].content == "5 plus 19?"  # type: ignore[union-attr]


def test_texts_stay_texts_for_functions_that_read_texts(with_rewards: Any) -> None:
    for function in ("trl", "bound", "called"):
        env = with_rewards(function)
        assert judged(env, RIGHT).total > judged(env, WRONG).total
    as_messages = with_rewards("called", completions="messages")
    assert judged(as_messages, RIGHT).total == 0  # no message is equal to the text


def test_thoughts_reach_functions_of_other_trainers_and_not_those_of_this_one(
    with_rewards: Any,
) -> None:
    thought = "<think>24</think>\nno"
    assert judged(with_rewards("trl"), thought).total == 1.5
    assert judged(with_rewards("own"), thought).total == 0


def test_a_reference_is_given_in_the_form_that_the_function_pays(with_rewards: Any) -> None:
    references = {}
    for function in ("own", "boxed", "pair", "trl_async"):
        env = with_rewards(function)
        references[function] = env.reference(env.task(TaskKey("dataset", "train", 0)))
    tagged = "<answer>24</answer>"
    assert references == {"own": tagged, "boxed": r"\boxed{24}", "pair": tagged, "trl_async": None}


def test_several_rewards_are_parts_and_none_is_no_error(with_rewards: Any) -> None:
    env = with_rewards("trl", "trl_async", "compute_score")
    verdict = judged(env, RIGHT)
    assert {name: part.value for name, part in verdict.rewards.items()} == {
        "trl": 1.5, "trl_async": 0, "compute_score": 1,
    }  # fmt: skip
    assert verdict.rewards["trl_async"].note == "does not apply to this row"
    assert verdict.metrics == {"chars": len(RIGHT)}
    assert not judged(with_rewards("trl_async", "trl"), RIGHT).passed
    assert judged(with_rewards("trl_async", "trl", passes="trl"), RIGHT).passed
    with pytest.raises(ConfigError, match=r"env\.passes='x' is none of the parts trl, trl_async"):
        with_rewards("trl", "trl_async", passes="x")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "judged_by",
            r"wants 'judge', which it cannot get here: a rubric's judge is the reward `judge`",
        ),
        (
            "wants",
            r"f\(prompts, completions, \*\*columns\), wants 'solution', .* --set env\.rename=solution=FIELD",
        ),
        ("three", r"has the parameters \(text, row, more\), from which no form can be told"),
        ("missing", "defines no 'missing'"),
        (
            "untold",
            r"the second parameter of the reward function .*:untold' is called 'query', which does not tell",
        ),
    ],
)
def test_a_function_that_cannot_be_called_is_told_before_anything_is_paid(
    with_rewards: Any, function: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        with_rewards(function)
    assert judged(with_rewards("wants", rename="solution=answer"), "x").total == 1


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        ("scalar", r"returned 1\.0 for row 1 of rows\.jsonl; as f\(prompts, completions.* a list with one number"),
        ("ids", r"the ids of tokens do not reach a verifier: measure the text"),
        ("overlong", r"the ids of tokens do not reach a verifier: measure the text"),
        ("misread", r"'anwser' in .*:misread; the row has .*answer"),
        ("texts", r"returned \['1\.0'\] for"), ("two", r"returned \[1\.0, 1\.0\] for"),
        ("nan", r"returned nan for .* as f\(completion, answer, state, \.\.\.\) it must return a number"),
        ("unscored", r"returned {'accuracy': 1\.0} for .* the number as 'score'"),
    ],
)  # fmt: skip
def test_what_is_no_reward_is_told_with_the_signature(
    with_rewards: Any, function: str, returned: str
) -> None:
    with pytest.raises((TypeError, ValueError, KeyError), match=returned):
        judged(with_rewards(function), RIGHT)


ARC = {
    "question": "Which is red?",
    "choices": {"label": ["A", "B"], "text": ["sky", "blood"]},
    "answerKey": "B",
}
MMLU = {"question": "Which is red?", "choices": ["sky", "blood"], "answer": 1}


@pytest.mark.parametrize(
    ("reward", "row", "right", "wrong"),
    [
        ("choice", ARC, ["B", "(b)", "B) blood", "blood", "B."], ["A", "B) sky", "A B", "", "C"]),
        ("choice", MMLU, ["B", "blood"], ["A", "1"]),
        ("choice", {**MMLU, "choices": '["sky", "blood"]'}, ["B"], ["A"]),
        ("choice", {**MMLU, "choices": "sky | blood"}, ["B"], ["A"]),
        ("choice", {"question": MMLU["question"], "A": "sky", "B": "blood", "answer": "B"}, ["blood"], ["A"]),
        ("contains", {"question": "q", "answer": "New York"}, ["in new york, I say"], ["newyork", "New", "Yorkshire New York5"]),
        ("regex", {"question": "q", "answer": r"\d{4}-\d\d-\d\d"}, ["2026-11-29"], ["on 2026-11-29", "2026-11-29\n1"]),
        ("json_schema", {"question": "q", "answer": {"type": "object", "required": ["a"]}}, ['{"a": 1}'], ['{"b": 1}', "a", "[1]"]),
        ("math", {"problem": "q", "solution": r"\frac{1}{2}"}, ["0.5", "1/2", r"\boxed{\frac12}", "$0.50$"], ["2", "", "half", "0.5, 2", r"\boxed{2} \boxed{1/2}", "$2$ $0.5$", "2\n0.5", "9^99999999"]),
    ],
    ids=["choice-arc", "choice-mmlu", "choice-json", "choice-bars", "choice-columns", "contains", "regex", "json_schema", "math"],
)  # fmt: skip
def test_graders_by_name(
    tmp_path: Path, reward: str, row: Mapping[str, Any], right: Sequence[str], wrong: Sequence[str]
) -> None:
    env = dataset(write(tmp_path / "rows.jsonl", [row]), reward=reward)
    assert {text: judged(env, f"<answer>{text}</answer>").total for text in right} == dict.fromkeys(
        right, 1
    )
    assert {text: judged(env, f"<answer>{text}</answer>").total for text in wrong} == dict.fromkeys(
        wrong, 0
    )
    task = env.task(TaskKey("dataset", "train", 0))
    if reward == "choice":
        assert task.prompt[-1].content == "Which is red?\n\nA) sky\nB) blood"  # type: ignore[union-attr]
    if reward not in (
        "regex",
        "json_schema",
    ):  # whose reference is what describes answers, and none itself
        assert judged(env, str(env.reference(task))).passed


@pytest.mark.parametrize(
    ("reward", "row", "message"),
    [
        (
            "choice",
            {"question": "q", "choices": ["a"], "answer": "Z"},
            r"'answer' names none of the options \('Z' of \{'A': 'a'\}\)",
        ),
        (
            "choice",
            {"question": "q", "answer": "A"},
            "there are no options: neither a list in choices",
        ),
        (
            "exact",
            {"question": "q", "tests": ["assert f(1)"]},
            "for rows with tests: --reward code",
        ),
        ("math", {"question": "q", "answer": "hello world"}, "no single formula"),
        ("regex", {"question": "q", "answer": r"(a)\1"}, "no regular expression that RE2 takes"),
        ("json_schema", {"question": "q", "answer": {"type": "nonsense"}}, "holds no JSON schema"),
        ("math", {"question": "q", "answer": "?"}, "no single formula that math-verify reads"),
    ],
)
def test_rows_with_which_no_answer_could_agree_are_refused(
    tmp_path: Path, reward: str, row: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"row 1 of rows.jsonl: .*{message}"):
        dataset(write(tmp_path / "rows.jsonl", [row]), reward=reward)


ROWS = [{"question": f"What is {n}, and 1?", "answer": f"{n + 1}"} for n in range(8)]


def test_rows_are_the_same_from_every_kind_of_file(tmp_path: Path) -> None:
    import datasets

    frame = datasets.Dataset.from_list(ROWS)
    write(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "wrapped.json").write_text(json.dumps({"version": "1", "data": ROWS}))
    (tmp_path / "lines.json").write_text((tmp_path / "rows.jsonl").read_text())
    frame.to_csv(str(tmp_path / "rows.csv"))
    (tmp_path / "rows.tsv").write_text(
        (tmp_path / "rows.csv")
        .read_text()
        .replace('"', "")
        .replace("1?,", "1?\t")
        .replace("n,a", "n\ta")
    )
    frame.to_parquet(str(tmp_path / "rows.parquet"))
    frame.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": frame, "test": frame.select([0])}).save_to_disk(
        str(tmp_path / "splits")
    )
    (tmp_path / "loose").mkdir()
    frame.to_parquet(str(tmp_path / "loose" / "train.parquet"))
    names = [
        "rows.jsonl",
        "rows.json",
        "wrapped.json",
        "lines.json",
        "rows.csv",
        "rows.tsv",
        "rows.parquet",
        "saved",
        "splits",
        "loose",
    ]
    prompts = {}
    for name in names:
        env = dataset(tmp_path / name, reward="number")
        keys = [TaskKey("dataset", "train", index) for index in range(env.size("train") or 0)]
        prompts[name] = [(env.task(key).prompt, env.reference(env.task(key))) for key in keys]
    assert {name: each == prompts["rows.jsonl"] for name, each in prompts.items()} == dict.fromkeys(
        names, True
    )
    held_out = dataset(tmp_path / "splits", eval_split="test")
    assert (held_out.size("train"), held_out.size("eval")) == (8, 1)


FILES: Mapping[str, tuple[str, str]] = {
    "odd.csv": ("question,answer\na,1\nb,2,3\n", r"odd\.csv, line 3 has 3 fields, and the header has 2"),
    "no_header.csv": ("a,a\n1,2\n", "the first line must name the columns, each once"),
    "semicolons.csv": ("question;answer\na;1\n", r"separated by semicolons"),
    "quotes.csv": ('question,answer\n"a"b,1\n', r"line 2 is not CSV"),
    "empty.csv": ("question,answer\n", "holds no rows"),
    "item.json": ('[{"question": "a", "answer": "1"}, 3]', r"item\.json, item 2 is a number"),
    "broken.json": ('[{"question": "a"},\n {"question": }]', r"broken\.json is not JSON: .*line 2"),
    "two.json": ('{"a": [{"b": 1}], "c": [{"d": 1}]}', "2 lists of objects"),
    "list.jsonl": ('[{"question": "a", "answer": "1"}, {"question": "b", "answer": "1"}]', r"call the file \*\.json"),
    "broken.jsonl": ('{"question": "a", "answer": "1"}\n{"question": broken}\n', r"line 2 is not JSON: .* column 14$"),
    "nowhere.parquet": ("", "cannot be loaded|does not exist|holds no rows"),
    "prompts.jsonl": ('{"text": {"a": 1}, "answer": "1"}', r"'text' of env\.prompt is an object; name what is in it, as in \{text\[a\]\}"),
    "reply.jsonl": ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "answer": "1"}',
                    "a prompt ends with a message of the user"),
    "unknown.jsonl": ('{"frage": "a", "answer": "1"}', r"no field of the rows \(frage, answer\) holds a prompt .* --set 'env\.prompt=\{frage\}'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_no_rows_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text, message = FILES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        dataset(tmp_path / name)
    assert re.search(message, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)
