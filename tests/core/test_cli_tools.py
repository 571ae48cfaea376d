"""The commands of authors show which tools an environment has, and how they are called."""

import json
from pathlib import Path

import pytest

from .distributions import grpo

SOURCE = '''
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from grpo_core import Environment, Message, Reward, Task, Verdict


def price(item: Literal["tea", "cake"], count: Annotated[int, Field(ge=1)] = 1) -> float:
    """Look up what some things cost.

    Not for the policy.
    """
    return count * 2.5


class Shop(Environment[str]):
    """Asks for a price."""

    max_turns: ClassVar[int] = 3
    levels = False

    def task(self, key):
        return Task(key, (Message("user", "What do 3 cakes cost?"),), "7.5")

    def tools(self):
        return [price]

    def verify(self, task, rollout):
        right = rollout.text.strip() == task.data
        return Verdict({"reward": Reward(right)}, passed=right)


class Broken(Shop):
    def tools(self):
        raise ValueError("no tools today")


class Async(Shop):
    def tools(self):
        async def later(x: int) -> int:
            return x

        return [later]
'''
TOOL = "price(item: tea | cake, count?: integer)  Look up what some things cost."


@pytest.fixture
def shop(site: Path) -> str:
    (site / "shop.py").write_text(SOURCE)
    return "shop.py:Shop"


def test_show_prints_the_tools_after_the_prompt_and_how_they_are_called(shop: str) -> None:
    lines = grpo("env", "show", shop).stdout.splitlines()
    assert lines == [
        "[user]",
        "What do 3 cakes cost?",
        "[tools]",
        TOOL,
        'called by <tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    ]
    shown = json.loads(grpo("env", "show", shop, "--json").stdout)
    assert shown["tools"][0]["function"]["name"] == "price"
    assert "tools" not in json.loads(grpo("env", "show", "arithmetic", "--json").stdout)


def test_play_prints_the_tools_and_takes_calls(shop: str) -> None:
    call = '<tool_call>{"name": "price", "arguments": {"item": "cake", "count": 3}}</tool_call>'
    shown = grpo("env", "play", shop, stdin=f"{call}\n.\n7.5\n.\n:quit\n").stdout
    assert TOOL in shown
    assert "[tool]\n7.5\n" in shown
    assert "attempts 1, passed 1" in shown


def test_the_card_lists_the_tools(shop: str) -> None:
    shown = grpo("env", "card", shop, "--tasks", "0").stdout
    assert f"tool           {TOOL}" in shown
    card = json.loads(grpo("env", "card", shop, "--tasks", "0", "--json").stdout)
    assert [tool["function"]["name"] for tool in card["tools"]] == ["price"]
    markdown = grpo("env", "card", shop, "--tasks", "0", "--markdown").stdout
    assert "| tool |" in markdown


@pytest.mark.parametrize(
    ("command", "name", "reason"),
    [
        ("show", "Broken", "no tools today"),
        ("card", "Async", "the tool 'later' is an async function"),
        ("play", "Async", "the tool 'later' is an async function"),
    ],
)
def test_tools_that_cannot_be_described_are_one_line(
    shop: str, command: str, name: str, reason: str
) -> None:
    done = grpo("env", command, f"shop.py:{name}")
    assert done.exit_code in (1, 2)
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.output
