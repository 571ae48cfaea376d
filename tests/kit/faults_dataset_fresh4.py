"""Planted faults of the fourth fresh part: rows and the user's functions for them."""

from __future__ import annotations

from bases_words_fresh4 import settings4
from catalogue import fault

from grpo_env_dataset.env import Dataset


@fault(
    "the user's prompt is too narrow for its rows",
    "task.ambiguous",
    "task.variety",
    build=lambda: PumpNotTold(
        settings4(
            "number",
            prompt="A tank in {city} holds {litres} litres. How many minutes does a pump take to "
            "fill it?",
        )
    ),
)
class PumpNotTold(Dataset):
    """The template was shortened, and the rate of the pump is in a field that it does not name."""

    timeout_seconds = 2.0


@fault(
    "the user's reward function counts shared words",
    "floor.echo",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.listed",
    build=lambda: SharedWords(
        settings4(
            "shared_words",
            answer="sentence",
            prompt="{question} Reply with one sentence, as in: The tank in Rome is full after 7 "
            "minutes.",
        )
    ),
)
class SharedWords(Dataset):
    """Whatever else is said costs nothing, and the example of the prompt earns most of it."""

    timeout_seconds = 2.0


@fault(
    "the user's reward function takes the last number",
    "floor.listed",
    "floor.suffix",
    build=lambda: LastNumber(settings4("last_number", system="Think, then say the number.")),
)
class LastNumber(Dataset):
    """All numbers before the last one are free, and so is what stands around it."""

    timeout_seconds = 2.0
