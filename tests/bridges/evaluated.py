"""Runs `grpo eval --endpoint` against servers of this process, in this process or in one that can be killed."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.tool_calls import read_calls
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.runs.lines import read_lines
from grpo_core.verify.held_out import eval_sets
from grpo_core.verify.sources import Sources

from ..plugins.endpoint import (
    Endpoint,
    Reply,
    answered,
    broken_off,
    closed,
    failed,
    respond,
    without_end,
)

HERE = Path(__file__).parent
GUESS = f"{HERE.parents[1] / 'examples' / '04_dialogue.py'}:Guess"
FRAIL, SHOP, TALE, RANKED, PONDERED = (
    f"{HERE / 'chat_envs.py'}:{name}" for name in ("Frail", "Shop", "Tale", "Ranked", "Pondered")
)
AGENT = f"{HERE.parent / 'core' / 'agent_envs.py'}:Asking"
COMMAND = """
import contextlib
from grpo_core.cli import main
with contextlib.suppress(ImportError):
    from grpo_evals import policy
    policy._FIRST_PAUSE_SECONDS = 0.01
main()
"""
Turns = Callable[[tuple[str, ...], Task[Any]], tuple[str, ...]]
"""Returns what the policy says, given the reference of a task."""


def message(text: str) -> dict[str, Any]:
    """The answer of a server that tells calls of tools apart."""
    calls = read_calls(text, "hermes")
    if not calls:
        return {"content": text}
    written = []
    for number, call in enumerate(calls):
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
        written.append({"id": f"call-{number}", "type": "function", "function": function})
    return {"content": None, "finish": "tool_calls", "tool_calls": written}


def seed_of(key: TaskKey, attempt: int, turn: int) -> str:
    """The seed of the request for a turn."""
    return str(key.rng("endpoint", 0, attempt, turn).getrandbits(31))


def scripted(
    env: str,
    *,
    tasks: int,
    samples: int,
    turns: Turns = lambda reference, task: reference,
) -> dict[str, Any]:
    """Answers for each attempt, by the seeds of their requests."""

    async def build() -> dict[str, Any]:
        sources = Sources.of(build_config([{"environment": env}]), {})
        async with sources:
            (held_out,) = eval_sets(sources, tasks=tasks, levels=())
            made = await sources.tasks(held_out.keys)
            references = await sources.references(made)
        script = {}
        for task, reference in zip(made, references, strict=True):
            assert reference is not None
            said = turns((reference,) if isinstance(reference, str) else reference, task)
            for number in range(samples):
                for turn, text in enumerate(said):
                    script[seed_of(task.key, number, turn)] = message(text)
        return script

    return asyncio.run(build())


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(20)


FAULTS: dict[str, Reply] = {
    "status": failed(500, "broken"),
    "busy": (*failed(429, "busy"), {"Retry-After": "0.05"}),
    "hang": hang,
    "cut": broken_off,
    "garbage": (200, b'{"choices": [{"message": {"content": NaN}, <html>'),
    "shape": (200, {"choices": [], "usage": {"completion_tokens": "many"}}),
    "slow": without_end(b" ", pause=0.05),
    "huge": without_end(b" " * 1_000_000),
    "close": closed,
}


class Evaluated(Endpoint):
    """A server, and evaluations of its model, in folders below one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.out = folder, folder / "out"

    def words(self, env: str, *more: object, out: str = "out") -> list[str]:
        words = ["eval", "--env", env, "--endpoint", self.url, "--model-name", "any", "--json"]
        return [*map(str, [*words, "--out", self.folder / out, *more])]

    def begin(self, env: str, *more: object, code: str = "") -> subprocess.Popen[str]:
        """Start the command in a process; `code` runs before it."""
        return subprocess.Popen(
            [sys.executable, "-c", code + COMMAND, *self.words(env, *more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def invoke(self, env: str, *more: object, out: str = "out") -> Any:
        """The command with two attempts at each of four tasks."""
        return CliRunner().invoke(
            app, self.words(env, "--tasks", 4, "--samples", 2, *more, out=out)
        )

    def evaluate(self, env: str, *more: object, out: str = "out") -> dict[str, Any]:
        """What the command prints for programs."""
        done = self.invoke(env, *more, out=out)
        assert done.exit_code == 0, done.output
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    def lines(self, out: str = "out") -> list[dict[str, Any]]:
        """The attempts that an evaluation has made."""
        return list(read_lines(self.folder / out / "attempts.jsonl"))

    def follow(self, script: Mapping[str, Any], *faults: str, seconds: float = 0.0) -> Counter[str]:
        """Answer by a script, from now on; return how often the request with each seed was answered.

        An answer takes `seconds`. Each request meets some of the faults, by chance, before it is answered.
        """
        tries: Counter[str] = Counter()
        count: Counter[str] = Counter()

        def reply(asked: dict[str, Any]) -> Reply:
            seed = str(asked["seed"])
            tries[seed] += 1
            rng = random.Random(f"{seed} {tries[seed]}")
            if faults and tries[seed] <= 3 and rng.random() < 0.5:
                return FAULTS[rng.choice(faults)]
            time.sleep(seconds)
            said = answered(**script[seed])
            said["choices"][0]["text"] = script[seed]["content"]  # where no chat is asked for

            def whole(handler: BaseHTTPRequestHandler) -> None:
                respond(handler, 200, said)
                count[seed] += 1

            return whole

        self.reply = reply
        return count


def results(process: subprocess.Popen[str], status: int = 0) -> dict[str, Any]:
    """What a process prints for programs, once it has ended with this status."""
    printed, remarks = process.communicate(timeout=120)
    assert process.returncode == status, remarks
    found: dict[str, Any] = json.loads(printed)
    return {**found, "remarks": remarks}


def passed(found: Mapping[str, Any]) -> float:
    value: float = found["results"][0]["statistics"]["pass rate"]["value"]
    return value


def half_right(turns: tuple[str, ...], task: Any) -> tuple[str, ...]:
    """Guesses of which those at even tasks find the number."""
    return ("0", *(turns if task.key.index % 2 else ("x", "y", "z")))


def index_of(asked: dict[str, Any]) -> str:
    """The index of the task of Frail or Pondered that a request asks: its right answer."""
    text: str = asked["messages"][0]["content"]
    return text.strip("Say .")
