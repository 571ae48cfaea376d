"""The note of a run that prepares: it goes when the run begins or is refused, and tells of a process that was killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.runs import starting as module
from grpo_core.runs.starting import ended_starts, starting
from grpo_core.runs.trust import state_folder

from .letters import Letters
from .short_runs import QUICK, grpo, make

KILLED = """
import os, signal, sys
from pathlib import Path
from grpo_core.runs.starting import starting
with starting(Path("runs/mine"), sys.argv[1]) as note:
    if len(sys.argv) > 2:
        note.add(estimate=float(sys.argv[2]), free=float(sys.argv[3]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def notes() -> list[Path]:
    return list((state_folder() / "starting").glob("*"))


def killed(*arguments: object) -> None:
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def test_a_process_that_was_killed_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    killed("loading the model")
    (path,) = notes()
    assert json.loads(path.read_text())["phase"] == "loading the model"
    # The kernel of this machine may have killed another process meanwhile.
    monkeypatch.setattr(module, "_oom_kills", lambda: None)
    assert ended_starts() == [
        "the run runs/mine ended while loading the model: its process was killed or crashed"
    ]
    assert ended_starts() == []
    assert notes() == []


@pytest.mark.parametrize(("estimate", "free", "is_likely"), [(9e9, 1e10, True), (1e9, 1e10, False)])
def test_memory_is_named_where_the_estimate_came_near_what_was_free(
    monkeypatch: pytest.MonkeyPatch, estimate: float, free: float, is_likely: bool
) -> None:
    killed("preparing the first step", estimate, free)
    monkeypatch.setattr(module, "_oom_kills", lambda: None)
    (text,) = ended_starts()
    assert ("memory was at its limit" in text) == is_likely


def test_memory_is_named_where_the_kernel_has_killed_for_it_since() -> None:
    killed("loading the model")
    (path,) = notes()
    note = json.loads(path.read_text())
    if note["oom_kills"] is None:
        pytest.skip("this kernel does not count what it kills for memory")
    path.write_text(json.dumps({**note, "oom_kills": note["oom_kills"] - 1}))
    (text,) = ended_starts()
    assert text.startswith(
        "the run runs/mine ended while loading the model; memory was at its limit"
    )


def test_a_process_that_still_prepares_is_not_told_of_but_one_with_its_number_is() -> None:
    with starting(Path("mine"), "loading the model"):
        assert ended_starts() == []
        (path,) = notes()
        assert json.loads(path.read_text())["process"] == os.getpid()
        path.write_text(json.dumps({**json.loads(path.read_text()), "started": "1"}))
        assert len(ended_starts()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 1}', '{"process": "x", "machine": null}'])
def test_a_damaged_note_is_removed_without_a_word(text: str) -> None:
    (state_folder() / "starting").mkdir(parents=True)
    (state_folder() / "starting" / "1.json").write_text(text)
    assert ended_starts() == []


def test_the_note_is_gone_when_the_run_has_begun_or_was_refused(
    settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Looking(Letters):
        def verify(self, task, rollout):
            seen.append(len(notes()))
            return super().verify(task, rollout)

    add = module.Note.add
    phases: list[str] = []

    def noted(self, **more):
        add(self, **more)
        phases.extend(json.loads(path.read_text())["phase"] for path in notes())

    monkeypatch.setattr(module.Note, "add", noted)
    trainer = make(settings, tmp_path / "run", {**QUICK, "steps": 1}, env=Looking())
    trainer.run()
    assert phases[0] == "loading the model"
    assert set(phases[1:]) == {"preparing the first step"}
    assert seen
    assert set(seen) == {0}
    said = grpo(
        "run", "--env", "arithmetic", "--model", settings["model"]["name"], "--steps", 1,
        "--set", "lora.targets=nowhere", "--out", tmp_path / "refused", status=2,
    )  # fmt: skip
    assert "lora.targets" in said.output
    assert notes() == []


@pytest.mark.slow
def test_the_next_command_that_trains_says_it(tmp_path: Path) -> None:
    killed("loading the model")
    said = grpo("run", "--env", "arithmetic", "--model", tmp_path / "none", status=2).output
    assert "the run runs/mine ended while loading the model" in " ".join(said.split())
    said = grpo("run", "--env", "arithmetic", "--model", tmp_path / "none", status=2).output
    assert "ended while" not in said
