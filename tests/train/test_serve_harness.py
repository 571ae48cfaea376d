"""Published evaluation harnesses against `grpo serve`, with SmolLM2-135M.

GRPO_INSPECT_PYTHON and GRPO_LMEVAL_PYTHON name the Python of an environment with inspect-ai and openai, and with
lm-eval[api]. `-s` prints what was measured.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Message, build_config
from grpo_core.calls.deadline import wait_for
from grpo_core.runs.observer import Observer
from grpo_core.train.actor import answer, build_actor
from grpo_core.train.build import find_ranks
from grpo_core.verify.sources import Sources

from .test_cli_serve import serving

INSPECT = os.environ.get("GRPO_INSPECT_PYTHON", "")
LM_EVAL = os.environ.get("GRPO_LMEVAL_PYTHON", "")
pytestmark = pytest.mark.heavy
MODEL = "smollm2-135m"
QUESTIONS = {
    f"What is {a} + {b}? Answer with a number.": a + b for a in (2, 5, 9) for b in range(1, 9)
}
TOKENS = 24
TASK = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

QUESTIONS = {QUESTIONS!r}

@task
def sums():
    samples = [Sample(input=question, target=str(result)) for question, result in QUESTIONS.items()]
    return Task(dataset=samples, solver=generate(), scorer=includes())
"""
LM_EVAL_TASK = f"""
task: sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {{folder}}/sums.jsonl
test_split: test
output_type: generate_until
doc_to_text: "{{{{{{{{question}}}}}}}}"
doc_to_target: "{{{{{{{{result}}}}}}}}"
generation_kwargs:
  until: ["\\n\\n"]
  max_gen_toks: {TOKENS}
  temperature: 0.0
filter_list:
  - name: last-number
    filter:
      - function: regex
        regex_pattern: "(-?[0-9]+)[^0-9]*$"
      - function: take_first
metric_list:
  - metric: exact_match
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of `grpo serve`."""
    with serving(MODEL, "--dtype", "float32") as (_, lines):
        yield lines[1].removeprefix("OPENAI_BASE_URL=").strip()


@pytest.fixture(scope="module")
def own_answers() -> dict[str, str]:
    """The greedy answers of the sampler without a server, by question."""
    config = build_config([{"environment": "none", "model": {"name": MODEL, "dtype": "float32"}}])
    actor = build_actor(config, Sources([]), ranks=find_ranks(config), observer=Observer())
    params = config.sampling.params(0.0)
    return {
        question: wait_for(
            answer(actor, (Message("user", question),), budget=TOKENS, params=params, seed=0)
        )
        for question in QUESTIONS
    }


def run(*command: str, cwd: Path, **variables: str) -> str:
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=550,
        cwd=cwd,
        check=False,
        env={**os.environ, "NO_PROXY": "127.0.0.1", **variables},
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    return found.stdout


@pytest.mark.skipif(not INSPECT, reason="GRPO_INSPECT_PYTHON names no Python with inspect-ai")
def test_inspect_gets_the_samplers_answers(url, own_answers, tmp_path):
    (tmp_path / "sums.py").write_text(TASK)
    run(
        *(INSPECT, "-m", "inspect_ai", "eval", "sums.py", "--display", "none"),
        *("--model", f"openai-api/grpo/{MODEL}", "--temperature", "0"),
        *("--max-tokens", str(TOKENS), "--max-connections", "24"),
        *("--log-dir", str(tmp_path / "logs"), "--log-format", "json"),
        cwd=tmp_path,
        GRPO_BASE_URL=url,
        GRPO_API_KEY="none",
    )
    (file,) = (tmp_path / "logs").glob("*.json")
    log: Any = json.loads(file.read_text())
    assert log["status"] == "success"
    answers = {
        sample["input"]: sample["output"]["choices"][0]["message"]["content"]
        for sample in log["samples"]
    }
    report(
        "inspect-ai",
        answers,
        own_answers,
        log["results"]["scores"][0]["metrics"]["accuracy"]["value"],
    )


@pytest.mark.skipif(not LM_EVAL, reason="GRPO_LMEVAL_PYTHON names no Python with lm-eval")
def test_lm_eval_gets_the_samplers_answers(url, own_answers, tmp_path):
    rows = [{"question": question, "result": str(result)} for question, result in QUESTIONS.items()]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(LM_EVAL_TASK.format(folder=tmp_path))
    run(
        *(LM_EVAL, "-m", "lm_eval", "--model", "local-chat-completions", "--tasks", "sums"),
        *("--include_path", str(tmp_path), "--apply_chat_template", "--log_samples"),
        "--model_args",
        f"model={MODEL},base_url={url}/chat/completions,num_concurrent=24,max_retries=1",
        *("--output_path", str(tmp_path / "out")),
        cwd=tmp_path,
        OPENAI_API_KEY="none",
        HF_HUB_OFFLINE="1",
        HF_HOME=str(tmp_path / "cache"),
    )
    (file,) = (tmp_path / "out").rglob("samples_sums_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    answers = {sample["doc"]["question"]: sample["resps"][0][0] for sample in samples}
    (results,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]["sums"]
    until = {question: text.partition("\n\n")[0] for question, text in own_answers.items()}
    report("lm-eval", answers, until, scores["exact_match,last-number"])


def report(
    harness: str, answers: dict[str, str], own_answers: dict[str, str], accuracy: float
) -> None:
    """Print the score, and check that the answers are the sampler's."""
    assert answers.keys() == own_answers.keys()
    equal = sum(answers[question].strip() == own_answers[question].strip() for question in answers)
    print(
        f"\n{harness}: accuracy {accuracy:.3f}; {equal} of {len(answers)} answers are the sampler's"
    )
    assert equal == len(answers)
    right = [
        str(QUESTIONS[question]) in re.findall(r"-?\d+", text) for question, text in answers.items()
    ]
    print(f"answers with the right number: {sum(right)} of {len(right)}")
