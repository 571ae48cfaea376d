"""Two processes on one run: what they do together is what one does alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.run.checkpoint import checkpoints

from .processes import HERE, ended, launch, said, start

TIMED = ("kind", "time/", "verify/", "eval/verify/", "memory/", "eval/seconds")
LETTERS = f"{HERE / 'letters.py'}:Letters"


def values(folder: Path) -> list[dict[str, float]]:
    """null, "not measured", as a number that nothing else is."""
    lines = read_lines(folder / "metrics.jsonl")
    return [
        {k: -1e9 if v is None else v for k, v in line.items() if not k.startswith(TIMED)}
        for line in lines
    ]


def assert_same_run(found: Path, expected: Path, *, tolerance: float) -> None:
    for ours, theirs in zip(values(found), values(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance, nan_ok=True)
    weights = [load_file(folder / "final" / "model.safetensors") for folder in (found, expected)]
    assert weights[0].keys() == weights[1].keys()
    for name in weights[0]:
        torch.testing.assert_close(
            weights[0][name], weights[1][name], rtol=tolerance, atol=tolerance
        )
    texts = [
        [
            (line["key"], line["messages"], line["attempt"])
            for line in RunFolder(folder).rollout_lines()
        ]
        for folder in (found, expected)
    ]
    assert texts[0] == texts[1]


def options(tiny_folder: Path, **settings: Any) -> list[str]:
    common = {
        "model.name": tiny_folder,
        "model.dtype": "float64",
        "lora.enabled": "false",
        "optimizer.lr": 0.0005,
    }
    common |= {"eval.tasks": 7, "checkpoint.every": 5}
    return [
        "--env",
        LETTERS,
        *(f"--set={key}={value}" for key, value in {**common, **settings}.items()),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"prompts_per_step": 3, "group_size": 5, "steps": 20}, marks=pytest.mark.heavy
        ),
        {
            "prompts_per_step": 1,
            "group_size": 7,
            "steps": 8,
            "kl.beta": 0.0,
            "sampling.refills": 1,
            "loss.aggregation": "token_mean",
        },
        pytest.param(
            {
                "prompts_per_step": 3,
                "group_size": 5,
                "steps": 20,
                "trainer.shard": "true",
                "trainer.micro_batch_tokens": 40,
            },
            marks=pytest.mark.heavy,
        ),
    ],
    ids=["uneven", "one group over both, refilled", "shared out"],
)
def test_two_processes_equal_one(
    tiny_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """All weights in float64; token counts are as they come."""
    given = options(tiny_folder, **settings)
    assert launch(1, *given, "--out", str(tmp_path / "one"), log=tmp_path / "log1") == 0, said(
        tmp_path / "log1"
    )
    assert launch(2, *given, "--out", str(tmp_path / "two"), log=tmp_path / "log2") == 0, said(
        tmp_path / "log2"
    )
    assert_same_run(tmp_path / "two", tmp_path / "one", tolerance=1e-6)
    assert said(tmp_path / "log2").count("\nstep 7/") == 1  # only the first speaks


@pytest.mark.heavy
@pytest.mark.parametrize("shard", [False, True], ids=["whole weights", "shared out"])
def test_two_processes_equal_one_in_a_warm_start(
    tiny_folder: Path, tmp_path: Path, shard: bool
) -> None:
    given = options(tiny_folder, steps=10, **{"sft.batch_size": 5})
    given[1] = given[1].replace("Letters", "Answered")
    known = {"command": "sft"}
    assert launch(1, *given, "--out", str(tmp_path / "one"), log=tmp_path / "log1", **known) == 0, (
        said(tmp_path / "log1")
    )
    more = ["--set=trainer.shard=true", "--set=trainer.micro_batch_tokens=40"] if shard else []
    assert (
        launch(2, *given, *more, "--out", str(tmp_path / "two"), log=tmp_path / "log2", **known)
        == 0
    ), said(tmp_path / "log2")
    assert_same_run(tmp_path / "two", tmp_path / "one", tolerance=1e-6)


@pytest.mark.heavy
def test_a_run_with_weights_shared_out_goes_on_after_a_checkpoint(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """The part of weights and optimizer state that each process keeps comes back."""
    given = options(
        tiny_folder, prompts_per_step=3, group_size=5, steps=12, **{"trainer.shard": "true"}
    )
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert launch(2, *given, "--out", str(run), log=tmp_path / "log") == 0, said(tmp_path / "log")
    shutil.copytree(run, whole)
    shutil.rmtree(run / "final")
    for later in checkpoints(run / "checkpoints")[1:]:
        shutil.rmtree(later)
    assert launch(2, "--resume", str(run), log=tmp_path / "again") == 0, said(tmp_path / "again")
    assert_same_run(run, whole, tolerance=0.0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"trainer.shard": True}, marks=pytest.mark.heavy)],
    ids=["whole weights", "shared out"],
)
def test_two_processes_equal_one_in_bfloat16_on_the_same_completions(
    tiny_folder: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    """Other rows share a forward pass, so sums are rounded differently. A wrong denominator would change grad_norm by a factor."""
    settings = {
        "model.name": str(tiny_folder),
        "model.dtype": "bfloat16",
        "steps": 20,
        "eval.tasks": 0,
    }
    for processes, mode, extra in ((1, "record", {}), (2, "replay", more)):
        arguments = [
            str(HERE / "replayed.py"),
            str(tmp_path / "table"),
            mode,
            str(tmp_path / mode),
            json.dumps({**settings, **extra}),
        ]
        log = tmp_path / f"{mode}.log"
        assert ended(start(processes, *arguments, log=log)) == [0] * processes, said(log)
    for found, expected in zip(
        values(tmp_path / "replay"), values(tmp_path / "record"), strict=True
    ):
        gap = found.pop(
            "sampling/logprob_gap"
        )  # here to the run that was recorded: how far rounding has taken the two apart
        assert abs(gap - expected.pop("sampling/logprob_gap")) < 0.05
        assert found == pytest.approx(expected, rel=1e-2, abs=1e-2)
    ours, theirs = (
        load_file(tmp_path / mode / "final" / "adapter_model.safetensors")
        for mode in ("replay", "record")
    )
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["some", pytest.param("all", marks=pytest.mark.heavy)])
def test_sums_are_exact_in_bounded_memory_and_shared_weights_have_the_same_gradient_in_chunks(
    tmp_path: Path, part: str
) -> None:
    """A part of a sum takes at most 64 MiB; all at once, with the copies that make it up, took 610 MiB."""
    log = tmp_path / "log"
    assert ended(start(2, str(HERE / "sharded_head.py"), part, log=log)) == [0, 0], said(log)
    assert "Warning" not in said(log)
    for rank in range(2):
        assert float((tmp_path / f"log.{rank}").read_text().split()[0]) < 100


def test_a_process_that_does_not_arrive_ends_the_run_with_its_number(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """The verifier of the second process sleeps for longer than it is waited for; its deadline is far away."""
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from letters import Letters\n"
        "class Slow(Letters):\n"
        "    timeout_seconds = 1000.0\n"
        "    async def averify(self, task, rollout):\n"
        "        import asyncio\n"
        "        if os.environ.get('RANK') == '1': await asyncio.sleep(600)\n"
        "        return self.verify(task, rollout)\n"
    )
    given = options(tiny_folder, steps=2, **{"eval.tasks": 0, "trainer.meeting_seconds": 10})
    given[1] = f"{tmp_path / 'slow.py'}:Slow"
    assert launch(2, *given, "--out", str(tmp_path / "run"), log=tmp_path / "log") == 1
    assert "process 1 of 2 did not arrive within 10 s" in " ".join(said(tmp_path / "log").split())


@pytest.mark.heavy
def test_a_process_that_waits_for_another_goes_on_judging_within_its_deadlines(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """The second process draws its tokens 5 s later; a verdict of the first takes 0.5 s and may take 2 s."""
    (tmp_path / "late.py").write_text(
        "import asyncio, os, sys\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from letters import Letters\n"
        "from grpo_core.train.policy.engine import Engine\n"
        "class Late(Letters):\n"
        "    timeout_seconds = 2.0\n"
        "    async def averify(self, task, rollout):\n"
        "        for _ in range(10): await asyncio.sleep(0.05)\n"
        "        return self.verify(task, rollout)\n"
        "at_once = Engine.generate\n"
        "async def generate(self, *args, **more):\n"
        "    await asyncio.sleep(5 if os.environ['RANK'] == '1' else 0)\n"
        "    found = await at_once(self, *args, **more)\n"
        "    await asyncio.sleep(0.2)\n"  # long enough for verdicts to be under way
        "    return found\n"
        "Engine.generate = generate\n"
    )
    given = options(
        tiny_folder,
        steps=2,
        **{"eval.tasks": 0, "verify.retries": 0, "prompts_per_step": 2, "group_size": 4},
    )
    given[1] = f"{tmp_path / 'late.py'}:Late"
    assert launch(2, *given, "--out", str(tmp_path / "run"), log=tmp_path / "log") == 0
    lines = list(RunFolder(tmp_path / "run").rollout_lines())
    assert len(lines) == 2 * 2 * 4
    assert [line["verdict"]["error"] for line in lines] == [None] * 16
