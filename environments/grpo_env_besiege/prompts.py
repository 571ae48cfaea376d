"""Writes the prompts: rules, the blocks that the level allows, an example, and the task.

For tiny models, the prompt is a single line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo_core import Message
from grpo_env_besiege.blocks import BLOCKS, ROOT, TURNED, BlockType, Side
from grpo_env_besiege.levels import Family, Level
from grpo_env_besiege.machines import PAPER_CAR
from grpo_env_besiege.tree import MAX_BLOCKS, to_json
from grpo_env_besiege.validity import LIMITS

TASKS: Mapping[Family, str] = {
    "car": (
        "Design a machine that drives forward on a road, as far as it can in {seconds:g} seconds."
    ),
    "catapult": (
        "Design a machine that throws a boulder (type 36) forward. It has exactly one boulder, "
        "which must rise above 3 m and leave the machine; the higher it rises and the farther it "
        "flies in {seconds:g} seconds, the better. A long arm on a strong turning block, or on a "
        "hinge pulled by rubber bands, is a lever."
    ),
    "delivery": (
        "Design a machine that pushes a heavy ball, which lies 12 m ahead, into a zone 40 m ahead "
        "within {seconds:g} seconds."
    ),
}
"""The task of each family."""
OBSTACLES: Mapping[str, str] = {
    "car/road": "The road is straight, with smooth walls on both sides.",
    "car/quarter-cylinder": (
        "A lying cylinder, a quarter of which looks out of the ground, crosses the road."
    ),
    "car/quarter-pipe": "A ramp that grows steeper, with a drop behind it, crosses the road.",
    "car/gap": "Two low walls leave a gap in the middle of the road, and a bump follows.",
    "car/curves": "The road turns right, then left.",
    "catapult/field": "The field is open.",
    "catapult/fence": "A fence 1.5 m high stands around the machine, 11 m away.",
    "catapult/wind": (
        "A fence 1.5 m high stands around the machine, and a wind blows against the throw."
    ),
    "catapult/ring": (
        "The boulder has to land in a circle of 4 m around a point 18 m ahead, beyond a fence."
    ),
    "catapult/hoop": (
        "The boulder has to fly through a hoop of 3 m that hangs 5 m high, 13 m ahead."
    ),
    "delivery/push": "The way is even.",
    "delivery/bumps": "Three bumps cross the way.",
    "delivery/bar": "A bar hangs 3.5 m above the way, and a bump crosses it.",
}
"""The sentence about the obstacles and the goal of each level."""

SIDES: Sequence[Side] = ("Front", "Left", "Right", "Up", "Down")
RULES = """You design machines out of blocks. A machine is a list of blocks in build order.

Space: lengths in metres, x to the right, y up, z forward (left-handed). The machine is set down on the ground after it is built.
Every block but the first is attached with the middle of its back face to a point of an earlier block, its parent, and faces where that
point faces. Its own axes: z leads away from the parent. For a block that faces
{facings}
A block's box must not overlap another's; touching is fine. What stands directly on a Container may reach into it. Blocks between two
points take no room, and may use points that are taken. The whole machine: at most {limits}, {blocks} blocks.
Powered wheels drive forward only where they face x+ or x-. A Rotating block turns what is attached to its points 1 to 4. Rubber bands
contract. Everything starts by itself once the machine stands. Gravity and classical mechanics hold."""  # noqa: E501 - the prompt's own lines

FORM = """Answer in this form:
<cot>
how you think it through
</cot>
Construction Idea: what the machine is and why it works, in at most 300 words
```json
[the list of blocks]
```
The first block is {"id": "0", "order_id": 0, "parent": -1, "bp_id": -1}. The others have "id" (the type), "order_id" (the place in the
list), "parent" (the place of the parent) and "bp_id" (which of its points); Rubber band, Brace and Winch have "parent_a", "bp_id_a",
"parent_b" and "bp_id_b" instead."""  # noqa: E501 - the prompt's own lines


def prompt(level: Level, *, most: int, short: bool) -> tuple[Message, ...]:
    """Return the messages that ask for a machine of at most `most` blocks."""
    task = TASKS[level.family].format(seconds=level.seconds)
    if short:
        return (Message("user", f"{level.name.replace('/', ' ')} {most}:"),)
    facings = "\n".join(
        f"  {facing}: its Front, Left, Right, Up, Down face "
        f"{', '.join(map(sides.__getitem__, SIDES))}"
        for facing, sides in TURNED.items()
    )
    limits = ", ".join(f"{most / 100:g} {name}" for name, most in LIMITS)
    rules = RULES.format(facings=facings, limits=limits, blocks=MAX_BLOCKS)
    system = "\n\n".join(
        [
            rules,
            f"Blocks:\n{_block_table(level)}",
            f"For example, a plain car:\n```json\n{to_json(PAPER_CAR)}\n```",
            FORM,  # last, so that no machine is the last list of the prompt: an echo is no answer
        ]
    )
    limit = "" if most == MAX_BLOCKS else f" Use at most {most} blocks."
    return Message("system", system), Message("user", f"{task} {OBSTACLES[level.name]}{limit}")


def _block_table(level: Level) -> str:
    return "\n".join(
        _block_row(BLOCKS[kind])
        for kind in sorted(level.allowed, key=lambda kind: (kind != ROOT, list(BLOCKS).index(kind)))
    )


def _block_row(block: BlockType) -> str:
    if block.motion == "link":
        return f"type {block.type}, {block.name}: between two points, {block.mass:g} kg"
    size = " x ".join(f"{length / 100:g}" for length in block.size)
    points = "; ".join(
        f"{number} {point.side} ({_format_place(point.at)})"
        for number, point in enumerate(block.points)
    )
    return f"type {block.type}, {block.name}: {size}, {block.mass:g} kg; points: {points or 'none'}"


def _format_place(at: Sequence[int]) -> str:
    return ", ".join(f"{value / 100:g}" for value in at)
