"""Say in plain lines what a run and a group of it are; every line is printable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_core.calls.printable import printable
from grpo_core.report.html.series import Columns

_TEXT_CHARACTERS = 20_000
"""The most characters of one message; `grpo report` shows all."""


def number(value: float | None) -> str:
    """Return a number with three significant digits, or a dash where there is none."""
    return "–" if value is None else f"{value:.3g}"


def summary_text(facts: Mapping[str, Any], steps: Columns, evaluations: Columns) -> str:
    """Return the state of a run in one or two lines.

    Args:
        facts: of `OpenRun.facts`.
        steps: the metrics of the steps.
        evaluations: those of the evaluations.
    """
    done = int((steps.get("step") or [0])[-1] or 0)
    state = "finished" if facts["finished"] else "not finished"
    parts = [f"step {done} of {facts['planned']}, {state}"]
    for name in ("eval/reward/mean", "eval/pass_rate"):
        values = [value for value in evaluations.get(name, []) if value is not None]
        if values:
            label = name.removeprefix("eval/").replace("/mean", "")
            parts.append(f"held-out {label} {number(values[0])} → {number(values[-1])}")
    seconds = (steps.get("time/step") or [None])[-1]
    if seconds is not None:
        parts.append(f"{number(seconds)} s a step")
    text = " · ".join(parts)
    for alarm in facts["alarms"][-1:]:
        said = printable(alarm["message"], lines=False, limit=300)
        name = printable(alarm["name"], lines=False)
        text += (
            f"\n{len(facts['alarms'])} alarms; the last one, step {alarm['step']}: {name}. {said}"
        )
    return text


def group_text(group: Mapping[str, Any], attempt: int | None) -> str:
    """Return a group as text: the prompt, and each attempt from the best one on.

    Args:
        group: of `RolloutIndex.read`.
        attempt: the only attempt that is shown; None: all.
    """
    return "\n".join(_lines(group, attempt))


def _lines(group: Mapping[str, Any], attempt: int | None) -> Iterator[str]:
    key = group["key"]
    name = printable(f"{key['env']} {key['index']}", lines=False, limit=200)
    yield f"step {group['step']}, {group['split']}, group {group['number']}: {name}"
    prompt = group["prompt"]
    if isinstance(prompt, str):
        yield _text(prompt)
    for message in prompt if isinstance(prompt, list) else ():
        yield f"[{printable(message['role'], lines=False)}]"
        yield _text(message["content"])
    shown = [one for one in group["rollouts"] if attempt is None or one["attempt"] == attempt]
    for rollout in sorted(shown, key=_reward, reverse=True):
        yield ""
        yield from _attempt(rollout)


def _reward(rollout: Mapping[str, Any]) -> float:
    total = (rollout["verdict"] or {}).get("total")
    return float("-inf") if total is None else float(total)


def _attempt(rollout: Mapping[str, Any]) -> Iterator[str]:
    verdict = rollout["verdict"] or {"total": None, "error": "no verdict yet", "rewards": {}}
    error = verdict["error"]
    advantage = rollout.get("advantage")
    turns = advantage if isinstance(advantage, list) else [advantage]
    shown = ", ".join(map(number, turns))
    judged = "could not be judged" if error is not None else f"reward {number(verdict['total'])}"
    passed = ", passed" if verdict.get("passed") else ""
    yield (
        f"━━ attempt {rollout['attempt']}: {judged}{passed}, advantage {shown}, "
        f"{rollout['tokens']} tokens, {printable(rollout['finish'], lines=False)}"
    )
    if error is not None:
        yield _text(error)
    for name, part in verdict["rewards"].items():
        note = printable(part["note"], lines=False, limit=200)
        yield (
            f"   {printable(name, lines=False)}: {number(part['value'])} × "
            f"{number(part['weight'])}  {note}"
        ).rstrip()
    for message in rollout.get("messages") or ():
        if message["role"] != "assistant":
            yield f"[{printable(message['role'], lines=False)}]"
        yield _text(message["content"])


def _text(text: str) -> str:
    return printable(text, limit=_TEXT_CHARACTERS)
