"""Agents and episodes that open sessions with a socket, for the tests of bridges."""

import os
from collections.abc import Sequence
from typing import Any

from grpo_core import (
    SESSION_PORT,
    AgentEnvironment,
    Environment,
    Episode,
    GrpoError,
    Limits,
    Message,
    NoConfig,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
    current_access,
)

AGENT = """
import json, os, sys, urllib.request
messages = [{"role": "user", "content": sys.stdin.read()}]
heard = []
while "end" not in heard:
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        heard.append(json.load(answer)["choices"][0]["message"]["content"])
    messages += [{"role": "assistant", "content": heard[-1]}, {"role": "user", "content": "go on"}]
print(" ".join(heard))
"""
"""An agent of the standard library alone, as a jail has it; a client of the package openai sends the same."""
LIMITS = Limits(wall_seconds=60, cpu_seconds=5, memory_mb=256)


class Jailed(AgentEnvironment[int]):
    """Runs its agent in a session that reaches the endpoint and nothing else."""

    Config = NoConfig
    needs = frozenset({"endpoint", "sandbox"})
    max_turns = 6

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", f"question {key.index}"),), key.index)

    async def agent(self, task: Task[int], client: Any) -> Any:
        access = current_access()
        session = await self.services.sandbox().session(
            {"agent.py": AGENT}, limits=LIMITS, socket=access.socket
        )
        variables = [
            f"OPENAI_BASE_URL=http://127.0.0.1:{SESSION_PORT}/v1",
            f"OPENAI_API_KEY={access.key}",
            f"OPENAI_MODEL={access.model}",
        ]
        try:
            result = await session.exec(
                ["env", *variables, "python3", "agent.py"], input=f"question {task.data}"
            )
        finally:
            await session.close()
        return {"said": result.stdout.split(), "failed": result.stderr, "pid": os.getpid()}

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        said = rollout.returned["said"]
        return Verdict({"reward": Reward(float("right" in said))}, passed="right" in said)


class Straying(Jailed):
    """Tries to open sessions with sockets that it was not given."""

    async def agent(self, task: Task[int], client: Any) -> Any:
        await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "?"}]
        )
        socket = str(current_access().socket)
        return [
            await opening(self, path)
            for path in (
                os.environ.get("STRAY", "/run/docker.sock"),
                f"{os.path.dirname(socket)}/./{os.path.basename(socket)}",
                os.path.dirname(socket),
                "",
            )
        ]


async def opening(env: Environment[Any], path: str) -> str:
    """What becomes of a session with a socket."""
    try:
        session = await env.services.sandbox().session(socket=path)
    except GrpoError as error:
        return str(error)
    await session.close()
    return "opened"


class StrayingEpisode(Episode):
    def __init__(self, env: Environment[Any]) -> None:
        self._env = env

    async def open(self) -> Sequence[Message]:
        return (Message("user", await opening(self._env, "/run/docker.sock")),)

    async def reply(self, messages: Sequence[Message]) -> None:
        return None

    async def verdict(self, rollout: Rollout) -> Verdict:
        return Verdict({"reward": Reward(0.0)}, answer=rollout.messages[0].content)


class Game(Environment[int]):
    """Has episodes, which were given no socket at all."""

    Config = NoConfig
    needs = frozenset({"sandbox"})
    max_turns = 2

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", "Play."),), 0)

    def episode(self, task: Task[int]) -> Episode:
        return StrayingEpisode(self)
