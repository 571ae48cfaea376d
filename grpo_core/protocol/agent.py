"""Define environments whose attempts are made by an agent: code that drives the policy itself.

Such code is written against the OpenAI API, with the `openai` package or any other client. It may
call the policy as often as it likes, in whatever order, and rewrite the history between its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

from grpo_core.protocol.endpoint import Access
from grpo_core.protocol.environment import Environment, Need
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.types import Data, Task

MODEL = "policy"
"""The name of the policy, as the `model` of an agent's requests."""


_ACCESS: ContextVar[Access] = ContextVar("grpo_access")
"""How the agent that is running reaches the policy."""


def current_access() -> Access:
    """Return how the agent that is running reaches the policy, for a program that it starts.

    A program in a session of a sandbox that was opened with the access's `socket` has
    "http://127.0.0.1:SESSION_PORT/v1" as its OPENAI_BASE_URL. The socket is None unless
    `endpoint.settings.socket` names one.

    Raises:
        GrpoError: no agent is running.
    """
    access = _ACCESS.get(None)
    if access is None:
        raise GrpoError("no agent is running, so there is no access to the policy")
    return access


def set_access(access: Access) -> None:
    """Set the access that `current_access` returns in this task of the event loop."""
    _ACCESS.set(access)


class AgentEnvironment(Environment[Data]):
    """Run an agent on each task, and verify its attempts.

    Write `task`, a way to verify (`verify`, `averify` or `verify_batch`), and either `agent` or
    `command`. What the agent returned is `Rollout.returned` when the attempt is judged. The tokens
    of every request are trained on, also of those whose answer the agent discarded.

    An agent that raises, takes too long or never asks the policy makes an attempt without a
    verdict, which is an error and no reward: whatever the policy says, an agent has to go on or to
    return something that `verify` can judge. One exception: an agent that lets through the refusal
    of a request for which there is no room, or which is one more than `max_turns`, ends its attempt
    as one that was cut off; it is judged, and `returned` is None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"endpoint"})
    """The service through which an agent reaches the policy; keep it where you add others."""
    max_turns: ClassVar[int] = 32
    """The most completions that an agent may ask for in one attempt."""
    agent_seconds: ClassVar[float] = 60.0
    """The time limit of an attempt, without the time in which the agent waits for the policy."""

    async def agent(self, task: Task[Data], client: Any) -> Any:
        """Attempt a task and return what there is to judge, as JSON data.

        It runs in a worker process with many others, unless the environment is `trusted`. So it
        must not block: use the asynchronous client, and `asyncio.to_thread` for code that blocks.

        Args:
            task: the task. Its `data` is for the verifier; the policy must not learn of it.
            client: an `openai.AsyncOpenAI` that reaches the policy; the model is "policy", or any
                other name. Leave out `temperature`, `top_p` and `seed`: the run decides them.
        """
        raise NotImplementedError

    def command(self, task: Task[Data]) -> Sequence[str]:
        """Return the command line of a program that attempts the task.

        It reads OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, gets the prompt as JSON on its
        standard input, and works in an empty folder of its own. Of the other environment variables
        it gets those of a worker (`verify.worker_environment` names more). `Rollout.returned` is
        then a mapping with `status`, `stdout` and `stderr`. It is asked only if `agent` is not
        overridden.
        """
        raise NotImplementedError

    @classmethod
    def has_command(cls) -> bool:
        """Return whether the agent is a command; otherwise it is the method `agent`.

        Raises:
            ConfigError: the class has neither, or a method that an agent takes the place of.
        """
        for name in ("episode", "reply", "tools"):
            if getattr(cls, name) is not getattr(Environment, name):
                raise ConfigError(
                    f"{cls.__qualname__} has an agent, which makes the whole attempt, so its "
                    f"{name}() is never asked; remove it, or derive the class from Environment"
                )
        if cls.agent is not AgentEnvironment.agent:
            return False
        if cls.command is not AgentEnvironment.command:
            return True
        raise ConfigError(
            f"{cls.__qualname__} overrides neither agent() nor command(); write one of them"
        )
