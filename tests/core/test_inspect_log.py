"""`grpo export --to inspect`: a log that inspect-ai reads, with everything that the run's log has.

GRPO_INSPECT_PYTHON names the Python of an environment with inspect-ai and this package.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, ToolCall, Verdict
from grpo_core.cli.app import app
from grpo_core.runs.attempts import Fields
from grpo_core.runs.folder import RunFolder
from grpo_report.indexes.index import RolloutIndex
from grpo_report.inspect_log import samples_of

INSPECT = os.environ.get("GRPO_INSPECT_PYTHON", "")
READ = """
import json, sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
print(json.dumps({
    "status": log.status, "model": log.eval.model, "ids": log.eval.dataset.sample_ids,
    "means": {score.name: score.metrics["mean"].value for score in log.results.scores},
    "samples": [sample.model_dump(mode="json") for sample in log.samples],
}))
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run")
    config = {"model": {"name": "m"}, "mixture": {}, "environment": "sums"}
    folder.start({**config, "lora": {"enabled": True}, "provenance": {}})
    call = ToolCall("add", {"a": 1, "b": 2}, "id-1")
    added = (Message("assistant", "", (call,)), Message("tool", "3"))
    rollouts = [
        Rollout((*added, Message("assistant", "Answer: 3 <script>\u2028"))),
        Rollout((Message("assistant", "Answer: 4 \ud800"),), finish="length"),
        Rollout((Message("assistant", "Answer: 5"),)),
    ]
    exact = {"exact": Reward(1.0, note="equal")}
    verdicts = [
        Verdict(exact, passed=True, answer="3", detail={"log": "ok"}),
        Verdict({"exact": Reward(0.0)}, answer="4"),
        Verdict.failed("no sandbox"),
    ]
    prompt = (Message("system", "Add."), Message("user", "1 + 2?"))
    task = Task(TaskKey("sums", "train", 5), prompt, None)
    folder.rollouts(1, Group(task, rollouts, verdicts, [1.0, -1.0, 0.0]), Fields(number=3))
    held_out = Task(TaskKey("sums", "eval", 0), "raw text", None)
    folder.rollouts(1, Group(held_out, rollouts[:1], verdicts[:1]))
    return folder.path


def test_a_sample_holds_prompt_messages_scores_and_errors(run: Path) -> None:
    with RolloutIndex.open(run) as index:
        first, second, third = samples_of(index.read(1), "m")
        (held_out,) = samples_of(index.read(2), "m")
    assert (first["id"], first["epoch"], second["epoch"]) == ("step 1 train 3", 1, 2)
    roles = [message["role"] for message in first["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert first["messages"][2]["tool_calls"][0]["function"] == "add"
    assert first["scores"]["part: exact"] == {"value": 1.0, "explanation": "equal"}
    assert first["scores"]["passed"]["value"] == "C"
    assert first["metadata"]["detail"] == {"log": "ok"}
    assert second["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert (third["scores"], third["error"]["message"]) == (None, "no sandbox")
    assert held_out["input"] == [{"role": "user", "content": "raw text"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "inspect"], "go together"),
        (["--log", "a.eval"], "say what to export"),
        (["--to", "inspect", "--log", "FOLDER/a.txt"], "ends with .eval or .json"),
        (["--to", "inspect", "--log", "FOLDER/a.eval", "--step", "9"], "no rollout in"),
    ],
)
def test_what_cannot_be_written_is_refused(
    run: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    named = [option.replace("FOLDER", str(tmp_path)) for option in options]
    shown = CliRunner().invoke(app, ["export", str(run), *named])
    assert shown.exit_code == 2
    assert message in f"{shown.exception} {shown.output}"


def test_without_inspect_ai_the_extra_is_named(run: Path, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['inspect_ai'] = None; sys.modules['inspect_ai.log'] = None; "
    command = "from grpo_core.cli.app import main; main()"
    export = ["export", str(run), "--to", "inspect", "--log", str(tmp_path / "a.eval")]
    done = subprocess.run(
        [sys.executable, "-c", blocked + command, *export], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "grpo-core[inspect]" in done.stderr


@pytest.mark.heavy
@pytest.mark.skipif(not INSPECT, reason="GRPO_INSPECT_PYTHON names no Python with inspect-ai")
@pytest.mark.parametrize("ending", ["eval", "json"])
def test_inspect_ai_reads_the_log(run: Path, tmp_path: Path, ending: str) -> None:
    log = tmp_path / f"run.{ending}"

    def output(*command: str) -> str:
        done = subprocess.run(
            [INSPECT, *command], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    main = "from grpo_core.cli.app import main; main()"
    output("-c", main, "export", str(run), "--to", "inspect", "--log", str(log), "--split", "all")
    found = json.loads(output("-c", READ, str(log)))
    assert (found["status"], found["model"]) == ("success", "m")
    assert found["ids"] == ["step 1 train 3", "step 1 eval 0"]
    assert found["means"].keys() == {"reward", "passed", "part: exact"}
    assert set(found["means"].values()) == {pytest.approx(2 / 3)}
    by_place = {(sample["id"], sample["epoch"]): sample for sample in found["samples"]}
    assert len(by_place) == 4
    first = by_place["step 1 train 3", 1]
    assert first["messages"][-1]["content"] == "Answer: 3 <script>\u2028"
    assert first["messages"][2]["tool_calls"][0]["arguments"] == {"a": 1, "b": 2}
    assert first["scores"]["reward"] == first["scores"]["reward"] | {"value": 1.0, "answer": "3"}
    assert by_place["step 1 train 3", 3]["error"]["message"] == "no sandbox"
    listed = json.loads(output("-m", "inspect_ai", "log", "dump", str(log)))
    assert len(listed["samples"]) == 4
