"""An agent written with a published library, openai-agents, trained as it is.

    pip install openai-agents
    python examples/06_agent_library.py --steps 40 --out runs/library

It plays the game of 05_agent.py: the library runs the loop, describes the tool and parses its
calls. The only thing that training adds is the client, which reaches the policy.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
from datetime import datetime
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    AgentsException,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolsToFinalOutputResult,
    function_tool,
)
from pydantic import StrictInt

from grpo_core import Task, Trainer, build_config

game = importlib.import_module("05_agent")


class Game:
    """Holds the number of one attempt, and the guesses so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.guesses: list[int | None] = []
        self.request = 0
        """The number of the request whose answer has guessed last."""


@function_tool
def guess(context: RunContextWrapper[Game], number: StrictInt) -> str:
    """Guess the number.

    Args:
        number: from 1 to 9.
    """
    game_state = context.context
    if game_state.request == context.usage.requests:
        return "one guess at a time"
    game_state.request = context.usage.requests
    valid = 1 <= number <= 9
    game_state.guesses.append(number if valid else None)
    if not valid:
        return "a number from 1 to 9, please"
    if number == game_state.number:
        return "right"
    return "higher" if number < game_state.number else "lower"


def stop_when_found(context: RunContextWrapper[Game], results: Any) -> ToolsToFinalOutputResult:
    """End the run once the number is found."""
    found = context.context.number in context.context.guesses
    return ToolsToFinalOutputResult(is_final_output=found, final_output="found")


class GuessByLibrary(game.GuessByTool):  # type: ignore[misc, name-defined]
    """Guess a number from 1 to 9 by calling a tool; the library runs the loop."""

    async def agent(self, task: Task[int], client: Any) -> Any:
        """Let the library's agent play until it stops calling the tool or has used its turns."""
        state = Game(task.data)
        system, *messages = game.openai_messages(task.prompt)
        player = Agent[Game](
            name="player",
            instructions=system["content"],
            tools=[guess],
            model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
            tool_use_behavior=stop_when_found,
        )
        with contextlib.suppress(AgentsException):  # too many turns, or a call that is broken
            await Runner.run(
                player,
                as_items(messages),
                context=state,
                max_turns=self.max_turns,
                run_config=RunConfig(tracing_disabled=True),
            )
        return state.guesses or [None]


def as_items(messages: list[dict[str, Any]]) -> list[Any]:
    """Return messages as the library's items: calls and their results stand beside messages."""
    items: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": message["content"],
                }
            )
        for call in message.get("tool_calls", ()):
            items.append(
                {
                    "type": "function_call",
                    "call_id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": call["function"]["arguments"],
                }
            )
        if message["role"] != "tool" and message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
    return items


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a hub id, a folder or an alias")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs") / f"library-{datetime.now():%Y%m%d-%H%M%S}",
        help="the run's folder",
    )
    arguments = parser.parse_args()
    config = build_config(
        [
            {
                "environment": "guess",
                "model": {"name": arguments.model},
                "steps": arguments.steps,
                "eval": {"tasks": 64, "every": 10},
            }
        ]
    )
    gains = Trainer(config, GuessByLibrary(), folder=arguments.out).run()
    for name, gain in gains.items():
        print(
            f"{name}: {gain.before:.3f} -> {gain.after:.3f} ({gain.mean:+.3f}, "
            f"95 % interval {gain.low:+.3f} .. {gain.high:+.3f})"
        )


if __name__ == "__main__":
    main()
