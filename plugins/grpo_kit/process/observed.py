"""Judge attempts in the second process, those by agents as they were recorded in the first one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core import AgentEnvironment, Environment, GrpoError, Message, Rollout, Task
from grpo_core.api.calls import describe
from grpo_core.api.verify import BrokenContractError, IsolatedReplies, check_verdict
from grpo_kit.answers.failing_verdicts import verify_directly
from grpo_kit.dialogues.scripts import attempt_rollout
from grpo_kit.scaffold.recorded import Recorded


@dataclass(frozen=True, slots=True)
class SecondJudge:
    """The environment in the second process, with what replies for it in a dialogue."""

    env: Environment[Any]
    replies: IsolatedReplies
    recorded: Recorded
    """The attempts by agents."""

    async def call(self, task: Task[Any], text: str) -> None:
        """Have the environment answer a tool call; neither the answer nor an error is kept."""
        with contextlib.suppress(GrpoError):  # the subject of reply.form
            await self.replies.reply(task, (Message.turn(text),))

    async def verdict(self, task: Task[Any], text: str) -> Any:
        """Return a verdict as `Verdict.to_json` without times, or the error in place of it."""

        async def rollout() -> Rollout:
            if isinstance(self.env, AgentEnvironment):
                return self.recorded.rollout(task, text)
            return await attempt_rollout(self.env, self.replies, task, text)

        return await self.verdict_on(task, rollout())

    async def verdict_on_unseen(self, task: Task[Any], text: str, form: Sequence[str]) -> Any:
        """Return a verdict on a text that stands nowhere else, in the form of an answer."""
        if not isinstance(self.env, AgentEnvironment):
            before, after = form
            return await self.verdict(task, f"{before}{text}{after}")

        async def rollout() -> Rollout:
            return self.recorded.rollout_of_unseen(text)

        return await self.verdict_on(task, rollout())

    async def verdict_on(self, task: Task[Any], making: Awaitable[Rollout]) -> Any:
        """Return what `verdict` returns for a rollout that is made, or whose making fails."""
        try:
            rollout = await making
            verdict = check_verdict(
                await verify_directly(self.env, task, rollout), self.env, rollout
            )
        except BrokenContractError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return describe(error)
        fields = verdict.to_json()
        for part in fields["rewards"].values():
            del part["seconds"]
        return {name: fields[name] for name in ("rewards", "passed", "answer", "error")}
