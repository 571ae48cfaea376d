"""Play tasks and judge rollouts, as a run does."""

from __future__ import annotations

from grpo_core.verify.agents.agent_run import CUT_OFF, RETURNED, AgentRun
from grpo_core.verify.agents.agent_scripts import (
    Answer,
    Asked,
    Refusal,
    ScriptedCompleter,
    messages_of,
    run_agent,
    run_script,
    without_prompt,
)
from grpo_core.verify.agents.agent_turns import AgentTurns
from grpo_core.verify.agents.agents import AgentConversation, check_agent_request
from grpo_core.verify.agents.sent_back import with_thoughts
from grpo_core.verify.card import Card, make_card
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.conversation import (
    Conversation,
    Conversations,
    PlainConversation,
    check_replayable,
    compare_messages,
)
from grpo_core.verify.episodes.isolated import IsolatedReplies
from grpo_core.verify.episodes.playing import (
    Played,
    Player,
    Transcript,
    answer_agent,
    play,
    scripted,
    turns_of,
)
from grpo_core.verify.examining import (
    CheckResult,
    Checks,
    Examination,
    Report,
    Severity,
    Status,
    shown_status,
)
from grpo_core.verify.held_out import EvalSet, eval_sets
from grpo_core.verify.judge.checks import (
    NOT_TEXT,
    BrokenContractError,
    check_reference,
    check_task,
    check_verdict,
    described_tools,
    offered_tools,
    reweigh,
    size_of,
)
from grpo_core.verify.judge.error_rate import ErrorRate
from grpo_core.verify.judge.judging import ReplayError
from grpo_core.verify.sources import Source, Sources
from grpo_core.verify.workers.hosts import boot_message, verdict_needs
from grpo_core.verify.workers.worker import die_with_parent, resident_mb

__all__ = [
    "CheckResult",
    "Checks",
    "Examination",
    "Report",
    "Severity",
    "Status",
    "shown_status",
    "AgentConversation",
    "AgentRun",
    "AgentTurns",
    "Answer",
    "Asked",
    "BrokenContractError",
    "CUT_OFF",
    "Card",
    "Conversation",
    "Conversations",
    "ErrorRate",
    "EvalSet",
    "IsolatedReplies",
    "NOT_TEXT",
    "PlainConversation",
    "Played",
    "Player",
    "RETURNED",
    "Refusal",
    "ReplayError",
    "ScriptedCompleter",
    "Source",
    "Sources",
    "Transcript",
    "Verifier",
    "answer_agent",
    "boot_message",
    "check_agent_request",
    "check_reference",
    "check_replayable",
    "check_task",
    "check_verdict",
    "compare_messages",
    "die_with_parent",
    "eval_sets",
    "make_card",
    "messages_of",
    "described_tools",
    "offered_tools",
    "play",
    "resident_mb",
    "reweigh",
    "run_agent",
    "run_script",
    "scripted",
    "size_of",
    "turns_of",
    "verdict_needs",
    "with_thoughts",
    "without_prompt",
]
