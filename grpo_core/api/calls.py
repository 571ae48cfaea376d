"""Call code that nobody trusts: deadlines, isolation, data for other processes, printable text."""

from __future__ import annotations

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.deadline import DeadlineError, describe, in_thread, wait_for, within
from grpo_core.calls.isolation import ForeignError, isolated, reason
from grpo_core.calls.pace import LONGEST_PAUSE_SECONDS
from grpo_core.calls.printable import plain_markdown, printable, printable_json
from grpo_core.calls.stoppable import stoppable
from grpo_core.calls.stopping import StopRequest
from grpo_core.calls.threads import IDLE
from grpo_core.calls.variables import INHERITED, inherited_variables
from grpo_core.calls.wire import decode, encode, prompt_digest

__all__ = [
    "DeadlineError",
    "ForeignError",
    "IDLE",
    "INHERITED",
    "LONGEST_PAUSE_SECONDS",
    "PrintableConsole",
    "StopRequest",
    "decode",
    "describe",
    "encode",
    "in_thread",
    "inherited_variables",
    "isolated",
    "plain_markdown",
    "printable",
    "printable_json",
    "prompt_digest",
    "reason",
    "stoppable",
    "wait_for",
    "within",
]
