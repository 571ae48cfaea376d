"""grpo-core: a small, exact GRPO trainer that talks to pluggable verifier environments."""

from grpo_core.call import Call, current_call
from grpo_core.environment import Environment, NoConfig, Services
from grpo_core.errors import ConfigError, GrpoError, MissingExtraError, PluginError, RunStoppedError, UnknownNameError, UserError
from grpo_core.hookspecs import hookimpl
from grpo_core.judge import Judge, Judgement, JudgeRequest
from grpo_core.rubric import Rubric
from grpo_core.sandbox import Limits, Outcome, Program, Sandbox
from grpo_core.spec import Spec
from grpo_core.types import MASK, Group, Message, Reward, Rollout, Task, TaskKey, Verdict

__version__ = "0.1.0"
__all__ = [
    "MASK",
    "Call",
    "ConfigError",
    "Environment",
    "GrpoError",
    "Group",
    "Judge",
    "JudgeRequest",
    "Judgement",
    "Limits",
    "Message",
    "MissingExtraError",
    "NoConfig",
    "Outcome",
    "PluginError",
    "Program",
    "Reward",
    "Rollout",
    "Rubric",
    "RunStoppedError",
    "Sandbox",
    "Services",
    "Spec",
    "Task",
    "TaskKey",
    "UnknownNameError",
    "UserError",
    "Verdict",
    "__version__",
    "current_call",
    "hookimpl",
]
