"""Name parts of the protocol that authors of environments rarely need."""

from __future__ import annotations

from grpo_core.protocol.errors import did_you_mean
from grpo_core.protocol.same_numbers import same_number
from grpo_core.protocol.spec import names_file
from grpo_core.protocol.thoughts import DEFAULT_TAGS, Tags, chosen_tags, opens_thought
from grpo_core.protocol.tool_calls import MAX_CALLS, read_api_calls
from grpo_core.protocol.types import Finish, Role, Script, Split

__all__ = [
    "DEFAULT_TAGS",
    "Finish",
    "MAX_CALLS",
    "Role",
    "Script",
    "Split",
    "Tags",
    "chosen_tags",
    "did_you_mean",
    "names_file",
    "opens_thought",
    "read_api_calls",
    "same_number",
]
