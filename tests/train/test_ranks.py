"""Two processes on one run: what they do together is what one does alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.train.run.checkpoint import checkpoints
from grpo_core.train.trainer import Trainer

from .processes import HERE, ended, launch, said, start
from .short_runs import LETTERS, untimed


def values(folder: Path) -> list[dict[str, float]]:
    """null, "not measured", as a number that nothing else is."""
    return [
        {k: -1e9 if v is None else v for k, v in line.items() if "verify/" not in k and k != "kind"}
        for line in untimed(folder)
    ]


def assert_same_weights(found: Path, expected: Path, *, tolerance: float = 0.0) -> None:
    (name,) = [path.name for path in (found / "final").glob("*.safetensors")]
    ours, theirs = (load_file(folder / "final" / name) for folder in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def assert_same_run(found: Path, expected: Path, *, tolerance: float) -> None:
    for ours, theirs in zip(values(found), values(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance, nan_ok=True)
    assert_same_weights(found, expected, tolerance=tolerance)
    ours, theirs = (
        [(line["key"], line["messages"], line["attempt"]) for line in RunFolder(folder).rollout_lines()]
        for folder in (found, expected)
    )  # fmt: skip
    assert ours == theirs


def options(tiny_folder: Path, *, env: str = LETTERS, **settings: Any) -> list[str]:
    given = {
        "model.name": tiny_folder,
        "model.dtype": "float64",
        "lora.enabled": "false",
        "optimizer.lr": 0.0005,
        "eval.tasks": 3,
        "checkpoint.every": 5,
        **settings,
    }
    return ["--env", env, *(f"--set={key}={value}" for key, value in given.items())]


def launched(processes: int, *given: str, out: Path, command: str = "run") -> Path:
    """Return the folder `out` of a run in several processes that has ended well."""
    log = out.with_suffix(".log")
    status = launch(processes, *given, "--out", str(out), log=log, command=command)
    assert status == 0, said(log)
    return out


SHARED = {"trainer.shard": "true", "trainer.micro_batch_tokens": 40}
UNEVEN = {"prompts_per_step": 3, "group_size": 5, "steps": 20, "eval.tasks": 7}
ONE_GROUP = {
    "prompts_per_step": 1,
    "group_size": 5,
    "steps": 3,
    "kl.beta": 0.0,
    "sampling.refills": 1,
    "loss.aggregation": "token_mean",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(UNEVEN, marks=pytest.mark.heavy),
        ONE_GROUP,
        pytest.param({**UNEVEN, **SHARED}, marks=pytest.mark.heavy),
    ],
    ids=["uneven", "one group over both, refilled", "shared out"],
)
def test_two_processes_equal_one(tiny_folder, tmp_path, settings):
    """All weights in float64; token counts are as they come."""
    given = options(tiny_folder, **settings)
    two = launched(2, *given, out=tmp_path / "two")
    if settings is ONE_GROUP:  # which is quicker here than in a process of its own
        recipe = json.loads((two / "config.json").read_text())
        Trainer(build_config([recipe]), folder=tmp_path / "one").run()
    else:
        launched(1, *given, out=tmp_path / "one")
    assert_same_run(two, tmp_path / "one", tolerance=1e-6)
    assert said(tmp_path / "two.log").count("\nstep 2/") == 1  # only the first speaks


@pytest.mark.heavy
@pytest.mark.parametrize("shard", [False, True], ids=["whole weights", "shared out"])
def test_two_processes_equal_one_in_a_warm_start(tiny_folder, tmp_path, shard):
    answered = LETTERS.replace(":Letters", ":Answered")
    given = options(tiny_folder, env=answered, steps=10, **{"sft.batch_size": 5})
    one = launched(1, *given, out=tmp_path / "one", command="sft")
    more = [f"--set={key}={value}" for key, value in SHARED.items()] if shard else []
    two = launched(2, *given, *more, out=tmp_path / "two", command="sft")
    assert_same_run(two, one, tolerance=1e-6)


@pytest.mark.heavy
def test_a_run_with_weights_shared_out_goes_on_after_a_checkpoint(tiny_folder, tmp_path):
    """The part of weights and optimizer state that each process keeps comes back."""
    shared = {**UNEVEN, "steps": 12, "trainer.shard": "true"}
    run = launched(2, *options(tiny_folder, **shared), out=tmp_path / "run")
    whole = shutil.copytree(run, tmp_path / "whole")
    shutil.rmtree(run / "final")
    for later in checkpoints(run / "checkpoints")[1:]:
        shutil.rmtree(later)
    assert launch(2, "--resume", str(run), log=tmp_path / "again") == 0, said(tmp_path / "again")
    assert_same_run(run, whole, tolerance=0.0)


@pytest.mark.heavy
@pytest.mark.parametrize("shard", [False, True], ids=["whole weights", "shared out"])
def test_two_processes_equal_one_in_bfloat16_on_the_same_completions(tiny_folder, tmp_path, shard):
    """Other rows share a forward pass, so sums are rounded differently. A wrong denominator would change grad_norm by a factor."""
    settings = {"model.name": str(tiny_folder), "model.dtype": "bfloat16", "steps": 20}
    program, table = str(HERE / "replayed.py"), str(tmp_path / "table")
    for processes, mode in ((1, "record"), (2, "replay")):
        more = {"eval.tasks": 0, "trainer.shard": shard and mode == "replay"}
        given = [table, mode, str(tmp_path / mode), json.dumps({**settings, **more})]
        log = tmp_path / f"{mode}.log"
        assert ended(start(processes, program, *given, log=log)) == [0] * processes, said(log)
    replay, record = tmp_path / "replay", tmp_path / "record"
    for found, expected in zip(values(replay), values(record), strict=True):
        # Here to the run that was recorded: how far rounding has taken the two apart.
        gap = found.pop("sampling/logprob_gap") - expected.pop("sampling/logprob_gap")
        assert abs(gap) < 0.05
        assert found == pytest.approx(expected, rel=1e-2, abs=1e-2)
    ours, theirs = (load_file(run / "final" / "adapter_model.safetensors") for run in (replay, record))  # fmt: skip
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["some", pytest.param("all", marks=pytest.mark.heavy)])
def test_sums_are_exact_in_bounded_memory_and_shared_weights_have_the_same_gradient_in_chunks(
    tmp_path, part
):
    """A part of a sum takes at most 64 MiB; all at once, with the copies that make it up, took 610 MiB."""
    log = tmp_path / "log"
    assert ended(start(2, str(HERE / "sharded_head.py"), part, log=log)) == [0, 0], said(log)
    assert "Warning" not in said(log)
    for rank in range(2):
        assert float((tmp_path / f"log.{rank}").read_text().split()[0]) < 100


def written(file: Path, body: str) -> str:
    """Write the environment `Own`, which is Letters with `body`; return its name."""
    head = (
        f"import asyncio, os, sys\nsys.path.insert(0, {str(HERE)!r})\nfrom letters import Letters\n"
    )
    file.write_text(head + body)
    return f"{file}:Own"


SLEEPING = """
class Own(Letters):
    timeout_seconds = 1000.0
    async def averify(self, task, rollout):
        if os.environ.get('RANK') == '1': await asyncio.sleep(600)
        return self.verify(task, rollout)
"""
LATE = """
from grpo_core.engine.policy.engine import Engine
class Own(Letters):
    timeout_seconds = 2.0
    async def averify(self, task, rollout):
        for _ in range(10): await asyncio.sleep(0.05)
        return self.verify(task, rollout)
at_once = Engine.generate
async def generate(self, *args, **more):
    await asyncio.sleep(5 if os.environ['RANK'] == '1' else 0)
    found = await at_once(self, *args, **more)
    await asyncio.sleep(0.2)  # long enough for verdicts to be under way
    return found
Engine.generate = generate
"""


@pytest.mark.slow
def test_a_process_that_does_not_arrive_ends_the_run_with_its_number(tiny_folder, tmp_path):
    """The verifier of the second process sleeps for longer than it is waited for; its deadline is far away."""
    env, log = written(tmp_path / "slow.py", SLEEPING), tmp_path / "log"
    waits = {"steps": 2, "eval.tasks": 0, "trainer.meeting_seconds": 10}
    given = options(tiny_folder, env=env, **waits)
    assert launch(2, *given, "--out", str(tmp_path / "run"), log=log) == 1
    assert "process 1 of 2 did not arrive within 10 s" in " ".join(said(log).split())


@pytest.mark.heavy
def test_a_process_that_waits_for_another_goes_on_judging_within_its_deadlines(
    tiny_folder, tmp_path
):
    """The second process draws its tokens 5 s later; a verdict of the first takes 0.5 s and may take 2 s."""
    size = {"steps": 2, "prompts_per_step": 2, "group_size": 4}
    once = {**size, "eval.tasks": 0, "verify.retries": 0}
    given = options(tiny_folder, env=written(tmp_path / "late.py", LATE), **once)
    run = launched(2, *given, out=tmp_path / "run")
    errors = [line["verdict"]["error"] for line in RunFolder(run).rollout_lines()]
    assert errors == [None] * (2 * 2 * 4)
