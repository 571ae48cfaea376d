"""Play episodes in actors of Ray, and kill an actor in the middle; prints one JSON object for each kind of environment."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

import guessing_games as games

from grpo_core import Message, Rollout, Spec, TaskKey
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import play
from grpo_core.verify.workers.hosts import Placement
from grpo_ray.config import RayConfig
from grpo_ray.executor import RayExecutor


class Executor(RayExecutor):
    """Remembers its place, which knows the processes of its actors."""

    place: Any = None

    def open(self, environment: Any) -> Any:
        self.place = super().open(environment)
        return self.place


async def tried(kind: str) -> dict[str, Any]:
    """Return what episodes said and got, before and after an actor was killed."""
    executor = Executor(RayConfig(actors=2))
    verifier = Verifier(
        getattr(games, kind)(),
        spec=Spec(kind, f"guessing_games:{kind}"),
        settings=VerifyConfig(workers=2, retries=2),
        placement=Placement(executor, "ray"),
    )
    async with verifier:
        tasks = await verifier.tasks([TaskKey("games", "train", index) for index in range(4)])
        played = await asyncio.gather(
            *(
                play(verifier, task, [f"a{number}", f"b{number}"], max_turns=4, judge=True)
                for number, task in enumerate(tasks * 5)
            )
        )
        conversations = [verifier.conversation(task) for task in tasks]
        said = []
        for conversation in conversations:
            first = (*await conversation.open(), Message("assistant", "x"))
            reply = await conversation.reply(first) or ()
            said.append((*first, *reply, Message("assistant", "y")))
        os.kill(executor.place.actors[0][1], signal.SIGKILL)
        pairs = list(zip(conversations, said, strict=True))
        replies = await asyncio.gather(*(each.reply(messages) for each, messages in pairs))
        verdicts = await asyncio.gather(
            *(each.verdict(Rollout(messages, reply_dropped=True)) for each, messages in pairs)
        )
        for conversation in conversations:
            await conversation.close()
    await executor.close()
    return {
        "answers": [each.verdict.answer if each.verdict else None for each in played],
        "replies": [reply[0].content if reply else None for reply in replies],
        "after": [verdict.error or verdict.answer for verdict in verdicts],
    }


if __name__ == "__main__":
    for kind in ("Games", "TrustedGames"):
        print(json.dumps(asyncio.run(tried(kind))), flush=True)
