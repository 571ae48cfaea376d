"""Compares what two checkouts of this project compute: the same runs, to the last bit.

    git worktree add /tmp/before COMMIT
    python tests/same_runs.py --before /tmp/before [--only arithmetic] [--keep FOLDER] [--tiny]

The other checkout needs an interpreter of its own (`--python`) where its entry points differ from
those that are installed beside this one. Runs of the other checkout that ended in an earlier call
with the same `--keep` are not repeated. With `--tiny`, cases that name no model have a random one
of a few thousand weights: it shows the same differences within seconds, but for those that only
appear once something is learned.

Each case is run by the command line of both checkouts, one after the other. Compared are the lines
of metrics.jsonl (without times, memory and `kind`) and, of every attempt in rollouts.jsonl, the
task's key and draw, messages, rewards, whether it passed, the answer, whether there was an error,
the advantage, and the policy's token ids and log-probabilities (`log.tokens`). Texts of notes and
errors, details and fingerprints may differ.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
TIMED = ("kind", "time/", "memory/", "verify/seconds/", "eval/verify/seconds/", "eval/seconds")
SMALL = "--set eval.tasks=16"
FEW = "--steps 3 --prompts-per-step 2 --group-size 4 --set eval.tasks=4"
ALWAYS = ["--set", "log.tokens=true", "--set", "model.dtype=float32"]
"""Of every run: the type is given, as by itself a run takes what it measures to be faster."""
CASES: dict[str, list[str]] = {
    "arithmetic": [f"run --env arithmetic --steps 20 {SMALL}"],
    "fizzbuzz": [f"run --env fizzbuzz --steps 3 {SMALL}"],
    "besiege-small": [f"run --recipe besiege-small {FEW}"],
    "sft": [f"sft --env arithmetic --steps 10 {SMALL}"],
    "masked": [f"run --env {{place}}/vowels.py:Vowels --model {{place}}/masked --steps 20 {SMALL}"],
    "dialogue": [f"run --env {{checkout}}/examples/04_dialogue.py:Guess {FEW}"],
    "episodes": [
        f"run --env {{place}}/ladder.py:Ladder {FEW} "
        "--set advantage.name=turns --set loss.aggregation=sequence_sum"
    ],
    "two processes": [f"processes=2 run --env arithmetic --steps 5 {SMALL}"],
    "resumed": [
        f"run --env arithmetic --steps 6 --set checkpoint.every=3 {SMALL}",
        "back to step 3",
        "run --resume {run}",
    ],
}
VOWELS = '''
import json
from grpo_core import MASK, Environment, Reward, Task, Verdict

class Vowels(Environment):
    """Fill the gaps with vowels. Reward: the share of them."""

    trusted = True
    max_new_tokens = 8

    def task(self, key):
        rng = key.rng()
        words = ["".join(rng.choice("bcdfgh") for _ in range(4)) for _ in range(rng.randint(1, 4))]
        gaps = [word[: rng.randint(0, 2)] + MASK * 2 + word[2:] for word in words[:2]]
        return Task(key, " ".join([*gaps, *words[2:]]), len(gaps))

    def verify(self, task, rollout):
        fills = json.loads(rollout.text)
        share = sum(letter in "aeiou" for fill in fills for letter in fill) / (2 * task.data)
        return Verdict({"reward": Reward(share)}, passed=share == 1, answer=rollout.text[:50])
'''


LADDER = '''
from grpo_core import Environment, Episode, Message, Reward, Task, Verdict

class Climb(Episode):
    """A ladder: a turn with one more digit than the one before climbs a rung, others fall."""

    def __init__(self, task):
        self.task, self.rung, self.heights = task, 0, []

    async def open(self):
        return (Message("user", f"You stand on rung {self.rung} of {self.task.data}."),)

    async def reply(self, messages):
        digits = sum(letter.isdigit() for letter in messages[-1].content)
        before, self.rung = self.rung, max(0, self.rung + (1 if digits > self.rung else -1))
        self.heights.append((self.rung - before + digits / 100) / self.task.data)
        if self.rung == self.task.data:
            return None
        return (Message("user", f"You stand on rung {self.rung}. Write {self.rung + 1} digits."),)

    async def verdict(self, rollout):
        turns = sum(message.role == "assistant" for message in rollout.messages)
        heights = (*self.heights, *[0.0] * turns)[:turns]
        return Verdict(
            {"reward": Reward(turns=heights)},
            passed=self.rung == self.task.data,
            answer=str(self.rung),
        )

class Ladder(Environment):
    """Climb a ladder, one rung with each turn."""

    trusted = True
    replayable = True
    max_turns = 3
    max_new_tokens = 12

    def task(self, key):
        height = key.rng().randint(2, 3)
        return Task(key, (Message("user", f"Climb {height} rungs. Write a digit."),), height)

    def episode(self, task):
        return Climb(task)
'''


def drive(arguments: list[str]) -> None:
    """Run the command line of the checkout on the path."""
    from grpo_core.cli import main

    sys.argv = ["grpo", *arguments]
    main()


def run(checkout: Path, python: str, name: str, place: Path, folder: Path, *, tiny: bool) -> None:
    """Run one case with the code of a checkout, into `folder`."""
    ended = folder.with_name(folder.name + ".ended")
    if ended.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    roots = [checkout, *(checkout / root for root in ("environments", "plugins", "sandbox"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "XDG_STATE_HOME": str(folder.parent / "state"),
        "OMP_NUM_THREADS": "2",
    }
    for command in CASES[name]:
        if command == "back to step 3":
            shutil.rmtree(folder / "final")
            shutil.rmtree(folder / "checkpoints" / "step-000006")
            continue
        paths = {"place": place, "run": folder, "checkout": checkout}
        words = [word.format(**paths) for word in command.split()]
        launcher = [python]
        if words[0].startswith("processes="):
            count = words.pop(0).partition("=")[2]
            launcher += ["-m", "torch.distributed.run", "--nproc-per-node", count]
        out = [] if "--resume" in words else ["--out", str(folder), *ALWAYS]
        if tiny and out and "--model" not in words:
            out += ["--model", str(place / "tiny")]
        done = subprocess.run(
            [*launcher, str(HERE), "--drive", *words, *out],
            capture_output=True,
            text=True,
            env=environment,
            cwd=place,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(
                f"{name} failed with {checkout}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
    ended.touch()


def differences(name: str, before: Path, after: Path) -> Iterator[str]:
    """Yield what differs between two run folders."""
    for title, read in (("metrics", _metrics), ("rollouts", _rollouts)):
        old, new = read(before), read(after)
        if len(old) != len(new):
            yield f"{name}: {title} has {len(new)} lines, before {len(old)}"
        for number, (a, b) in enumerate(zip(old, new, strict=False), 1):
            if a != b:
                yield f"{name}: {title}, line {number}: {_difference(a, b)}"
                break


def _metrics(folder: Path) -> list[Any]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [
        {key: value for key, value in line.items() if key != "kind" and not key.startswith(TIMED)}
        for line in lines
    ]


def _rollouts(folder: Path) -> list[Any]:
    return [
        _attempt(line)
        for text in (folder / "rollouts.jsonl").read_text().splitlines()
        if "attempt" in (line := json.loads(text))  # not those of groups
    ]


def _attempt(line: dict[str, Any]) -> dict[str, Any]:
    verdict = line["verdict"]
    kept = {
        name: line[name]
        for name in ("step", "key", "draw", "messages", "finish", "tokens", "advantage")
        if name in line
    }
    kept["policy_tokens"] = line["policy_tokens"]
    rewards = {
        name: [part["value"], part["weight"], part.get("turns")]
        for name, part in verdict["rewards"].items()
    }
    kept["key"] = {**kept["key"], "env": kept["key"]["env"].rpartition("/")[2]}
    return kept | {
        "rewards": rewards,
        "passed": verdict["passed"],
        "answer": verdict["answer"],
        "error": verdict["error"] is not None,
    }


def _difference(a: Any, b: Any) -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return "; ".join(f"{key} was {a.get(key)!r}, is {b.get(key)!r}" for key in keys[:3])[:500]
    return f"was {str(a)[:200]}, is {str(b)[:200]}"


def models(place: Path) -> None:
    """Make the tiny models and the environments that no package has."""
    sys.path.insert(0, str(HERE.parent / "train"))
    from tiny import save_tiny
    from tiny_masked import save_masked

    save_tiny(place / "tiny")
    save_masked(place / "masked")
    (place / "vowels.py").write_text(VOWELS)
    (place / "ladder.py").write_text(LADDER)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(sys.argv[2:])
        sys.exit(0)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="another checkout")
    parser.add_argument("--python", default=sys.executable, help="interpreter of that checkout")
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--keep", type=Path, help="folder for the runs; a temporary one by default")
    parser.add_argument("--tiny", action="store_true", help="train a tiny random model")
    options = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as temporary:
        place = (options.keep or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        models(place)
        for case in options.only or CASES:
            folders = {side: place / side / case.replace(" ", "-") for side in ("before", "after")}
            for folder in folders.values():
                folder.parent.mkdir(exist_ok=True)
            folders["after"].with_name(folders["after"].name + ".ended").unlink(missing_ok=True)
            before, tiny = options.before.resolve(), options.tiny
            run(before, options.python, case, place, folders["before"], tiny=tiny)
            run(HERE.parents[1], sys.executable, case, place, folders["after"], tiny=tiny)
            found = list(differences(case, folders["before"], folders["after"]))
            lines = len(_rollouts(folders["after"]))
            print(
                "\n".join(found) or f"{case}: equal to the last bit ({lines} attempts)", flush=True
            )
            status |= bool(found)
    sys.exit(status)
