"""Agents for the tests: they ask, and then end in many ways."""

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core import AgentEnvironment, Message, NoConfig, Reward, Rollout, Task, TaskKey, Verdict


async def ask(client: Any, *messages: Any, **fields: Any) -> Any:
    return await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": text} for text in messages], **fields
    )


class Asking(AgentEnvironment[int]):
    """Asks until it hears "end", and returns what it heard."""

    Config = NoConfig
    max_turns = 5
    agent_seconds = 20.0

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", f"question {key.index}"),), key.index)

    async def agent(self, task: Task[int], client: Any) -> Any:
        messages: list[Any] = [{"role": "user", "content": f"question {task.data}"}]
        heard: list[str] = []
        while "end" not in heard:
            answer = await client.chat.completions.create(model="policy", messages=messages)
            heard.append(answer.choices[0].message.content or "")
            messages += [
                {"role": "assistant", "content": heard[-1]},
                {"role": "user", "content": f"heard {len(heard)}"},
            ]
        return {"heard": heard, "pid": os.getpid(), "task": task.data}

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        heard = (rollout.returned or {}).get("heard", [])
        return Verdict(
            {"reward": Reward(float("right" in heard))},
            passed="right" in heard,
            answer=" ".join(heard) or rollout.text,
        )


class Trusted(Asking):
    trusted = True


class Judged(Asking):
    """Judges asynchronously, in the run's own process."""

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.verify(task, rollout)


class Failing(Asking):
    """Ends as the policy tells it: a word for each way."""

    agent_seconds = 3.0

    async def agent(self, task: Task[int], client: Any) -> Any:
        if (said := (await ask(client, "how?")).choices[0].message.content) == "raise":
            raise RuntimeError("the agent gave up")
        if said == "hang":
            await asyncio.sleep(60)
        elif said == "block":
            time.sleep(60)  # noqa: ASYNC251 - that is the fault
        elif said == "exit":
            os._exit(3)
        elif said == "sysexit":
            sys.exit(1)
        elif said == "set":
            return {1, 2}
        elif said == "deep":
            value: Any = []
            for _ in range(100_000):
                value = [value]
            return value
        elif said == "large":
            return "x" * 9_000_000
        return {"heard": [said]}


class Silent(Asking):
    """Never asks."""

    async def agent(self, task: Task[int], client: Any) -> Any:
        return {"heard": ["right"]}


def lost(path: Path) -> int:
    """Count one more run in a file, and return how many there were."""
    path.write_text((path.read_text() if path.exists() else "") + "x")
    return len(path.read_text())


@dataclass(frozen=True)
class Counted:
    runs: str = ""


class Lost(Asking):
    """Ends its worker in its first three runs, after it has asked; `runs` is the file that counts them."""

    Config = Counted

    async def agent(self, task: Task[int], client: Any) -> Any:
        said = (await ask(client, "well?")).choices[0].message.content
        if lost(Path(self.config.runs)) <= 3:
            os._exit(1)
        return {"heard": [said]}


ASKS = """
import json, os, sys, urllib.request
messages = json.load(sys.stdin)
body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
answer = json.load(urllib.request.urlopen(request))
print(answer["choices"][0]["message"]["content"])
"""
"""A program that asks with the messages of its stdin."""
PROGRAM = f'{ASKS}print(os.getcwd(), os.listdir("."), file=sys.stderr)\nsys.exit(7)\n'


class Command(Asking):
    """Has a program ask."""

    def command(self, task: Task[int]) -> list[str]:
        return [sys.executable, "-c", PROGRAM]

    agent = AgentEnvironment.agent

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        returned = rollout.returned or {}
        right = returned.get("stdout") == "right\n" and returned.get("status") == 7
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=str(returned))


class Environs(Command):
    """Has a program ask, and print its environment variables to stderr."""

    def command(self, task: Task[int]) -> list[str]:
        prints = "import json, os, sys; print(json.dumps(dict(os.environ)), file=sys.stderr)"
        return [sys.executable, "-c", f"{prints}\n{PROGRAM}"]


class Hanging(Command):
    agent_seconds = 1.0

    def command(self, task: Task[int]) -> list[str]:
        return ["/bin/sh", "-c", "sleep 100 & sleep 100"]


class Neither(AgentEnvironment[int]):
    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, "x", 0)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return Verdict({"reward": Reward(0.0)})


class WithReply(Asking):
    async def reply(self, task: Any, messages: Any) -> Any:
        return None
