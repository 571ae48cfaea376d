"""An agent written with the `openai` package: it guesses a number by calling a tool.

    python examples/05_agent.py --steps 40 --out runs/agent

The agent is ordinary code that knows nothing of training. It reaches the policy by a client of the
OpenAI API, calls it as often as it likes, and returns what `verify` judges. The tokens of all its
requests are trained on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from openai import AsyncOpenAI

from grpo_core import (
    AgentEnvironment,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    ToolCall,
    Trainer,
    Verdict,
    build_config,
)

RULES = "I think of a number from 1 to 9. Guess it by the tool; it answers higher, lower or right."
TOOL = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["number"],
        },
    },
}


def shown(number: int, answer: str) -> tuple[Message, ...]:
    """Return an example of a guess and its answer."""
    return (
        Message("assistant", "", (ToolCall("guess", {"number": number}, f"example-{number}"),)),
        Message("tool", answer),
    )


EXAMPLES = (
    Message("user", "Guess my number."),
    *shown(5, "lower"),
    *shown(3, "right"),
    Message("user", "Guess my next number."),
)


class GuessByTool(AgentEnvironment[int]):
    """Guess a number from 1 to 9 by calling a tool.

    Parts: found 0.8, less for every guess it took; calls 0.2, for turns that call the tool with a
    number from 1 to 9.
    """

    parts = MappingProxyType({"found": 0.8, "calls": 0.2})
    max_turns = 4
    max_new_tokens = 32
    levels = False
    trusted = True

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("system", RULES), *EXAMPLES), key.rng().randint(1, 9))

    async def agent(self, task: Task[int], client: AsyncOpenAI) -> Any:
        """Let the policy call the tool until it has found the number, or does something else."""
        messages: list[Any] = openai_messages(task.prompt)
        guesses: list[int | None] = []
        while len(guesses) < self.max_turns and task.data not in guesses:
            completion = await client.chat.completions.create(
                model="policy",
                messages=messages,
                tools=[TOOL],  # type: ignore[list-item]
            )
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                guesses.append(None)
                messages.append({"role": "user", "content": "Call the tool."})
            for number, call in enumerate(message.tool_calls or ()):
                answer = "one guess at a time"  # or many calls in a turn would find any number
                if number == 0:
                    guess = parse_guess(call.function.arguments)  # type: ignore[union-attr]
                    guesses.append(guess)
                    answer = "a number from 1 to 9" if guess is None else compare(guess, task)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        return guesses

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        guesses = rollout.returned or []
        found = task.data in guesses
        speed = 1 - (len(guesses) - 1) / self.max_turns
        valid = sum(guess is not None for guess in guesses) / max(1, len(guesses))
        return Verdict(
            {"found": Reward(max(0.0, speed) if found else 0.0, 0.8), "calls": Reward(valid, 0.2)},
            passed=found,
            answer=str(guesses[-1]) if guesses else None,
            metrics={"guesses": len(guesses)},
        )

    def reference(self, task: Task[int]) -> str:
        return call_text(task.data)

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        """Return turns that name the number without a guess."""
        return (str(task.data), f"guess({task.data})")


def openai_messages(prompt: str | tuple[Message, ...]) -> list[dict[str, Any]]:
    """Return the messages of a prompt as the OpenAI API has them."""
    assert not isinstance(prompt, str)
    messages: list[dict[str, Any]] = []
    call_id = ""
    for message in prompt:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        for call in message.tool_calls or ():
            call_id = call.id
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            entry["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        if message.role == "tool":
            entry["tool_call_id"] = call_id
        messages.append(entry)
    return messages


def parse_guess(arguments: str) -> int | None:
    """Return the number from 1 to 9 in the arguments of a call, or None."""
    fields = json.loads(arguments)
    number = fields.get("number") if isinstance(fields, dict) else None
    return number if type(number) is int and 1 <= number <= 9 else None


def compare(guess: int, task: Task[int]) -> str:
    """Return what the tool answers."""
    return "right" if guess == task.data else "higher" if guess < task.data else "lower"


def call_text(number: int) -> str:
    """Return a call of the tool as the policy writes it."""
    call = json.dumps({"name": "guess", "arguments": {"number": number}})
    return f"<tool_call>\n{call}\n</tool_call>"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a hub id, a folder or an alias")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs") / f"agent-{datetime.now():%Y%m%d-%H%M%S}",
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
    gains = Trainer(config, GuessByTool(), folder=arguments.out).run()
    for name, gain in gains.items():
        print(
            f"{name}: {gain.before:.3f} -> {gain.after:.3f} ({gain.mean:+.3f}, "
            f"95 % interval {gain.low:+.3f} .. {gain.high:+.3f})"
        )


if __name__ == "__main__":
    main()
