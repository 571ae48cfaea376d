"""Runs for the tests of reports: a trained one, and rollouts in it that no honest model writes."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, ToolCall, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.runs.attempts import Fields
from grpo_core.runs.folder import RunFolder
from grpo_core.train.trainer import Trainer

from .letters import Audited

SCRIPT = (
    "<script>window.ran = 'script'</script><img src=x onerror=\"window.ran = 'handler'\">"
    "</script><!-- <svg onload=window.ran='svg'> <a href=\"javascript:window.ran='link'\">x</a>"
)
ODD = "nul \0 rtl \u202egnp.exe\u202c zero\u200bwidth surrogate \ud800 emoji 👩\u200d👩\u200d👧 🏳️\u200d🌈 पक्\u200dष bell \a"
LONG = "lorem " * 170_000 + "THE END"
"""A completion of a megabyte."""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cfc0f01f0005000201a9d7a3"
    "3f0000000049454e44ae426082"
)


def trained_run(settings: Mapping[str, Any], folder: Path, *, steps: int) -> RunFolder:
    """Return the run of a tiny model, with tokens and ratios in the log, that is made once a process."""
    made = _made.get(steps)
    if made is None:
        times = {"steps": steps, "eval": {"tasks": 3, "every": max(1, steps // 2)}}
        more = {**times, "log": {"tokens": True, "ratios": True}}
        made = _made[steps] = Path(tempfile.mkdtemp(dir=folder.parent.parent)) / "run"
        Trainer(build_config([settings, more]), Audited(), folder=made).run()
    shutil.copytree(made, folder)
    return RunFolder.open(folder)


_made: dict[int, Path] = {}
"""By their steps: runs of which tests get copies."""


def verdict(value: float, *, answer: str = "1", note: str = "", **more: Any) -> Verdict:
    return Verdict({"share": Reward(value, note=note)}, passed=value > 0.5, answer=answer, **more)


def group(index: int, prompt: Any, texts: Sequence[Any], verdicts: Sequence[Verdict]) -> Group[Any]:
    """Return a group; a text stands for the only message of an attempt."""
    rollouts = [
        Rollout((Message("assistant", text),) if isinstance(text, str) else tuple(text))
        for text in texts
    ]
    return Group(Task(TaskKey("letters", "train", index, 0, 0.0), prompt, None), rollouts, verdicts)


def add_hostile_groups(folder: RunFolder, *, step: int) -> None:
    """Append groups whose every text is hostile, an alarm and a picture, as runs write them."""
    (folder.path / "shown.png").write_bytes(PIXEL)
    called = [
        Message("assistant", "", (ToolCall(SCRIPT, {SCRIPT: ODD}, "1", None),)),
        Message("tool", SCRIPT),
        Message("assistant", ODD),
    ]
    verdicts = [
        verdict(
            1.0,
            answer=SCRIPT,
            note=SCRIPT,
            detail={"stderr": SCRIPT, SCRIPT: ODD},
            output=SCRIPT + ODD,
        ),
        verdict(0.0, answer=SCRIPT, note=ODD, detail={"pictures": ["shown.png"]}),
        broken(SCRIPT),
        verdict(0.25, answer=ODD, detail={"pictures": ["../../secret.png"]}),
    ]
    prompt = (Message("system", ODD), Message("user", SCRIPT))
    groups = [
        group(900, prompt, [SCRIPT, ODD, called, LONG], verdicts),
        group(901, SCRIPT, ["twice", "twice"], [verdict(0.5), verdict(0.75)]),
    ]
    for number, one in enumerate(groups):
        one = replace(one, advantages=[0.5] * len(one.rollouts))
        folder.rollouts(step, one, Fields(number=number))
    key = {"env": "letters", "split": "train", "index": 900, "seed": 0, "level": 0.0}
    alarm = {
        "step": step, "name": "canary paid", "environment": SCRIPT, "subject": "silence",
        "message": SCRIPT, "values": {"paid": 1.0}, "attempt": 1, "canary": ODD,
        "group": {"step": step, "key": key, "draw": 0},
    }  # fmt: skip
    (folder.path / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")


def broken(reason: str) -> Verdict:
    """Return the verdict of an attempt that could not be judged."""
    return Verdict({}, passed=False, error=reason)


def add_rollouts(folder: RunFolder, count: int, *, step: int) -> None:
    """Append groups of eight attempts until there are `count` more rollouts."""
    for number in range(count // 8):
        texts = [f"attempt {number} {place} " + "word " * 40 for place in range(8)]
        verdicts = [verdict((number + place) % 9 / 8, answer=str(place)) for place in range(8)]
        one = replace(group(number, f"task {number}", texts, verdicts), advantages=[0.1] * 8)
        folder.rollouts(step + number // 50, one, Fields(number=number % 50))
