"""Runs `grpo eval --endpoint` against servers, in this process or in one that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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

from ..plugins.endpoint import answered

HERE = Path(__file__).parent
GUESS = f"{HERE.parents[1] / 'examples' / '04_dialogue.py'}:Guess"
FRAIL, SHOP, TALE, RANKED = (
    f"{HERE / 'chat_envs.py'}:{name}" for name in ("Frail", "Shop", "Tale", "Ranked")
)
COMMAND = """
import contextlib
from grpo_core.cli import main
with contextlib.suppress(ImportError):
    from grpo_core.bridges.endpoint import policy
    policy._FIRST_PAUSE_SECONDS = 0.01
main()
"""
Turns = Callable[[tuple[str, ...], Task[Any]], tuple[str, ...]]
"""Returns what the policy says, given the reference of a task."""


def message(text: str) -> dict[str, Any]:
    """The message of a server that tells calls of tools apart."""
    calls = read_calls(text, "hermes")
    if not calls:
        return {"role": "assistant", "content": text}
    written = []
    for number, call in enumerate(calls):
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
        written.append({"id": f"call-{number}", "type": "function", "function": function})
    return {"role": "assistant", "content": None, "tool_calls": written}


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


@dataclass
class ChatServer:
    """A server that runs."""

    url: str
    log: Path

    def answered(self) -> Counter[str]:
        """How often each request was answered, by its seed."""
        return Counter(self.log.read_text().split() if self.log.exists() else ())


@contextlib.contextmanager
def serving(
    script: Mapping[str, Any], folder: Path, *faults: str, seconds: float = 0.0
) -> Iterator[ChatServer]:
    """Run a server in a process of its own."""
    folder.mkdir(parents=True)
    path, log = folder / "script.json", folder / "answered.txt"
    path.write_text(json.dumps(script))
    command = [sys.executable, HERE / "chat_server.py", path, log, str(seconds), *faults]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ChatServer(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", log)
        finally:
            process.kill()


def begin(env: str, url: str, out: Path, *more: object, code: str = "") -> subprocess.Popen[str]:
    """Start the command in a process; `code` runs before it."""
    words = ["eval", "--env", env, "--endpoint", url, "--model-name", "any", "--out", out, "--json"]
    return subprocess.Popen(
        [sys.executable, "-c", code + COMMAND, *map(str, [*words, *more])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(process: subprocess.Popen[str], status: int = 0) -> dict[str, Any]:
    """What a process prints for programs, once it has ended with this status."""
    printed, remarks = process.communicate(timeout=120)
    assert process.returncode == status, remarks
    found: dict[str, Any] = json.loads(printed)
    return {**found, "remarks": remarks}


def invoke(env: str, url: str, out: Path, *more: object) -> Any:
    """The command with two attempts at each of four tasks."""
    words = ["--env", env, "--endpoint", url, "--model-name", "any", "--out", out, "--json"]
    words += ["--tasks", 4, "--samples", 2, *more]
    return CliRunner().invoke(app, ["eval", *map(str, words)])


def evaluate(env: str, url: str, out: Path, *more: object) -> dict[str, Any]:
    """What the command prints for programs."""
    done = invoke(env, url, out, *more)
    assert done.exit_code == 0, done.output
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def passed(found: Mapping[str, Any]) -> float:
    value: float = found["results"][0]["statistics"]["pass rate"]["value"]
    return value


def half_right(turns: tuple[str, ...], task: Any) -> tuple[str, ...]:
    """Guesses of which those at even tasks find the number."""
    return ("0", *(turns if task.key.index % 2 else ("x", "y", "z")))


def count_lines(out: Path) -> int:
    return sum(1 for _ in read_lines(out / "attempts.jsonl"))


def index_of(asked: dict[str, Any]) -> str:
    """The index of the task of Frail, Pondered or Rounded that a request asks."""
    text: str = asked["messages"][0]["content"]
    return text.strip("Say .")


def right(asked: dict[str, Any]) -> tuple[int, Any]:
    """The right answer to a request of Frail or Pondered."""
    return 200, chat(says(index_of(asked)))


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat(message: Mapping[str, Any], *, finish: str = "stop") -> dict[str, Any]:
    """The body of an answer with this message."""
    body = answered("")
    body["choices"] = [{"index": 0, "finish_reason": finish, "message": dict(message)}]
    return body
