"""Say to the policy what is wrong with its machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

from grpo_env_besiege.levels import Level
from grpo_env_besiege.measure import Measured
from grpo_env_besiege.validity import CheckedMachine


def feedback(level: Level, checked: CheckedMachine, measured: Measured | None) -> str:
    """Write the simulator's message to the policy after a turn."""
    if measured is None:
        faults = "\n".join(f"- {fault}" for fault in checked.faults[:8])
        return (
            f"The machine cannot be built:\n{faults}\n"
            "Mend it, and answer with the whole machine again."
        )
    score = measured.score
    sentences = [f"The machine was built and ran for {level.seconds:g} s."]
    if level.family == "catapult":
        sentences.append(
            f"The boulder flew {score.distance:.1f} m forward and rose by {score.height:.1f} m."
        )
    else:
        mover = "It moved" if level.family == "car" else "The ball moved"
        sentences.append(f"{mover} {score.distance:.1f} m forward.")
    sentences += [f"It is worth nothing: {reason}." for reason in score.reasons]
    places = measured.trajectory.frames[:: max(1, len(measured.trajectory.frames) // 5)]
    sentences.append(
        "The root was at (x, y, z): "
        + "; ".join(
            f"{frame.seconds:g} s {_format_place(frame.blocks[0].middle)}" for frame in places
        )
        + "."
    )
    return " ".join([*sentences, "Improve it, and answer with the whole machine again."])


def _format_place(place: Sequence[float]) -> str:
    return json.dumps([round(value, 1) for value in place])
