"""TRL 1.16 itself trains through the bridge. GRPO_TRL_PYTHON names the Python of an environment with TRL and this checkout:

python3 -m venv trl-env && trl-env/bin/pip install torch==2.13.0 'trl[peft]==1.16.*' '.[sandbox]'
GRPO_TRL_PYTHON=trl-env/bin/python pytest -m heavy -n 0 tests/bridges/test_trl_real.py
"""

import json
import math
import os
import subprocess
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Message, Rollout
from grpo_core.calls.wire import decode
from grpo_core.train.rollout.tasks import draw_number
from grpo_trl import task_keys

from ..sandbox.engines import missing
from ..train.tiny import save_tiny, tiny_tokenizer
from .routes import assert_equal, verdicts_of_a_run

pytestmark = pytest.mark.heavy

HERE = Path(__file__).parent
SPELLING = HERE / "spelling.py"
GUESS = HERE.parents[1] / "examples" / "04_dialogue.py"
STEPS = 5
ALL_MAY_FAIL = {"verify": {"max_error_rate": 1.0, "retries": 0}}


@pytest.fixture(scope="module")
def python() -> str:
    """The Python with TRL; skips without one, and fails if it is not what it has to be."""
    named = os.environ.get("GRPO_TRL_PYTHON")
    if not named:
        pytest.skip("GRPO_TRL_PYTHON does not name a Python with TRL 1.16 and grpo-core")
    asked = "import grpo_core, trl; print(trl.__version__)"
    told = subprocess.run([named, "-c", asked], capture_output=True, text=True, check=False)
    assert told.stdout.startswith("1.16."), f"{named} has no TRL 1.16: {told.stdout}{told.stderr}"
    return named


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def run(command: list[str], folder: Path) -> str:
    """Run a process of TRL to its end and return what it printed."""
    ended = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def trained(python: str, model: Path, folder: Path, environment: str, **options: Any) -> Any:
    """Train with trl_side.py, and return its report."""
    report = folder / "report.json"
    given = {
        "environment": environment,
        "settings": {},
        "model": str(model),
        "out": str(folder / "out"),
        "steps": STEPS,
        "length": 48,
        "more": {},
        "report": str(report),
        **options,
    }
    run([python, str(HERE / "trl_side.py"), json.dumps(given)], folder)
    return json.loads(report.read_text())


def rollouts_of(call: dict[str, Any]) -> list[Rollout]:
    """Return what was judged: the rollouts of a dialogue, or the texts as rollouts of one turn."""
    if call["rollouts"]:
        return [decode(rollout) for rollout in call["rollouts"]]
    return [
        Rollout(
            (Message("assistant", text if isinstance(text, str) else text[0]["content"]),),
            token_ids=tuple(ids),
            trainable=(1,) * len(ids),
        )
        for text, ids in zip(call["completions"], call["completion_ids"], strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Spelling", {}),
        ("Spelling", {"env": {"fail_on": "aeiouyAEIOUY0123456789"}, **ALL_MAY_FAIL}),
        ("RawSpelling", {}),
        ("Talking", {}),
        ("Toolbox", {}),
    ],
    ids=["chat", "unscored", "raw", "dialogue", "tools"],
)
def test_trl_trains_and_every_reward_is_that_of_a_run(
    python: str, model: Path, tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    environment = f"{SPELLING}:{name}"
    length = 200 if name in ("Talking", "Toolbox") else 48
    report = trained(python, model, tmp_path, environment, settings=settings, length=length)
    assert report["steps"] == STEPS
    assert report["finite"]
    assert report["moved"] > 0
    unscored = turns = 0
    for _, group in groupby(report["calls"], key=lambda call: (call["step"], call["keys"])):
        letters, exact = group
        rollouts = rollouts_of(letters)
        turns = max(turns, *(len(rollout.messages) for rollout in rollouts))
        split = letters["keys"][0]["split"]
        draw = draw_number(0, letters["step"]) if split == "train" else 0
        keys = task_keys(letters["keys"])
        verdicts = verdicts_of_a_run(environment, settings, keys, rollouts, draw)
        assert_equal([letters["values"], exact["values"]], report["weights"], verdicts)
        unscored += sum(not verdict.scored for verdict in verdicts)
        if letters["rollouts"]:
            assert_tokens_are_the_dialogue(letters, rollouts)
    assert bool(unscored) == ("fail_on" in settings.get("env", {}))
    assert (turns > 1) == (name == "Talking")
    rewards = [line["reward"] for line in report["log"] if "reward" in line]
    assert len(rewards) == STEPS
    assert all(map(math.isfinite, rewards))
    assert "eval_rewards/letters/mean" in report["evaluated"]
    assert report["log"][0]["verdicts/unscored"] == pytest.approx(
        sum(value is None for value in report["calls"][0]["values"]) / 8
    )


def assert_tokens_are_the_dialogue(call: dict[str, Any], rollouts: list[Rollout]) -> None:
    """Check that TRL trains on the tokens that were judged, each turn of the policy and nothing else."""
    tokenizer = tiny_tokenizer()
    for ids, rollout in zip(call["completion_ids"], rollouts, strict=True):
        assert ids == list(rollout.token_ids)
        said = [i for i, mine in zip(ids, rollout.trainable, strict=True) if mine]
        policy = "".join(m.content for m in rollout.messages if m.role == "assistant")
        assert tokenizer.decode(said, skip_special_tokens=True) == policy


def test_the_environments_tokens_are_masked_in_trls_loss(
    python: str, model: Path, tmp_path: Path
) -> None:
    report = trained(python, model, tmp_path, f"{SPELLING}:Talking", length=200)
    judged = [decode(r).trainable for call in report["calls"][::2] for r in call["rollouts"]]
    masks = [mask for batch in report["masks"] for mask in batch]
    assert [sum(mask) for mask in masks] == [sum(trainable) for trainable in judged]
    assert any(0 in trainable for trainable in judged)


@pytest.mark.parametrize("environment", ["arithmetic", "fizzbuzz", f"{GUESS}:Guess"])
def test_an_exported_script_trains_as_it_was_written(
    python: str, model: Path, tmp_path: Path, environment: str
) -> None:
    grpo = [python, "-c", "from grpo_core.cli import main; main()"]
    try:
        run([*grpo, "env", "export", environment, "--to", "trl", "--out", "train.py"], tmp_path)
    except AssertionError as error:
        if "sandbox" in str(error):
            missing(str(error))
        raise
    command = [python, "train.py", "--model", str(model), "--steps", str(STEPS), "--out", "out"]
    printed = run(command, tmp_path)
    lines = [line for line in printed.splitlines() if "'reward':" in line]
    assert len(lines) == STEPS
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
