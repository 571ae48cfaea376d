"""Terminal: the policy works in a shell in a sandbox, and the folder is inspected from outside.

| level from | job                                              |
| 0.0        | print one of three files                         |
| 0.2        | write a text into a file                         |
| 0.4        | count lines                                      |
| 0.6        | sort words, without those that repeat            |
| 0.8        | move some files into a folder                    |
| 1.0        | write a script, which is tried on unknown inputs |

A turn with a ```sh block runs it in a session of the sandbox, and the policy sees what it prints. A
turn without one ends the episode. What a block leaves in the folder is there for the next one; its
processes and variables are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from grpo_core import (
    CommandResult,
    Environment,
    Episode,
    Limits,
    Message,
    Reward,
    Rollout,
    Sandbox,
    Session,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import Block, NoAnswer, find_code
from grpo_env_terminal.families import draw_job
from grpo_env_terminal.jobs import Job, PrintJob

RULES = (
    "You work in a shell. A ```sh block in your reply is run, and you see what it prints. Reply "
    "without a block when the job is done."
)
LABELS = ("sh", "bash", "shell")
LIMITS = Limits(total_seconds=30.0)
_SHOWN_CHARS = 1000


class Terminal(Environment[Job]):
    """Parts: commands 0.1, the first turn holds a block; done 0.9, the job is done."""

    parts: ClassVar[Mapping[str, float]] = {"commands": 0.1, "done": 0.9}
    needs = frozenset({"sandbox"})
    timeout_seconds: ClassVar[float] = 120.0
    """The time limit of a turn, which may wait for the sandbox; commands have their own."""
    max_turns = 6
    max_new_tokens = 128
    replayable = True

    def task(self, key: TaskKey) -> Task[Job]:
        job = draw_job(key)
        return Task(key, _prompt(job), job)

    def episode(self, task: Task[Job]) -> Shell:
        return Shell(task, self.services.sandbox())

    def reference(self, task: Task[Job]) -> Sequence[str]:
        return (_block(task.data.solution), "Done.")

    def cheats(self, task: Task[Job]) -> Sequence[str | Sequence[str]]:
        """Return turns that say that the job is done, or show a command and run none."""
        solution = task.data.solution
        return ("Done.", solution, f"```sh\n{solution}", f"`{solution}`", ("", "Done."))

    def mutants(self, task: Task[Job]) -> Mapping[str, str | Sequence[str]]:
        """Return commands that do almost what is asked for, by their mistake."""
        return {name: (_block(command), "Done.") for name, command in task.data.mistakes}

    def canaries(self) -> Sequence[Task[Job]]:
        """Return a job that asks for a file which is not there."""
        key = TaskKey("terminal", "eval", 0)
        rng = key.rng("canary")
        job = draw_job(key)
        lost = PrintJob("Print the file lost.txt.", job.files, "", (), f"{rng.getrandbits(64)}\n")
        return (Task(key, _prompt(lost), lost),)

    def fingerprint(self) -> str:
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(super().fingerprint().encode() + sources).hexdigest()[:16]


class Shell(Episode):
    """Holds the session of one attempt."""

    def __init__(self, task: Task[Job], sandbox: Sandbox) -> None:
        self._task, self._sandbox = task, sandbox
        self._session: Session | None = None
        self._last: CommandResult | None = None
        self._commands: list[Block | NoAnswer] = []
        """The block of each turn, or why it has none."""

    async def open(self) -> Sequence[Message]:
        self._session = await self._sandbox.session(dict(self._task.data.files), limits=LIMITS)
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        result = await self._run(messages[-1].content)
        return None if result is None else (Message("user", _shown(result)),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        assert self._session is not None, "open() comes first"
        spoken = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in spoken[len(self._commands) :]:  # the last one, if reply() has not seen it
            await self._run(text)
        rng = self._task.rng()
        done = await self._task.data.is_done(self._session, self._last, rng)
        is_canary = not self._task.data.solution
        first = next(iter(self._commands), NoAnswer("there is no turn"))
        commands = isinstance(first, Block) and not is_canary
        run = [command.content for command in self._commands if isinstance(command, Block)]
        return Verdict(
            {
                "commands": Reward(commands, note=getattr(first, "reason", "")),
                "done": Reward(done),
            },
            passed=done,
            answer=run[-1] if run else None,
            metrics={"turns": len(spoken)},
            detail={"status": None if self._last is None else self._last.status},
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _run(self, text: str) -> CommandResult | None:
        """Run the block of a turn; None for a turn without one."""
        assert self._session is not None, "open() comes first"
        command = _command_in(text, self._commands)
        result = None
        if isinstance(command, Block):
            result = await self._session.exec(command.content, of_policy=True)
        self._commands.append(command)
        self._last = result or self._last
        return result


def _prompt(job: Job) -> tuple[Message, ...]:
    listed = ", ".join(sorted(path for path, _ in job.files))
    return (
        Message("system", RULES),
        Message("user", f"The folder holds {listed}. {job.question}"),
    )


def _command_in(text: str, earlier: Sequence[Block | NoAnswer]) -> Block | NoAnswer:
    """Return the command of a turn: its block, which has a label if that of an earlier turn had."""
    is_labelled = any(isinstance(block, Block) and block.language for block in earlier)
    block = find_code(text, languages=LABELS if is_labelled else (*LABELS, ""))
    if isinstance(block, Block) and not block.content.strip():
        return NoAnswer("the block is empty")
    return block


def _shown(result: CommandResult) -> str:
    """Return what the policy sees of a command."""
    text = (result.stdout + result.stderr)[:_SHOWN_CHARS]
    if result.status != "ok":
        return f"{text}\n[{result.status}: {result.error}]".strip()
    return f"{text}\n[exit code {result.exit_code}]".strip() if result.exit_code else text or "[ok]"


def _block(command: str) -> str:
    return f"```sh\n{command}\n```"
