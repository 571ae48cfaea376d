"""Summarise verdicts: means with their errors, gains, floors."""

from __future__ import annotations

from grpo_core.figures.floors import Floor, constant_answers
from grpo_core.figures.gains import Gain, paired_gain
from grpo_core.figures.signal import Signal, advice_where_solved, advice_without_success
from grpo_core.figures.summary import Sampled, Summary, scored_verdicts, summarize

__all__ = [
    "Floor",
    "Gain",
    "Sampled",
    "Signal",
    "Summary",
    "advice_where_solved",
    "advice_without_success",
    "constant_answers",
    "paired_gain",
    "scored_verdicts",
    "summarize",
]
