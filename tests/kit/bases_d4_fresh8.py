"""Sound attempts with state, and a small shell in memory for them."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

from bases_d_fresh8 import WHITE, of_split, spoken, whole, words

from grpo_core import (
    CommandResult,
    Environment,
    Episode,
    Limits,
    Message,
    Outcome,
    Program,
    Reward,
    Rollout,
    Sandbox,
    SandboxError,
    Services,
    Session,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import fenced_code
from grpo_core.testing import FakeSandbox


def no_outcome(program: Program, arguments: Sequence[object]) -> Outcome:
    """Say that the bench runs no programs, only sessions."""
    return Outcome("no_result", error="there is no interpreter")


class BenchSession:
    """Is a folder in memory with a few commands of a shell, as a jail without programs has them."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self.files: dict[str, str] = {}
        self.closed = False
        self._put(files)

    def _put(self, files: Mapping[str, str | bytes]) -> None:
        for path, content in files.items():
            text = content if isinstance(content, str) else content.decode(errors="replace")
            self.files[self._path(path)] = text

    def _path(self, path: str) -> str:
        clean = posixpath.normpath(path)
        if not path or clean.startswith(("/", "..")) or "\0" in path:
            raise ValueError(f"{path!r} is no path inside the folder")
        return clean

    def _check(self) -> None:
        if self.closed:
            raise SandboxError("the session is closed")

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - as the protocol has it
    ) -> CommandResult:
        self._check()
        line = command if isinstance(command, str) else shlex.join(command)
        try:
            code, out = self._script(line[:20_000], input)
        except ValueError as error:
            code, out = 2, f"sh: {error}\n"
        out = out[:64_000]
        return CommandResult("ok", code, out if code == 0 else "", "" if code == 0 else out)

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        self._check()
        self._put(files)

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        self._check()
        content = self.files.get(self._path(path))
        data = None if content is None else content.encode(errors="replace")
        return data if data is not None and len(data) <= limit else None

    async def close(self) -> None:
        self.closed = True
        self.files.clear()

    def _script(self, script: str, given: str) -> tuple[int, str]:
        """Run the lines of a script, with here-documents, up to the first that fails."""
        lines, code, shown = script.split("\n"), 0, ""
        while lines and code == 0:
            line, text = lines.pop(0), given
            if found := re.search(r"<<\s*'?\"?(\w+)'?\"?", line):
                end = lines.index(found[1]) if found[1] in lines else len(lines)
                text = "".join(f"{document}\n" for document in lines[:end])
                lines, line = lines[end + 1 :], line.replace(found[0], "")
            code, out = self._line(line, text)
            shown += out
        return code, shown

    def _line(self, line: str, given: str) -> tuple[int, str]:
        line = re.sub(r"2>\s*(/dev/null|&1)", "", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words, shown, text, code = [*lexer, ";"], "", given, 0
        command: list[str] = []
        for word in words:
            if word not in (";", "&&", "|", "||"):
                command.append(word)
                continue
            code, out = self._command(command, text) if command else (0, "")
            command, text = [], out if word == "|" else given
            shown += "" if word == "|" else out
            if (code and word != ";") or (not code and word == "||"):
                break
        return code, shown

    def _command(self, words: Sequence[str], given: str) -> tuple[int, str]:
        target, append, plain = "", False, []
        rest = iter(words)
        for word in rest:
            if word in (">", ">>", ">|"):
                target, append = next(rest, ""), word == ">>"
            elif word == "<":
                given = self.files.get(self._path(next(rest, "")), "")
            else:
                plain += fnmatch.filter(sorted(self.files), word) if "*" in word else [word]
        code, out = self._builtin(plain, given) if plain else (0, "")
        if not target or target == "/dev/null":
            return code, "" if target else out
        path = self._path(target)
        self.files[path] = (self.files.get(path, "") if append else "") + out
        return code, ""

    def _builtin(self, words: Sequence[str], given: str) -> tuple[int, str]:
        name, arguments = words[0], [word for word in words[1:] if not word.startswith("-")]
        if name in ("cat", "sort", "wc", "head", "grep"):
            pattern = arguments.pop(0) if name == "grep" and arguments else ""
            missing = [path for path in arguments if self._path(path) not in self.files]
            if missing:
                return 1, f"{name}: {missing[0]}: No such file or directory\n"
            text = "".join(self.files[self._path(p)] for p in arguments) if arguments else given
            lines = [line for line in text.splitlines() if pattern in line]
            if name == "wc":
                return 0, f"{len(lines)}\n"
            lines = sorted(lines) if name == "sort" else lines[:10] if name == "head" else lines
            return 0, text if name == "cat" else "".join(f"{line}\n" for line in lines)
        if name in ("ls", "find"):
            return 0, "".join(f"{path}\n" for path in sorted(self.files))
        if name in ("echo", "printf"):
            text = " ".join(arguments)
            return 0, text.replace("\\n", "\n") if name == "printf" else f"{text}\n"
        if name in ("rm", "touch", "truncate"):
            for path in map(self._path, arguments):
                if name == "touch":
                    self.files.setdefault(path, "")
                elif path in self.files:
                    self.files.pop(path)
                    self.files |= {path: ""} if name == "truncate" else {}
            return 0, ""
        if name in ("cp", "mv") and len(arguments) == 2:
            source, goal = map(self._path, arguments)
            if source not in self.files:
                return 1, f"{name}: {source}: No such file or directory\n"
            self.files[goal] = self.files[source] if name == "cp" else self.files.pop(source)
            return 0, ""
        return (0, "") if name in (":", "true", "mkdir") else (127, f"sh: {name}: not found\n")


class BenchSandbox(FakeSandbox):
    """Opens sessions in memory."""

    def __init__(self) -> None:
        super().__init__(no_outcome)

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> Session:
        return BenchSession(files or {})


def bench() -> Services:
    """Return services with a sandbox in memory."""
    return Services(sandboxes={"default": BenchSandbox()})


WORDS = dict(
    pair.split(":")
    for pair in words(
        "apple:Apfel bread:Brot cheese:Käse door:Tür egg:Ei flower:Blume garden:Garten "
        "house:Haus island:Insel jacket:Jacke kettle:Kessel lamp:Lampe mirror:Spiegel needle:Nadel "
        "orange:Orange pencil:Stift quarrel:Streit river:Fluss spoon:Löffel table:Tisch "
        "umbrella:Schirm valley:Tal window:Fenster year:Jahr bridge:Brücke chair:Stuhl dog:Hund"
    )
)
RULES = (
    "You work in a shell. A ```sh block in your reply is run, and you see what it prints. Reply "
    "without a block when the job is done."
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Holds the texts of a program by their keys, and which of them are not translated."""

    english: dict[str, str]
    missing: tuple[str, ...]

    @property
    def german(self) -> dict[str, str]:
        """Return the complete translation."""
        return {key: WORDS[word] for key, word in self.english.items()}

    def files(self) -> dict[str, str]:
        """Return the files of the folder."""
        done = {key: word for key, word in self.german.items() if key not in self.missing}
        return {
            "en.txt": as_lines(self.english),
            "de.txt": as_lines(done),
            "glossary.txt": as_lines(WORDS),
        }


def as_lines(texts: Mapping[str, str]) -> str:
    """Return lines of the form `key = text`."""
    return "".join(f"{key} = {text}\n" for key, text in texts.items())


def from_lines(content: bytes | None) -> dict[str, str]:
    """Return what such lines say; a key that occurs twice has no text."""
    lines = (content or b"").decode(errors="replace").split("\n")
    pairs = [tuple(line.split(" = ", 1)) for line in lines if " = " in line]
    keys = [pair[0] for pair in pairs]
    return {key: text if keys.count(key) == 1 else "" for key, text in pairs}


class MissingTranslations(Environment[Catalogue]):
    """The policy completes the German texts of a program in a shell; the file is inspected."""

    needs = frozenset({"sandbox"})
    max_turns = 4
    max_new_tokens = 160
    replayable = True
    timeout_seconds: ClassVar[float] = 30.0

    def task(self, key: TaskKey) -> Task[Catalogue]:
        lacking = 2 + round(3 * key.level)

        def make(rng: Random) -> Catalogue:
            names = rng.sample(sorted(WORDS), 9)
            english = {f"{rng.choice(('menu', 'cart', 'help'))}.{rng.randint(10, 99)}.{n[0]}": n
                       for n in names}  # fmt: skip
            return Catalogue(english, tuple(sorted(rng.sample(sorted(english), lacking))))

        job = of_split(key, make, lambda job: " ".join(job.missing))
        question = (
            "The folder holds en.txt, de.txt and glossary.txt. Some keys of en.txt are missing in "
            f"de.txt: {', '.join(job.missing)}. Add a line `key = text` for each to de.txt, with "
            "the German word of the glossary, and leave the other lines as they are."
        )
        return Task(key, (Message("system", RULES), Message("user", question)), job)

    def episode(self, task: Task[Catalogue]) -> Episode:
        return Workplace(task.data, self.services.sandbox())

    def reference(self, task: Task[Catalogue]) -> Sequence[str]:
        job = task.data
        lines = as_lines({key: job.german[key] for key in job.missing})
        return (f"```sh\ncat >> de.txt <<'END'\n{lines}END\n```", "Done.")

    def cheats(self, task: Task[Catalogue]) -> Sequence[str]:
        return ("Done.", "```sh\ncp en.txt de.txt\n```", as_lines(task.data.german))


class Workplace(Episode):
    """Holds the session of one attempt at a translation."""

    def __init__(self, job: Catalogue, sandbox: Sandbox) -> None:
        self.job, self.sandbox = job, sandbox
        self.session: Session | None = None
        self.turns = 0

    def files(self) -> dict[str, str]:
        """Return what the folder holds at first."""
        return self.job.files()

    async def open(self) -> Sequence[Message]:
        self.session = await self.sandbox.session(self.files())
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        shown = await self.run(messages[-1].content)
        return None if shown is None else (Message("user", shown),)

    async def run(self, text: str) -> str | None:
        """Run the block of a turn, and return what it prints; None for a turn without one."""
        assert self.session is not None, "open() comes first"
        self.turns += 1
        block = fenced_code(text, languages=("sh", "bash", ""))
        if block is None or not block.content.strip(WHITE):
            return None
        result = await self.session.exec(block.content)
        return (result.stdout + result.stderr)[:1000] or "[ok]"

    async def done(self) -> bool:
        """Return whether the German file has every key with its word, and nothing else."""
        assert self.session is not None, "open() comes first"
        return from_lines(await self.session.read("de.txt")) == self.job.german

    async def verdict(self, rollout: Rollout) -> Verdict:
        for text in spoken(rollout)[self.turns :]:  # a last turn that reply() has not seen
            await self.run(text)
        done = await self.done()
        return Verdict({"reward": Reward(done)}, passed=done, answer=rollout.text[:100])

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


class SafeWithThreeDials(Environment[tuple[str, ...]]):
    """The policy sets three dials, one sum after the other; a wrong number moves nothing.

    A turn that sets a dial earns a third.
    """

    max_turns = 6
    max_new_tokens = 8
    replayable = True

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        most = 60 + round(800 * key.level)

        def make(rng: Random) -> tuple[str, ...]:
            return tuple(f"{rng.randint(12, most)} + {rng.randint(12, most)}" for _ in range(3))

        sums = of_split(key, make, " ".join)
        question = (
            f"A safe has three dials. The first is set to {sums[0]}, the second to {sums[1]}, the "
            f"third to {sums[2]}. Set one dial in each turn, in this order: reply with a number."
        )
        return Task(key, (Message("user", question),), sums)

    def episode(self, task: Task[tuple[str, ...]]) -> Episode:
        return OpenedSafe([sum(map(int, text.split(" + "))) for text in task.data])

    def reference(self, task: Task[tuple[str, ...]]) -> Sequence[str]:
        return [str(sum(map(int, text.split(" + ")))) for text in task.data]


class OpenedSafe(Episode):
    """Holds which turns have set a dial."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.marks: list[bool] = []

    def turn(self, text: str) -> bool:
        """Take a turn, and return whether it sets the next dial."""
        place = sum(self.marks)
        right = place < len(self.numbers) and whole(text) == self.numbers[place]
        self.marks.append(right)
        return right

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        right = self.turn(messages[-1].content)
        if sum(self.marks) == len(self.numbers):
            return None
        said = "It clicks. The next dial?" if right else "Nothing moves. Again?"
        return (Message("user", said),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        for text in spoken(rollout)[len(self.marks) :]:  # a last turn that reply() has not seen
            self.turn(text)
        done = sum(self.marks) == len(self.numbers)
        reward = Reward(turns=tuple(self.paid())) if self.marks else Reward(0.0)
        return Verdict({"reward": reward}, passed=done, answer=rollout.text[:100])

    def paid(self) -> Sequence[float]:
        """Return what each turn earns."""
        return [mark / len(self.numbers) for mark in self.marks]
