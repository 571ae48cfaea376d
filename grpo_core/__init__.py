"""grpo-core: a small, exact GRPO trainer that talks to pluggable verifier environments."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from grpo_core.calls.call import Call, current_call
from grpo_core.protocol.agent import AgentEnvironment, current_access
from grpo_core.protocol.consent import Harmless, NeedsConsent
from grpo_core.protocol.environment import Alarm, Environment, NoConfig, Services
from grpo_core.protocol.episode import Episode
from grpo_core.protocol.errors import (
    ConfigError,
    GrpoError,
    MissingExtraError,
    PluginError,
    RunStoppedError,
    SandboxError,
    UnknownNameError,
    UserError,
)
from grpo_core.protocol.hookspecs import hookimpl
from grpo_core.protocol.judge import Judge, Judgement, JudgeRequest
from grpo_core.protocol.sandbox import (
    SESSION_PORT,
    CommandResult,
    Limits,
    Outcome,
    Program,
    Sandbox,
    Session,
)
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.splits import held_out
from grpo_core.protocol.ties import reaches, same_reward
from grpo_core.protocol.tools import DescribedTool, tool, tools_of
from grpo_core.protocol.types import (
    MASK,
    Group,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    ToolCall,
    Verdict,
)
from grpo_core.rubric import Rubric

if TYPE_CHECKING:
    from grpo_core.config.overrides import build_config
    from grpo_core.protocol.tool_episode import ToolEpisode
    from grpo_core.runs.store import JsonStore
    from grpo_core.train.trainer import Trainer

__version__ = "0.1.0"
_LAZY = {
    "JsonStore": "grpo_core.runs.store",
    "ToolEpisode": "grpo_core.protocol.tool_episode",
    "Trainer": "grpo_core.train.trainer",
    "build_config": "grpo_core.config.overrides",
}
"""The names that are imported on first use: environments need no torch, pydantic, asyncio or
sqlite3."""
__all__ = [
    "MASK",
    "SESSION_PORT",
    "AgentEnvironment",
    "Alarm",
    "Call",
    "CommandResult",
    "ConfigError",
    "DescribedTool",
    "Environment",
    "Episode",
    "GrpoError",
    "Group",
    "Harmless",
    "JsonStore",
    "Judge",
    "JudgeRequest",
    "Judgement",
    "Limits",
    "Message",
    "MissingExtraError",
    "NeedsConsent",
    "NoConfig",
    "Outcome",
    "PluginError",
    "Program",
    "Reward",
    "Rollout",
    "Rubric",
    "RunStoppedError",
    "Sandbox",
    "SandboxError",
    "Services",
    "Session",
    "Spec",
    "Task",
    "TaskKey",
    "ToolCall",
    "ToolEpisode",
    "Trainer",
    "UnknownNameError",
    "UserError",
    "Verdict",
    "__version__",
    "build_config",
    "current_access",
    "current_call",
    "held_out",
    "hookimpl",
    "reaches",
    "same_reward",
    "tool",
    "tools_of",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs heavy packages on its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
