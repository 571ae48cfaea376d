"""Implement `grpo env play`, in which a person answers tasks in place of the policy."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import typer

from grpo_core import GrpoError, Message, Rollout, Task, TaskKey, UserError, Verdict
from grpo_core.api.verify import (
    AgentConversation,
    AgentTurns,
    Sources,
    Transcript,
    described_tools,
    size_of,
)
from grpo_core.cli.environment import (
    Index,
    Level,
    Name,
    Seed,
    Settings,
    SplitOption,
    message_text,
    open_task,
    print_detail,
    print_prompt,
    print_reference,
    print_tools,
    print_turn,
    print_verdict,
)
from grpo_core.cli.options import Rewards
from grpo_core.cli.output import (
    INTERRUPTED,
    MESSAGE_LIMIT,
    environment_output,
    print_line,
    print_text,
    remark,
)
from grpo_core.cli.rows import with_rewards

app = typer.Typer()

END = "."
"""The line that ends an answer."""
_POLL_SECONDS = 0.2
HELP = f"""\
:next        the next task
:level 0.5   this task's number at another difficulty, from 0 to 1
:reference   an answer that passes, if the environment knows one
:help        this list
:quit        leave, as Ctrl-D does
Anything else is an answer. End it with a line that holds only {END!r}.
If the answer begins with a colon, write two colons."""


@app.command(epilog="Example: grpo env play arithmetic --level 0.4")
def play(
    name: Name,
    split: SplitOption = "train",
    index: Index = 0,
    seed: Seed = 0,
    level: Level = 0.0,
    reward: Rewards = None,
    settings: Settings = None,
) -> None:
    """Answer tasks yourself, in place of the policy, and see the rewards.

    Answers are scored as in a run, with its deadlines; :quit or Ctrl-D ends with a summary.
    """
    with environment_output():
        sources, key = open_task(name, with_rewards(reward, settings), split, index, seed, level)
    game, status = _Game(sources, key), 0
    # asyncio's own handler would cancel the running task at the first Ctrl-C, which has no effect
    # while that task is blocked reading a line.
    previous = signal.signal(signal.SIGINT, _raise_interrupt)
    try:
        asyncio.run(game.run())
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, previous)
    print_line(game.summary())
    raise typer.Exit(status)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@dataclass(slots=True)
class _Game:
    """Present tasks to a person and score the answers."""

    sources: Sources
    key: TaskKey
    """The key of the current task."""
    task: Task[Any] = field(init=False)
    """The current task; `run` presents the first one."""
    transcript: Transcript | None = None
    """The current attempt."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools that were printed last."""
    verdicts: list[Verdict] = field(default_factory=list)
    """The verdicts on all attempts so far."""

    async def run(self) -> None:
        """Read answers and commands until :quit or the end of the input."""
        async with self.sources, AsyncExitStack() as stack:
            stack.push_async_callback(self._end_attempt)
            await self._present(self.key)
            remark(f"Answer, then a line with a single {END!r}; :help lists the commands.")
            while (entry := _read_entry()) is not None:
                if not entry.startswith(":") or entry.startswith("::"):
                    await self._answer(entry.removeprefix(":") if entry.startswith("::") else entry)
                elif entry.split() == [":quit"]:
                    return
                else:
                    await self._run_command(entry)

    def summary(self) -> str:
        """Return the counts of attempts and passes and the mean reward, in one line."""
        scored = [verdict for verdict in self.verdicts if verdict.scored]
        if not self.verdicts:
            return "no attempts"
        passed = sum(verdict.passed for verdict in scored)
        mean = f", mean reward {fmean(verdict.total for verdict in scored):.3f}" if scored else ""
        unscored = (
            f", {len(self.verdicts) - len(scored)} could not be judged"
            if len(scored) < len(self.verdicts)
            else ""
        )
        return f"attempts {len(self.verdicts)}, passed {passed}{mean}{unscored}"

    async def _present(self, key: TaskKey) -> None:
        """Make a task the current one and print its prompt."""
        with environment_output():
            (task,) = await self.sources.tasks([key])
        await self._end_attempt()
        self.key, self.task = key, task
        print_line(f"{key.env}, {key.split} task {key.index}, level {key.level:g}", bold=True)
        print_prompt(self.task)
        with environment_output():
            tools = described_tools(self.sources[key.env].env)
        print_tools(tools)
        await self._begin_attempt()

    async def _begin_attempt(self) -> None:
        """Begin an attempt at the current task, and print what the environment says first."""
        max_turns = self.sources[self.key.env].env.max_turns
        conversation = self.sources.conversation(self.task)
        if isinstance(conversation, AgentConversation):
            conversation = AgentTurns(conversation, self.task, max_turns=max_turns)
            max_turns += 1  # the agent hears the last turn, too; one that asks again is refused
        transcript = Transcript(max_turns, conversation)
        self.transcript = transcript
        with environment_output():
            opening = await transcript.open()
        if transcript.error:
            remark(transcript.error)
        self._print_reply(opening)

    def _print_reply(self, messages: Sequence[Message]) -> None:
        """Print what follows a turn; of an agent also tools that it did not offer before."""
        conversation = self.transcript.conversation if self.transcript is not None else None
        if isinstance(conversation, AgentTurns):
            if conversation.is_new_history:
                remark("the agent goes on from another history:")
            if conversation.tools != self.tools:
                print_tools(conversation.tools)
            self.tools = conversation.tools
        for message in messages:
            print_turn(message.role, message_text(message))

    async def _end_attempt(self) -> None:
        """Close the conversation of the current attempt, if there is one."""
        transcript, self.transcript = self.transcript, None
        if transcript is not None and transcript.conversation is not None:
            with environment_output():
                await transcript.conversation.close()

    async def _run_command(self, entry: str) -> None:
        """Run a command that begins with a colon; print an error in one line."""
        command, *arguments = entry.split()
        try:
            if command == ":next" and not arguments:
                await self._present_next()
            elif command == ":level" and len(arguments) == 1:
                await self._present(replace(self.key, level=self._parse_level(arguments[0])))
            elif command == ":reference" and not arguments:
                with environment_output():
                    (answer,) = await self.sources.references([self.task])
                print_reference(answer)
            elif command == ":help" and not arguments:
                print_text(HELP)
            else:
                raise UserError(f"{entry!r} is not a command; :help lists the commands")
        except GrpoError as error:
            remark(str(error))

    async def _present_next(self) -> None:
        size = size_of(self.sources[self.key.env].env, self.key.split)
        if size is not None and self.key.index + 1 >= size:
            raise UserError(f"this was the last of {size} tasks")
        await self._present(replace(self.key, index=self.key.index + 1))

    def _parse_level(self, text: str) -> float:
        """Return the level that the text names.

        Raises:
            UserError: the environment has no levels, or the text is not a number from 0 to 1.
        """
        if not self.sources[self.key.env].env.levels:
            raise UserError(f"{self.key.env} has no levels")
        try:
            level = float(text)
        except ValueError:
            level = -1.0
        if not 0 <= level <= 1:
            raise UserError(f"a level is a number from 0 to 1; found {text!r}")
        return level

    async def _answer(self, text: str) -> None:
        """Add an answer to the attempt; score it when there is no reply or no turn left."""
        transcript = self.transcript
        assert transcript is not None
        assert transcript.conversation is not None
        if not transcript.error:
            transcript.add_turn(Message.turn(text))
        with environment_output():
            reply = await transcript.next_reply()
        if reply is not None:
            transcript.messages += reply
            self._print_reply(reply)
            return
        if transcript.error:
            remark(transcript.error)
        rollout = Rollout(tuple(transcript.messages), transcript.finish, error=transcript.error)
        with environment_output():
            verdict = await transcript.conversation.verdict(rollout)
        await self._end_attempt()
        self.verdicts.append(verdict)
        if verdict.scored:
            print_verdict(verdict)
        else:
            failure = f"the answer could not be judged: {verdict.error}"
            print_text(failure, limit=MESSAGE_LIMIT, fg=typer.colors.RED)
            print_detail(verdict)
        remark("Answer again, or :next")
        await self._begin_attempt()


def _read_entry() -> str | None:
    """Read an answer, which END ends, or a command, which is one line.

    Returns:
        The answer or command without a final line feed; None at the end of the input.

    Raises:
        UserError: the input is not UTF-8.
    """
    lines: list[str] = []
    try:
        for line in iter(_read_line, ""):
            text = line.removesuffix("\n")
            if text == END:
                return "\n".join(lines)
            lines.append(text)
            if lines[0].startswith(":") and not lines[0].startswith("::"):
                return lines[0]
    except UnicodeDecodeError as error:
        raise UserError(f"the input is not valid text: {error}; write it in UTF-8") from None
    return "\n".join(lines) if lines else None


def _read_line() -> str:
    """Return the next line of the input, or "" at its end.

    At a terminal, poll for input instead of blocking: a Ctrl-C that arrives just before the read
    system call, or in another thread, would not interrupt a blocking read.
    """
    while (
        os.name == "posix"
        and sys.stdin.isatty()
        and not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]
    ):
        pass
    return sys.stdin.readline()
