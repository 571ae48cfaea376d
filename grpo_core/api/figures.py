"""Summarise verdicts: means with their errors, gains, floors."""

from __future__ import annotations

from grpo_core.figures.floors import ADVICE_BESIDE_RIGHT, Floor, constant_answers, is_paid
from grpo_core.figures.gains import Gain, paired_gain
from grpo_core.figures.signal import Signal, advice_where_solved, advice_without_success
from grpo_core.figures.summary import Sampled, Summary, scored_verdicts, summarize

__all__ = [
    "ADVICE_BESIDE_RIGHT",
    "Floor",
    "Gain",
    "Sampled",
    "Signal",
    "Summary",
    "advice_where_solved",
    "advice_without_success",
    "constant_answers",
    "is_paid",
    "paired_gain",
    "scored_verdicts",
    "summarize",
]
