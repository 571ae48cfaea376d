"""Say in plain lines what a run and a group of it are.

What comes from the run is cut to a length here; the dashboard makes the whole of a text printable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_core.api.calls import printable
from grpo_report.html.series import Columns

_LINE_CHARACTERS = 400
"""The most characters of one line."""
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
    missing = facts["signal"]["missing"]
    parts = [f"step {done} of {facts['planned']}, {missing + ', ' if missing else ''}{state}"]
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
        last = f"the last one, step {alarm['step']}: {alarm['name']}. {alarm['message']}"
        text += f"\n{len(facts['alarms'])} alarms; {_line(last)}"
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
    place = f"step {group['step']}, {group['split']}, group {group['number']}"
    yield _line(f"{place}: {key['env']} {key['index']}")
    prompt = group["prompt"]
    if isinstance(prompt, str):
        yield _text(prompt)
    for message in prompt if isinstance(prompt, list) else ():
        yield _line(f"[{message['role']}]")
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
    yield _line(
        f"━━ attempt {rollout['attempt']}: {judged}{passed}, advantage {shown}, "
        f"{rollout['tokens']} tokens, {rollout['finish']}"
    )
    if error is not None:
        yield _text(error)
    for name, part in verdict["rewards"].items():
        paid = f"{number(part['value'])} × {number(part['weight'])}"
        yield _line(f"   {name}: {paid}  {part['note']}".rstrip())
    if output := verdict.get("output"):
        yield "[printed by the verifier]"
        yield _text(output)
    for message in rollout.get("messages") or ():
        if message["role"] != "assistant":
            yield _line(f"[{message['role']}]")
        if thoughts := message.get("thoughts"):
            yield "[thoughts]"
            yield _text(thoughts)
            yield "[end of thoughts]"
        yield _text(message["content"])


def _line(text: str) -> str:
    return printable(text, lines=False, limit=_LINE_CHARACTERS)


def _text(text: str) -> str:
    return printable(text, limit=_TEXT_CHARACTERS)
