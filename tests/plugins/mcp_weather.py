"""An environment with the tools of an MCP server, which its worker reaches by HTTP."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_mcp import McpEpisode, McpServer


class Talk(McpEpisode[int]):
    async def verdict(self, rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == str(self.task.data)
        return Verdict({"reward": Reward(right)}, passed=right)


@dataclass(frozen=True)
class Config:
    url: str = ""


class Weather(Environment[int]):
    """Asks for a sum."""

    Config = Config
    max_turns = 3
    max_new_tokens = 200
    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        first = key.rng().randint(1, 4)
        return Task(key, (Message("user", f"{first} + 3? Weather?"),), first + 3)

    def tools(self) -> Sequence[Callable[..., object]]:
        return McpServer(url=self.config.url).tools()

    def episode(self, task: Task[int]) -> Talk:
        return Talk(task, McpServer(url=self.config.url))
