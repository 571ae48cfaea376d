"""Toy agents with one fault each, beside the sound ones that they are made from."""

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agent_envs import ASKS

from grpo_core import AgentEnvironment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer

CHECK = {"role": "user", "content": "Check it, and reply with the sum alone."}
TOOL = {
    "type": "function",
    "function": {
        "name": "submit",
        "description": "Submit the sum.",
        "parameters": {
            "type": "object",
            "properties": {"total": {"type": "integer"}},
            "required": ["total"],
        },
    },
}


async def ask(client: Any, messages: Sequence[Any], **fields: Any) -> Any:
    answer = await client.chat.completions.create(model="policy", messages=messages, **fields)
    return answer.choices[0].message


class Sums(AgentEnvironment[Any]):
    """The sound agent: it asks for a sum, asks to check it, and returns the second answer."""

    parts: ClassVar[Mapping[str, float]] = {"right": 1.0}
    max_turns = 3
    max_new_tokens = 32
    levels = False
    trusted = True
    agent_seconds = 30.0

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        numbers = [rng.randrange(100, 900) * 2 + (key.split == "eval") for _ in range(3)]
        prompt = (Message("user", f"Add {numbers}. Reply with the sum alone."),)
        return Task(key, prompt, sum(numbers))

    async def agent(self, task: Task[Any], client: Any) -> Any:
        messages = self.prompt(task)
        for _ in range(2):
            messages += [await ask(client, messages), CHECK]
        return messages[-2].content or ""

    def prompt(self, task: Task[Any]) -> list[Any]:
        return [{"role": message.role, "content": message.content} for message in task.prompt]

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said = str(rollout.returned or "")
        right = parse_integer(said, max_digits=6) == self.total(task)
        return Verdict({"right": Reward(right)}, passed=right, answer=said.strip()[:100])

    def total(self, task: Task[Any]) -> int:
        total: int = task.data
        return total

    def reference(self, task: Task[Any]) -> Sequence[str] | str:
        return ("I add them.", str(self.total(task)))

    def cheats(self, task: Task[Any]) -> Sequence[Sequence[str]]:
        return ((str(self.total(task)), "I have checked it."),)


# Other sound designs


class InWorkers(Sums):
    """Runs in worker processes."""

    trusted = False


class Submits(Sums):
    """Has the policy call a tool until it has submitted a number."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        messages = self.prompt(task)
        for _ in range(self.max_turns):
            message = await ask(client, messages, tools=[TOOL])
            messages.append(message)
            for call in message.tool_calls or ():
                total = self.submitted(call)
                if total is not None:
                    return total
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "no number"})
            if not message.tool_calls:
                messages.append({"role": "user", "content": "Call the tool."})
        return ""

    def submitted(self, call: Any) -> str | None:
        total = json.loads(call.function.arguments).get("total")
        return str(total) if type(total) is int else None

    def reference(self, task: Task[Any]) -> Sequence[str] | str:
        call = {"name": "submit", "arguments": {"total": self.total(task)}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"

    def cheats(self, task: Task[Any]) -> Sequence[Sequence[str]]:
        return ((str(self.total(task)),),)


class Rewrites(Sums):
    """Has the policy plan, and then answer with its plan in place of the history."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        (question,) = self.prompt(task)
        plan = (
            await ask(client, [{"role": "user", "content": f"Plan: {question['content']}"}])
        ).content
        fresh = f"{question['content']}\nPlan: {(plan or '')[:200]}"
        return (await ask(client, [{"role": "user", "content": fresh}])).content or ""


class Votes(Sums):
    """Asks three times at once, and returns what most answers say."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        answers = await asyncio.gather(*(ask(client, self.prompt(task)) for _ in range(3)))
        return Counter(answer.content or "" for answer in answers).most_common(1)[0][0]

    def reference(self, task: Task[Any]) -> str:
        return str(self.total(task))

    def cheats(self, task: Task[Any]) -> Sequence[Sequence[str]]:
        return ((f"{self.total(task)} or so",),)


PROGRAM = f'import os, sys\nprint("process", os.getpid(), file=sys.stderr)\n{ASKS}'


class Commands(Votes):
    """Is a program."""

    agent = AgentEnvironment.agent
    agent_seconds = 30.0

    def command(self, task: Task[Any]) -> Sequence[str]:
        return [sys.executable, "-S", "-c", PROGRAM]

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        returned = rollout.returned or {"stdout": ""}
        return super().verify(task, Rollout((), returned=returned["stdout"]))


# agent.talk


class ReadsNumbers(Sums):
    """Fails at texts that are not numbers."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        return int(await super().agent(task, client))


class NeverAsks(Sums):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        return "0"


class ReturnsSets(Sums):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        said = await super().agent(task, client)
        return said if said.isdigit() else {said}


class WaitsForNumbers(Sums):
    """Never ends if it hears no number."""

    agent_seconds = 0.5

    async def agent(self, task: Task[Any], client: Any) -> Any:
        said = await super().agent(task, client)
        if not said.isdigit():
            await asyncio.Event().wait()
        return said


class TrustsArguments(Submits):
    """Fails at calls without the argument."""

    def submitted(self, call: Any) -> str | None:
        return str(json.loads(call.function.arguments)["total"])


class BelievesAnySubmission(Submits):
    """Passes any number."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        submitted = bool(rollout.returned)
        return Verdict({"right": Reward(submitted)}, passed=submitted, answer=rollout.returned)


# agent.repeat


class DrawsAgain(Sums):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        return await super().agent(task, client) + random.choice(["", " ", "  ", "\n"])


# agent.apart


class SharesNotes(Sums):
    """Keeps what it has heard where other attempts find it."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        messages = self.prompt(task)
        for _ in range(2):
            self.said = await ask(client, messages)
            await asyncio.sleep(0.02)
            messages += [self.said, CHECK]
        return self.said.content or ""


class Blocks(InWorkers):
    """Asks by a client that blocks the event loop."""

    agent_seconds = 60.0

    async def agent(self, task: Task[Any], client: Any) -> Any:
        from openai import OpenAI

        blocking = OpenAI(base_url=client.base_url, api_key=client.api_key)
        answer = blocking.chat.completions.create(model="policy", messages=self.prompt(task))
        return answer.choices[0].message.content or ""

    def reference(self, task: Task[Any]) -> str:
        return str(self.total(task))


# agent.secret


class TellsTheSum(Sums):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        messages = [*self.prompt(task), await ask(client, self.prompt(task))]
        messages.append({"role": "user", "content": f"Could it be {task.data}?"})
        return (await ask(client, messages)).content or ""


class TellsByTheTool(Submits):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        answer = {"role": "system", "content": "Call the tool."}
        schema = {"type": "object", "properties": {"total": {"const": task.data}}}
        tool = {"type": "function", "function": {**TOOL["function"], "parameters": schema}}  # type: ignore[dict-item]
        message = await ask(client, [answer, *self.prompt(task)], tools=[tool])
        submitted = [self.submitted(call) for call in message.tool_calls or ()]
        return submitted[0] or "" if submitted else ""


class DumpsItsData(Sums):
    """Sends the policy what is for the verifier, though not the answer itself."""

    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        return Task(key, task.prompt, {"half": task.data // 2, "odd": task.data % 2})

    def total(self, task: Task[Any]) -> int:
        return 2 * int(task.data["half"]) + int(task.data["odd"])

    def prompt(self, task: Task[Any]) -> list[Any]:
        hint = {"role": "system", "content": f"Data: {json.dumps(task.data)}"}
        return [hint, *super().prompt(task)]


# agent.cut_off


class NeedsWhatIsReturned(Sums):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return super().verify(task, Rollout((), returned=rollout.returned.strip()))


class PassesWhatIsCutOff(Sums):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        if rollout.returned is None:
            return Verdict({"right": Reward(1.0)}, passed=True)
        return super().verify(task, rollout)


class AsksOnAndOn(Sums):
    """Asks again whatever it is told."""

    agent_seconds = 0.5

    async def agent(self, task: Task[Any], client: Any) -> Any:
        from openai import BadRequestError

        messages = self.prompt(task)
        while True:
            with contextlib.suppress(BadRequestError):
                messages += [await ask(client, messages), CHECK]
                if len(messages) >= 5:
                    return messages[-2].content or ""


class AnswersItself(Sums):
    """Gives the right answer where the policy has no turn left."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        from openai import BadRequestError

        try:
            return await super().agent(task, client)
        except BadRequestError:
            return str(task.data)


# agent.close


class LeavesProcesses(Sums):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        subprocess.Popen(["sleep", "60"])
        return await super().agent(task, client)


TASKS = set[Any]()


class LeavesTasks(Sums):
    async def agent(self, task: Task[Any], client: Any) -> Any:
        TASKS.add(asyncio.create_task(asyncio.sleep(60)))
        return await super().agent(task, client)


class LeavesWhenCancelled(Sums):
    """Removes its folder at its end alone."""

    async def agent(self, task: Task[Any], client: Any) -> Any:
        from openai import BadRequestError

        folder = Path(tempfile.mkdtemp())
        (folder / "notes.txt").write_text("notes")
        try:
            said = await super().agent(task, client)
        except BadRequestError:
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)
        return said


FAULTS: Mapping[type[AgentEnvironment[Any]], str] = {
    ReadsNumbers: "agent.talk",
    NeverAsks: "agent.talk",
    ReturnsSets: "agent.talk",
    WaitsForNumbers: "agent.talk",
    TrustsArguments: "agent.talk",
    BelievesAnySubmission: "agent.talk",
    DrawsAgain: "agent.repeat",
    SharesNotes: "agent.apart",
    Blocks: "agent.apart",
    TellsTheSum: "agent.secret",
    TellsByTheTool: "agent.secret",
    DumpsItsData: "agent.secret",
    NeedsWhatIsReturned: "agent.cut_off",
    PassesWhatIsCutOff: "agent.cut_off",
    AsksOnAndOn: "agent.cut_off",
    AnswersItself: "agent.cut_off",
    LeavesWhenCancelled: "agent.close",
    LeavesProcesses: "agent.close",
    LeavesTasks: "agent.close",
}
SOUND = (Sums, InWorkers, Submits, Rewrites, Votes, Commands)
