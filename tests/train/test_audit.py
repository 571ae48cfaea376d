"""The check that training never sees: asked by evaluations, compared with the reward, and never in the way."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Rollout, Task
from grpo_core.figures.gains import Gain, against_audit
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

from ..commandline import words
from .letters import Audited, Letters
from .short_runs import grpo
from .trained import make, trained

FILE = Path(__file__).parent / "letters.py"
FELL = "the audit, which training never sees, fell by"


class Agreeing(Audited):
    def audit(self, task: Task[str], rollout: Rollout) -> float | None:
        return 1 - super().audit(task, rollout)


class Broken(Letters):
    """Fails where the index is odd, and knows nothing where it is 2."""

    def audit(self, task: Task[str], rollout: Rollout) -> float | None:
        if task.key.index % 2:
            raise RuntimeError("the audit broke")
        return None if task.key.index == 2 else float("nan")


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Audited, Agreeing])
def test_a_run_whose_reward_rises_while_its_audit_falls_says_so(settings, tmp_path, cls):
    more = {"steps": 25, "eval": {"tasks": 16}, "checkpoint": {"every": 0}}
    trainer, heard = trained(tmp_path / "run", settings, more, env=cls())
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    first, last = [line for line in lines if "eval/env/audit" in line]
    assert last["eval/reward/mean"] > first["eval/reward/mean"]
    for line in (first, last):
        reward = line["eval/reward/mean"]
        assert line["eval/env/audit"] == pytest.approx(1 - reward if cls is Audited else reward)
    assert len([text for text in heard.warnings if FELL in text]) == (cls is Audited)
    assert (FELL in (tmp_path / "run" / "log.txt").read_text()) == (cls is Audited)
    attempts = trainer.folder.rollout_lines()
    asked = [line["key"]["split"] for line in attempts if "audit" in line["verdict"]["metrics"]]
    assert asked == ["eval"] * 32  # and of no attempt that was trained on


def test_an_audit_that_fails_is_left_out_and_counted_and_the_run_goes_on(settings, tmp_path):
    run, more = tmp_path / "run", {"steps": 1, "eval": {"tasks": 4}, "verify": {"retries": 0}}
    gains = make(run, settings, more, env=Broken()).run()
    assert "audit" not in gains
    lines = [line for line in RunFolder(run).rollout_lines() if line["key"]["split"] == "eval"]
    verdicts = {line["key"]["index"]: line["verdict"] for line in lines}
    failed = [verdicts[index]["metrics"] for index in range(4)]
    assert failed == [{"audit/failed": share} for share in (1.0, 1.0, 0.0, 1.0)]
    assert "finite" in verdicts[0]["detail"]["audit"]
    assert "the audit broke" in verdicts[1]["detail"]["audit"]
    assert all(verdict["error"] is None for verdict in verdicts.values())
    assert next(read_lines(run / "metrics.jsonl"))["eval/env/audit/failed"] == 0.75


def test_audits_that_failed_are_counted_where_a_model_is_measured(tiny_folder, tmp_path):
    (tmp_path / "broken.py").write_text(
        f"import sys; sys.path.insert(0, {str(FILE.parent)!r})\nfrom letters import Letters\n"
        "class Broken(Letters):\n    def audit(self, task, rollout):\n        raise RuntimeError('broke')\n"
    )
    options = (
        f"eval --env {tmp_path / 'broken.py'}:Broken --model {tiny_folder} --tasks 2 --samples 3"
    )
    shown = grpo(*words(options)).stdout
    (row,) = [line for line in shown.splitlines() if "audits that failed" in line]
    assert "6" in row
    told = grpo(*words(f"{options} --json")).stdout
    assert json.loads(told)["results"][0]["audits_failed"] == 6


def test_of_several_environments_the_one_is_named_whose_audit_fell():
    rose, fell = Gain(0.1, 0.6, 0.4, 0.6, 32), Gain(0.9, 0.4, -0.6, -0.4, 32)
    gains = {"one reward": rose, "one audit": rose, "two reward": rose, "two audit": fell}
    (said,) = against_audit(gains)
    assert said.startswith(f"the held-out reward of two rose by 0.500, but {FELL} 0.500")


def test_a_measured_model_shows_the_audit_beside_the_reward(tiny_folder):
    def statistics(env: str) -> dict[str, Any]:
        options = f"eval --env {FILE}:{env} --model {tiny_folder} --tasks 4 --samples 3 --json"
        return json.loads(grpo(*words(options)).stdout)["results"][0]["statistics"]

    found = statistics("Audited")
    assert found["audit"]["value"] == pytest.approx(1 - found["reward"]["value"])
    assert "audit" not in statistics("Letters")
