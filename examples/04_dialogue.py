"""A dialogue of several turns: guess a number from 1 to 9, hear "higher" or "lower", guess again.

    python examples/04_dialogue.py --steps 40 --out runs/guess

A dialogue needs only one more method, `reply`. Its messages are part of the prompt of the next turn
and are never trained on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from grpo_core import (
    Environment,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Trainer,
    Verdict,
    build_config,
)
from grpo_core.extract import parse_integer

RULES = (
    "I think of a number from 1 to 9. You guess it; I say higher or lower. Reply with one number."
)
EXAMPLES = (
    Message("user", "First guess?"),
    Message("assistant", "5"),
    Message("user", "lower"),
    Message("assistant", "3"),
    Message("user", "right. Next number. First guess?"),
)


class Guess(Environment[int]):
    """Guess a number from 1 to 9.

    Parts: found 0.8, less for every guess it took; numbers 0.2, for guesses that are numbers from 1
    to 9.
    """

    parts = MappingProxyType({"found": 0.8, "numbers": 0.2})
    max_turns = 4
    max_new_tokens = 4
    levels = False
    trusted = True

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("system", RULES), *EXAMPLES), key.rng().randint(1, 9))

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        guess = parse_guess(messages[-1])
        if guess == task.data:
            return None
        return (
            Message(
                "user",
                "one number" if guess is None else "higher" if guess < task.data else "lower",
            ),
        )

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        guesses = [parse_guess(m) for m in rollout.messages if m.role == "assistant"]
        found = task.data in guesses
        speed = 1 - (len(guesses) - 1) / self.max_turns
        valid = sum(guess is not None for guess in guesses) / max(1, len(guesses))
        rewards = {"found": Reward(speed if found else 0.0, 0.8), "numbers": Reward(valid, 0.2)}
        return Verdict(
            rewards,
            passed=found,
            answer=str(guesses[-1]) if guesses else None,
            metrics={"guesses": len(guesses)},
        )

    def reference(self, task: Task[int]) -> str:
        return str(task.data)

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        """Return replies that name the number and do not guess it; some take several turns."""
        return (f"{task.data}?", ("1 or 2", " ".join(map(str, range(1, 10)))))


def parse_guess(message: Message) -> int | None:
    """Return the number from 1 to 9 that the message consists of, or None."""
    value = parse_integer(message.content.strip(), max_digits=1)
    return value if value is not None and 1 <= value <= 9 else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a hub id, a folder or an alias")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs") / f"guess-{datetime.now():%Y%m%d-%H%M%S}",
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
    gains = Trainer(config, Guess(), folder=arguments.out).run()
    for name, gain in gains.items():
        print(
            f"{name}: {gain.before:.3f} -> {gain.after:.3f} ({gain.mean:+.3f}, "
            f"95 % interval {gain.low:+.3f} .. {gain.high:+.3f})"
        )


if __name__ == "__main__":
    main()
