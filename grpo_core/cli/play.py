"""`grpo env play`: a person answers as the policy."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from grpo_core.cli.envs import (
    Index,
    Level,
    Name,
    Seed,
    Settings,
    SplitOption,
    existing,
    open_environment,
    print_prompt,
    print_reference,
    print_turn,
    print_verdict,
)
from grpo_core.cli.output import (
    INTERRUPTED,
    MESSAGE_LIMIT,
    print_line,
    print_text,
    prints_to_stderr,
    remark,
)
from grpo_core.protocol.errors import GrpoError, UserError

if TYPE_CHECKING:
    from grpo_core.protocol.types import Finish, Message, Task, TaskKey, Verdict
    from grpo_core.verify.sources import Sources

END = "."
_LOOK_SECONDS = 0.2
HELP = f"""\
:next        the next task
:level 0.5   this task's number at another difficulty, from 0 to 1
:reference   an answer that passes, if the environment knows one
:help        this list
:quit        leave, as Ctrl-D does
Anything else is an answer; it ends with a line that holds only {END!r}. One that begins with a colon is written with two of them."""


def register(app: typer.Typer) -> None:
    app.command("play", epilog="Example: grpo env play arithmetic --level 0.4")(play)


def play(
    name: Name,
    split: SplitOption = "train",
    index: Index = 0,
    seed: Seed = 0,
    level: Level = 0.0,
    settings: Settings = None,
) -> None:
    """Answer tasks yourself, as the policy would, and see what the verifier makes of it.

    Answers are judged by the engine of a run: deadlines hold. At the end (:quit, Ctrl-D) the attempts are summed up.
    """
    import asyncio

    from grpo_core.protocol.types import TaskKey

    with prints_to_stderr():
        known, sources = open_environment(name, settings or [])
        key = existing(
            sources[known].env, TaskKey(env=known, split=split, index=index, seed=seed, level=level)
        )
    game, status = _Game(sources, key), 0
    # asyncio would take the first Ctrl-C as a wish to cancel what the loop does, and the loop waits for a line
    previous = signal.signal(signal.SIGINT, _leave)
    try:
        asyncio.run(game.run())
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, previous)
    print_line(game.summary())
    raise typer.Exit(status)


def _leave(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@dataclass(slots=True)
class _Game:
    """One task after the other; messages: the turns of the attempt under way."""

    sources: Sources
    key: TaskKey
    task: Task[Any] | None = None
    messages: list[Message] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    async def run(self) -> None:
        """Until the person leaves or the input ends."""
        async with self.sources:
            await self._ask(self.key)
            remark(f"Answer, then a line with a single {END!r}; :help lists what else there is.")
            while (said := _heard()) is not None:
                if not said.startswith(":") or said.startswith("::"):
                    await self._answer(said.removeprefix(":") if said.startswith("::") else said)
                elif said.split() == [":quit"]:
                    return
                else:
                    await self._obey(said)

    def summary(self) -> str:
        scored = [verdict for verdict in self.verdicts if verdict.scored]
        if not self.verdicts:
            return "no attempts"
        passed = sum(verdict.passed for verdict in scored)
        mean = f", mean reward {fmean(verdict.total for verdict in scored):.3f}" if scored else ""
        broken = (
            f", {len(self.verdicts) - len(scored)} could not be judged"
            if len(scored) < len(self.verdicts)
            else ""
        )
        return f"attempts {len(self.verdicts)}, passed {passed}{mean}{broken}"

    async def _ask(self, key: TaskKey) -> None:
        with prints_to_stderr():
            (self.task,) = await self.sources.tasks([key])
        self.key, self.messages = key, []
        print_line(f"{key.env}, {key.split} task {key.index}, level {key.level:g}", bold=True)
        print_prompt(self.task)

    async def _obey(self, said: str) -> None:
        """What cannot be done is said in one line."""
        command, *arguments = said.split()
        try:
            if command == ":next" and not arguments:
                await self._next()
            elif command == ":level" and len(arguments) == 1:
                await self._ask(replace(self.key, level=self._level(arguments[0])))
            elif command == ":reference" and not arguments:
                with prints_to_stderr():
                    (answer,) = await self.sources.references([self._asked])
                print_reference(answer)
            elif command == ":help" and not arguments:
                print_text(HELP)
            else:
                raise UserError(f"{said!r} is no command; :help lists them")
        except GrpoError as error:
            remark(str(error))

    async def _next(self) -> None:
        from grpo_core.verify.checks import size_of

        size = size_of(self.sources[self.key.env].env, self.key.split)
        if size is not None and self.key.index + 1 >= size:
            raise UserError(f"this was the last of {size} tasks")
        await self._ask(replace(self.key, index=self.key.index + 1))

    def _level(self, text: str) -> float:
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
        """Says it; judges the attempt once the environment has nothing more to say or the turns are used up."""
        from grpo_core.protocol.types import Message, Rollout

        self.messages.append(Message("assistant", text))
        finish: Finish = "stop"
        try:
            reply = await self._reply()
        except GrpoError as error:
            remark(str(error))
            reply, finish = None, "error"
        if reply is not None:
            self.messages += reply
            for message in reply:
                print_turn(message.role, message.content)
            return
        with prints_to_stderr():
            ((verdict,),) = await self.sources.verify(
                [self._asked], [[Rollout(tuple(self.messages), finish)]]
            )
        self.messages = []
        self._show(verdict)

    async def _reply(self) -> Sequence[Message] | None:
        turns = sum(message.role == "assistant" for message in self.messages)
        if turns >= self.sources[self.key.env].env.max_turns:
            return None
        with prints_to_stderr():
            return await self.sources.reply(self._asked, tuple(self.messages))

    def _show(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if verdict.scored:
            print_verdict(verdict)
        else:
            print_text(
                f"the answer could not be judged: {verdict.error}",
                limit=MESSAGE_LIMIT,
                fg=typer.colors.RED,
            )
        remark("Once more, or :next")

    @property
    def _asked(self) -> Task[Any]:
        assert self.task is not None  # `run` asks before it listens
        return self.task


def _heard() -> str | None:
    """An answer, or a command, which is one line; None at the end of the input."""
    lines: list[str] = []
    try:
        for line in iter(_line, ""):
            text = line.removesuffix("\n")
            if text == END:
                return "\n".join(lines)
            lines.append(text)
            if lines[0].startswith(":") and not lines[0].startswith("::"):
                return lines[0]
    except UnicodeDecodeError as error:
        raise UserError(f"the input is no text: {error}; write it in UTF-8") from None
    return "\n".join(lines) if lines else None


def _line() -> str:
    """The next line of the input. At a terminal it looks for a Ctrl-C now and then: one that comes just before the system begins to read,
    or to another thread, would not end the reading."""
    while (
        os.name == "posix"
        and sys.stdin.isatty()
        and not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]
    ):
        pass
    return sys.stdin.readline()
