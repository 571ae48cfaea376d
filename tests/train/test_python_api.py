"""The trainer from Python: in a script, in a notebook whose event loop runs, and piece by piece."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError, PluginError, UnknownNameError
from grpo_core.report.plots import draw_plots
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from .letters import Letters

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


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": 2, "prompts_per_step": 2, "group_size": 3, "eval": {"tasks": 4}}


@pytest.fixture
def squares(tmp_path: Path) -> str:
    """An environment that nobody packaged, with a helper beside it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text("def ask(n):\n    return f'{n} squared is'\n")
    (tmp_path / "code" / "squares.py").write_text(SQUARES)
    return f"{tmp_path / 'code' / 'squares.py'}:Squares"


def test_a_run_in_a_notebook_whose_event_loop_is_running(settings, tmp_path):
    async def cell() -> Any:
        return Trainer(build_config([settings]), Letters(), folder=tmp_path / "run").run()

    assert asyncio.run(cell()).keys() == {"reward", "pass_rate"}


@pytest.mark.slow
def test_a_run_awaited_by_code_with_a_loop_of_its_own(settings, tmp_path):
    trainer = Trainer(build_config([settings]), Letters(), folder=tmp_path / "run")
    assert asyncio.run(trainer.arun()).keys() == {"reward", "pass_rate"}


@pytest.mark.slow
def test_without_a_folder_a_run_makes_one_below_runs(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(build_config([settings]), Letters())
    assert not (tmp_path / "runs").exists()
    trainer.run()
    assert (trainer.folder.path.parent, trainer.folder.path.name.startswith("letters-")) == (
        tmp_path / "runs",
        True,
    )
    assert trainer.folder.finished


def test_sampling_and_verifying_piece_by_piece_writes_nothing(settings, tmp_path):
    trainer = Trainer(build_config([settings]), Letters(), folder=tmp_path / "run")
    groups = trainer.sample(3, attempts=2)
    assert [len(group.rollouts) for group in groups] == [2, 2, 2]
    assert {group.task.key.split for group in groups} == {"eval"}
    judged = trainer.verify(groups)
    assert all(verdict.scored for group in judged for verdict in group.verdicts)
    assert [g.rollouts for g in trainer.sample([g.task.key for g in groups], attempts=2)] == [
        g.rollouts for g in groups
    ]
    assert not (tmp_path / "run").exists()


def test_an_environment_from_a_file_trains_in_worker_processes(settings, tmp_path, squares):
    trainer = Trainer(build_config([{**settings, "environment": squares}]), folder=tmp_path / "run")
    trainer.run()
    keys = {line["key"]["env"] for line in trainer.folder.rollout_lines()}
    assert keys == {"squares.py:Squares"}
    assert all(line["verdict"]["error"] is None for line in trainer.folder.rollout_lines())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}:Sqares", "has no attribute 'Sqares'"),
        ("{file}", "does not name a class; write it as path/to/file.py:Class"),
        ("{folder}/none.py:Squares", "is not a file"),
        ("{folder}/broken.py:Squares", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(settings, tmp_path, squares, name, message):
    file = squares.rpartition(":")[0]
    (tmp_path / "code" / "broken.py").write_text("class Squares(:\n")
    with pytest.raises(PluginError, match=message):
        Trainer(
            build_config(
                [{**settings, "environment": name.format(file=file, folder=tmp_path / "code")}]
            ),
            folder=tmp_path / "run",
        )


def test_an_unknown_name_is_answered_with_the_nearest(settings, tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'arithmetic'"):
        Trainer(build_config([{**settings, "environment": "arithmetik"}]), folder=tmp_path / "run")


def test_an_environment_that_is_given_stays_open_for_its_owner_until_the_run_ends(
    settings, tmp_path
):
    class Closing(Letters):
        closed = 0

        async def close(self) -> None:
            type(self).closed += 1

    trainer = Trainer(build_config([settings]), Closing(), folder=tmp_path / "run")
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
        exec(NOTEBOOK.format(wrong=wrong), space)
        found.append(space["Typed"]().fingerprint())
    assert found[0] == found[2] != found[1]


NOTEBOOK = """
from grpo_core import Environment, Reward, Task, Verdict
class Typed(Environment):
    def task(self, key):
        return Task(key, "x", None)
    def verify(self, task, rollout):
        return Verdict({{"reward": Reward({wrong})}})
"""


def test_two_files_with_one_name_are_refused_in_a_mixture(settings, tmp_path, squares):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "squares.py").write_text(
        SQUARES.replace("from helper import ask", "ask = str")
    )
    both = {squares: {}, f"{tmp_path / 'other' / 'squares.py'}:Squares": {}}
    with pytest.raises(
        ConfigError, match=r"two environments of the run are called 'squares\.py:Squares'"
    ):
        Trainer(
            build_config([{**settings, "environment": None, "mixture": both}]),
            folder=tmp_path / "run",
        )


def test_an_environment_without_held_out_tasks_is_refused_unless_evaluation_is_off(
    settings, tmp_path
):
    class Unevaluated(Letters):
        def size(self, split):
            return 0 if split == "eval" else None

    with pytest.raises(
        ConfigError, match=r"has no held-out tasks with these settings; set eval\.tasks=0"
    ):
        Trainer(build_config([settings]), Unevaluated(), folder=tmp_path / "run")
    Trainer(
        build_config([{**settings, "eval": {"tasks": 0}}]), Unevaluated(), folder=tmp_path / "run"
    ).run()


@pytest.mark.slow
def test_what_is_only_evaluated_does_not_change_the_loss(settings, tmp_path):
    class Long(Letters):
        max_new_tokens = 64

    losses = []
    for also in ({}, {"also": ["long"]}):
        config = build_config(
            [{**settings, "loss": {"aggregation": "constant"}, "eval": {"tasks": 2, **also}}]
        )
        trainer = Trainer(
            config,
            {"letters": Letters(), **({"long": Long()} if also else {})},
            folder=tmp_path / f"run{len(losses)}",
        )
        trainer.run()
        losses.append(
            [
                line["loss"]
                for line in read_lines(trainer.folder.path / "metrics.jsonl")
                if "loss" in line
            ]
        )
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_without_a_reference_the_plots_are_drawn_all_the_same(settings, tmp_path):
    trainer = Trainer(
        build_config([{**settings, "kl": {"beta": 0}}]), Letters(), folder=tmp_path / "run"
    )
    trainer.run()
    assert all(path.stat().st_size > 1000 for path in draw_plots(tmp_path / "run"))
