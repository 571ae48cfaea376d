"""Verify programs: functions by the values that they return, commands by what they print."""

from grpo_core.programs.commands import (
    CaseResult,
    TextCase,
    check_cases,
    check_cases_in,
    constant_output,
    same_lines,
)
from grpo_core.programs.functions import CodeEnvironment, passed_reward
from grpo_core.programs.problems import MAX_CPU_SECONDS, CodeConfig, Problem
from grpo_core.programs.telling import load_program
from grpo_core.programs.values import Case, constant_share, same_value

__all__ = [
    "MAX_CPU_SECONDS",
    "Case",
    "CaseResult",
    "CodeConfig",
    "CodeEnvironment",
    "Problem",
    "TextCase",
    "check_cases",
    "check_cases_in",
    "constant_output",
    "constant_share",
    "load_program",
    "passed_reward",
    "same_lines",
    "same_value",
]
