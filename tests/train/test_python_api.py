"""The trainer from Python: in a script, in a notebook whose event loop runs, and piece by piece."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.protocol.errors import ConfigError, PluginError
from grpo_core.train.trainer import Trainer

from .letters import Letters
from .short_runs import QUICK, make, ran

SQUARES = '''
from helper import ask
from grpo_core import Environment, Reward, Task, Verdict

class Squares(Environment):
    """Asks for squares."""
    max_new_tokens = 4

    def task(self, key):
        return Task(key, ask(key.index), key.index**2)

    def verify(self, task, rollout):
        return Verdict({"reward": Reward(float(str(task.data) in rollout.text))})
'''
SMALL = {**QUICK, "steps": 1, "prompts_per_step": 2, "group_size": 3, "eval.tasks": 4}


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, **nested(SMALL)}


@pytest.fixture
def squares(tmp_path: Path) -> str:
    """An environment that nobody packaged, with a helper beside it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text("def ask(n):\n    return f'{n} squared is'\n")
    (tmp_path / "code" / "squares.py").write_text(SQUARES)
    return f"{tmp_path / 'code' / 'squares.py'}:Squares"


@pytest.mark.parametrize("awaits", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_run_in_a_notebook_whose_event_loop_is_running(settings, tmp_path, awaits):
    trainer = make(settings, tmp_path / "run")
    assert (await trainer.arun() if awaits else trainer.run()).keys() == {"reward", "pass_rate"}


@pytest.mark.slow
def test_without_a_folder_a_run_makes_one_below_runs(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(build_config([settings]), Letters())
    assert not (tmp_path / "runs").exists()
    trainer.run()
    folder = trainer.folder.path
    assert (folder.parent, folder.name.partition("-")[0]) == (tmp_path / "runs", "letters")
    assert trainer.folder.finished


def test_sampling_and_verifying_piece_by_piece_writes_nothing(settings, tmp_path):
    trainer = make(settings, tmp_path / "run")
    groups = trainer.sample(3, attempts=2)
    assert [len(group.rollouts) for group in groups] == [2, 2, 2]
    assert {group.task.key.split for group in groups} == {"eval"}
    judged = trainer.verify(groups)
    assert all(verdict.scored for group in judged for verdict in group.verdicts)
    again = trainer.sample([group.task.key for group in groups], attempts=2)
    assert [group.rollouts for group in again] == [group.rollouts for group in groups]
    assert not (tmp_path / "run").exists()


def test_an_environment_from_a_file_trains_in_worker_processes(settings, tmp_path, squares):
    config = build_config([settings, {"environment": squares, "verify": {"workers": 1}}])
    trainer = Trainer(config, folder=tmp_path / "run")
    trainer.run()
    lines = list(trainer.folder.rollout_lines())
    assert {line["key"]["env"] for line in lines} == {"squares.py:Squares"}
    assert {line["verdict"]["error"] for line in lines} == {None}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "squares.py",
            r"does not name a class \(it defines Squares\); write it as \S+squares.py:Squares",
        ),
        ("broken.py:Squares", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(settings, tmp_path, squares, name, message):
    code = tmp_path / "code"
    (code / "broken.py").write_text("class Squares(:\n")
    config = build_config([settings, {"environment": f"{code / name}"}])
    with pytest.raises(PluginError, match=message):
        Trainer(config, folder=tmp_path / "run")


def test_an_environment_that_is_given_stays_open_for_its_owner_until_the_run_ends(
    settings, tmp_path
):
    class Closing(Letters):
        closed = 0

        async def close(self) -> None:
            type(self).closed += 1

    trainer = make(settings, tmp_path / "run", env=Closing())
    assert len(trainer.sample(9, attempts=1)) == 9  # more than eval.tasks
    trainer.verify(trainer.sample(1))
    assert Closing.closed == 0
    trainer.run()
    assert Closing.closed == 1


def test_an_environment_without_source_has_a_fingerprint_that_knows_its_code():
    """As at a prompt or in some notebooks: neither the module nor the class has a file."""
    found = []
    for wrong in (0.0, 0.5, 0.0):
        space = {"__name__": "nowhere"}
        reward = f'Verdict({{"reward": Reward({wrong})}})'
        exec(SQUARES.replace("from helper import ask", "").partition("    def verify")[0], space)
        exec(f"class Typed(Squares):\n    def verify(self, task, rollout): return {reward}", space)
        found.append(space["Typed"]().fingerprint())
    assert found[0] == found[2] != found[1]


def test_two_files_with_one_name_are_refused_in_a_mixture(settings, tmp_path, squares):
    other = tmp_path / "other" / "squares.py"
    other.parent.mkdir()
    other.write_text(SQUARES.replace("from helper import ask", "ask = str"))
    both = {"environment": None, "mixture": {squares: {}, f"{other}:Squares": {}}}
    message = r"two environments of the run are called 'squares\.py:Squares'"
    with pytest.raises(ConfigError, match=message):
        Trainer(build_config([settings, both]), folder=tmp_path / "run")


def test_an_environment_without_held_out_tasks_is_refused_unless_evaluation_is_off(
    settings, tmp_path
):
    class Unevaluated(Letters):
        def size(self, split):
            return 0 if split == "eval" else None

    message = r"has no held-out tasks with these settings; set eval\.tasks=0"
    with pytest.raises(ConfigError, match=message):
        make(settings, tmp_path / "run", env=Unevaluated())
    ran(settings, tmp_path / "run", {"eval.tasks": 0}, env=Unevaluated())
