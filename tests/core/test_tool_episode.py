"""Tools that see the task and an episode's state: what the policy is told, calls under a deadline, several at once."""

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from grpo_core import ConfigError, Message, SandboxError, Task, TaskKey, Verdict
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.tool_calls import MAX_CALLS
from grpo_core.protocol.tool_episode import ToolEpisode, answers_in_time
from grpo_core.protocol.tools import MAX_RESULT, DescribedTool, answers, schemas, tool, tools_of

TASK = Task(TaskKey("shop", "train", 0), (Message("user", "Buy 3 apples."),), {"apple": 2})


class ShopEpisode(ToolEpisode[dict[str, int]]):
    tool_seconds: ClassVar[float] = 0.8

    def __init__(self, task: Task[dict[str, int]]) -> None:
        super().__init__(task)
        self.bought: list[str] = []
        self.stopped = threading.Event()

    async def verdict(self, rollout: Any) -> Verdict:
        return Verdict({})

    @tool
    async def buy(self, item: str, *, task: Task[dict[str, int]], count: int = 1) -> str:
        """Buy something.

        Of no interest to the policy.
        """
        await asyncio.sleep(0.3)
        self.bought += [item] * count
        return f"{count * task.data[item]} coins"

    @tool
    def basket(self) -> list[str]:
        """Return what was bought."""
        return self.bought

    @tool
    def spin(self) -> None:
        """Never end."""
        try:
            while True:
                pass
        finally:
            self.stopped.set()

    @tool
    def doze(self) -> None:
        """Wait in C code."""
        time.sleep(20)

    @tool
    async def wait(self) -> None:
        """Wait without end."""
        await asyncio.sleep(60)

    @tool
    async def late(self) -> None:
        """Fail like a socket."""
        raise TimeoutError("the shop is closed")

    @tool
    async def jail(self) -> None:
        """Fail like a sandbox."""
        raise SandboxError("Docker is gone")

    def helper(self) -> None:
        """Is no tool."""


class LaterShop(ShopEpisode):
    concurrent: ClassVar[bool] = False

    @tool
    def extra(self) -> str:
        """Is added."""
        return "x"


def calls(*named: tuple[str, Mapping[str, Any]]) -> list[Message]:
    text = "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        for name, arguments in named
    )
    return [Message("assistant", text)]


def ask(episode: ToolEpisode[Any], *named: tuple[str, Mapping[str, Any]]) -> list[str]:
    reply = asyncio.run(episode.reply(calls(*named)))
    assert reply is not None
    assert {message.role for message in reply} == {"tool"}
    return [message.content for message in reply]


def test_the_policy_is_told_of_the_marked_methods_without_what_the_environment_fills_in() -> None:
    described = {s["function"]["name"]: s["function"] for s in schemas(tools_of(ShopEpisode))}
    assert list(described) == ["buy", "basket", "spin", "doze", "wait", "late", "jail"]
    assert described["buy"]["description"] == "Buy something."
    assert described["buy"]["parameters"]["properties"].keys() == {"item", "count"}
    assert described["basket"]["parameters"]["properties"] == {}
    assert schemas(tools_of(ShopEpisode)) == schemas(ShopEpisode(TASK).tools())
    assert [t.__name__ for t in tools_of(LaterShop)][-1] == "extra"


def test_tools_see_the_state_and_the_task_and_a_turn_without_a_call_ends_the_episode() -> None:
    shop, other = ShopEpisode(TASK), ShopEpisode(TASK)
    assert ask(shop, ("buy", {"item": "apple", "count": 3})) == ["6 coins"]
    assert ask(shop, ("basket", {})) == ['["apple", "apple", "apple"]']
    assert ask(other, ("basket", {})) == ["[]"]
    assert asyncio.run(shop.reply([Message("assistant", "done")])) is None


def test_the_policy_cannot_fill_in_the_task_itself() -> None:
    (text,) = ask(ShopEpisode(TASK), ("buy", {"item": "apple", "task": {"data": {"apple": 0}}}))
    assert text.startswith("error: buy was called wrongly: task: unexpected keyword argument")


def test_calls_of_async_tools_run_at_once_and_are_answered_in_order() -> None:
    def seconds(shop: ShopEpisode) -> float:
        started = time.monotonic()
        bought = (("buy", {"item": fruit}) for fruit in ("apple", "pear"))
        first, missing, unknown, basket = ask(shop, *bought, ("nothing", {}), ("basket", {}))
        assert (first, missing) == ("2 coins", "error: KeyError: 'pear'")
        assert basket == '["apple", "pear"]'
        assert unknown.startswith("error: there is no tool 'nothing'")
        return time.monotonic() - started

    assert seconds(ShopEpisode(TASK)) < 0.8 * seconds(LaterShop(TASK))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["spin", "wait", "doze"])
def test_a_tool_that_hangs_becomes_text_and_the_calls_after_it_are_not_made(name: str) -> None:
    shop, started = ShopEpisode(TASK), time.monotonic()
    texts = ask(shop, (name, {}), ("basket", {}))
    assert texts == [
        f"error: {name} took longer than 0.8 s",
        "error: basket was not called, as the calls before took 0.8 s",
    ]
    assert time.monotonic() - started < 3
    assert ask(shop, ("basket", {})) == ["[]"]  # the episode goes on
    if name == "spin":
        assert shop.stopped.wait(5)  # a loop in Python is not left behind


def test_a_failure_of_the_infrastructure_is_raised_and_never_told_to_the_policy() -> None:
    with pytest.raises(SandboxError, match="Docker is gone"):
        ask(ShopEpisode(TASK), ("buy", {"item": "apple"}), ("jail", {}))
    assert ask(ShopEpisode(TASK), ("late", {})) == ["error: TimeoutError: the shop is closed"]


def test_calls_and_results_are_bounded() -> None:
    many = ask(ShopEpisode(TASK), *[("basket", {})] * 50)
    assert len(many) == MAX_CALLS

    async def odd(arguments: Mapping[str, Any]) -> str:
        return "\ud800" + "x" * 10**6

    described = DescribedTool("odd", "Is odd.", {"type": "object", "properties": {}}, odd)
    (message,) = asyncio.run(answers_in_time([described], calls(("odd", {}))[0], seconds=1)) or []
    assert message.content == "?" + "x" * (MAX_RESULT - 1)


def test_a_described_tool_gets_the_arguments_as_the_policy_wrote_them() -> None:
    got: list[Mapping[str, Any]] = []
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    described = DescribedTool("take", "Take it.\nNow.", parameters, got.append)
    (schema,) = schemas([described])
    told = {"name": "take", "description": "Take it. Now.", "parameters": parameters}
    assert schema["function"] == told
    assert answers([described], calls(("take", {"a": "x"}))[0]) == [Message("tool", "null")]
    assert got == [{"a": "x"}]


class Prices(Environment[dict[str, int]]):
    max_turns = 3

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        return Task(key, (Message("user", "What does an apple cost?"),), {"apple": 2})

    def tools(self) -> Sequence[Any]:
        def price(item: str, task: Task[dict[str, int]]) -> int:
            """Look up a price."""
            return task.data[item]

        return (price, count)

    def verify(self, task: Any, rollout: Any) -> Verdict:
        return Verdict({})


def count(text: str) -> int:
    """Count the letters of a word."""
    return len(text)


def test_a_tool_without_state_gets_the_task_too() -> None:
    env = Prices()
    assert schemas(env.tools())[0]["function"]["parameters"]["required"] == ["item"]
    turn = calls(("price", {"item": "apple"}), ("count", {"text": "pear"}))
    assert asyncio.run(env.reply(TASK, turn)) == [Message("tool", "2"), Message("tool", "4")]
    with pytest.raises(ConfigError, match="'price' needs the task; pass answers"):
        answers(env.tools(), turn[0])


def test_a_tool_of_an_episode_cannot_be_called_without_one() -> None:
    with pytest.raises(ConfigError, match="'buy' needs its episode"):
        answers(tools_of(ShopEpisode), calls(("buy", {"item": "apple"}))[0], task=TASK)
