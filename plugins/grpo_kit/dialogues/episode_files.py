"""Check what the folder of an episode's session shows of its verifier before the end.

The environment gets a sandbox whose sessions are watched. The policy reads and changes whatever is
in the folder before its last word, whether the prompt names it or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from grpo_core import Message, Rollout, Task, Verdict
from grpo_core.api.protocol import Script
from grpo_core.api.verify import Conversation, Player, Verifier, play
from grpo_core.words import prompt_text, shorten
from grpo_kit.check import check
from grpo_kit.dialogues.episodes import require_episodes
from grpo_kit.dialogues.players import PlayClock, always
from grpo_kit.dialogues.reply_secrets import holds, tells
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.sandboxes.watched_sandbox import (
    WatchedSandbox,
    WatchedSession,
    with_watched_sandboxes,
)
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Subject, describe_verdict, task_label

_SECONDS = 20.0
_LEAST_BYTES = 4
"""Contents that are shorter are found in other files by chance."""
_EMPTIED = {"emptied": b"", "that ends at once": b"exit 0\n"}
"""What a policy may put in the place of a file."""
_FILE_NAME = re.compile(r"(?<![\w/.])[\w-][\w/-]*\.[A-Za-z]\w{0,4}\b")
"""What may be the name of a file in a prompt, inside of the session's folder."""
_USUAL = re.compile(
    r"\.(?:txt|[ct]sv|jsonl?|ya?ml|toml|ini|cfg|conf|xml|html|css|md|rst|tex|log|out|dat|bin|db|"
    r"sql|py|js|ts|sh|c|h|cpp|java|rs|go|rb)\Z"
)
"""Usual ends of names: other words with a dot are names only if the session has such a file."""
_TELLING = re.compile(
    r"(?<![A-Za-z])(?i:bak|backups?|orig|originals?|old|previous|solutions?|solved|expect|expected|"
    r"answers?|gold|golden|truth|references?|final|results?|targets?|correct|corrected|done)"
    r"(?![a-z])|~\Z"
)
"""Words in the names of files that hold a solution."""
BeforeVerdict = Callable[[WatchedSession], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Watched:
    """An environment whose sessions are watched, played in this process."""

    verifier: Verifier
    sandboxes: Sequence[WatchedSandbox]
    before: BeforeVerdict | None = None
    """Is called with the session before the verdict is asked for."""

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation whose session knows when it is judged."""
        return _Watched(self, self.verifier.conversation(task), len(self.sessions))

    @property
    def sessions(self) -> list[WatchedSession]:
        """Return the sessions that were opened so far."""
        return [session for sandbox in self.sandboxes for session in sandbox.sessions]


@dataclass(slots=True)
class _Watched:
    """Wrap a conversation, and mark its sessions as judging before the verdict is asked for."""

    watched: Watched
    inner: Conversation
    first: int
    """The number of sessions that were opened before."""

    async def open(self) -> Sequence[Message]:
        return await self.inner.open()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        return await self.inner.reply(messages)

    async def verdict(self, rollout: Rollout) -> Verdict:
        for session in self.watched.sessions[self.first :]:
            if self.watched.before is not None:
                await self.watched.before(session)
            session.is_judging = True
        return await self.inner.verdict(rollout)

    async def close(self) -> None:
        await self.inner.close()


@dataclass(slots=True)
class _Seen:
    """An attempt with the sessions that it had."""

    task: Task[Any]
    sessions: list[WatchedSession] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)


@check(
    "episode.files",
    "fault",
    asks=(
        "Does the folder of a session hold neither the answer nor what the verifier rests on,"
        " before the policy's last word?"
    ),
)
async def check_files(subject: Subject) -> str:
    """Check that sessions show neither the answer nor the verifier before the last word."""
    require_episodes(subject)
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("it uses no sandbox")
    env, sandboxes = with_watched_sandboxes(subject.env)
    async with Verifier(env, settings=subject.inline_verifier.settings) as verifier:
        watched = Watched(verifier, sandboxes)
        clock, seen = PlayClock(_SECONDS), list[_Seen]()
        for task, reference in subject.answered[: 2 * MIN_TASKS_FOR_SHARE]:
            if clock.up and len(seen) >= MIN_TASKS_FOR_SHARE:
                break
            seen.append(await attempt_of(watched, task, split_turns(reference)))
        if not any(attempt.sessions for attempt in seen):
            raise NotCheckedError("no episode with a reference opened a session")
        _check_answers(subject, seen)
        for attempt in seen:
            _check_brought_in(attempt)
        changed = await _check_tampering(subject, watched, seen)
    files = sum(len(session.written) for attempt in seen for session in attempt.sessions)
    tampered = f"; {changed} times one was emptied or replaced, and nothing passed"
    return (
        f"{files} files that the environment wrote in {len(seen)} episodes show neither the answer "
        f"nor the verifier before the end{tampered if changed else ''}"
    )


async def attempt_of(watched: Watched, task: Task[Any], turns: Script | Player) -> _Seen:
    """Play an attempt, and return what was seen of its sessions."""
    first = len(watched.sessions)
    talk = await play(watched, task, turns, max_turns=watched.verifier.env.max_turns, judge=True)
    assert talk.verdict is not None
    return _Seen(task, watched.sessions[first:], talk.verdict)


def _check_answers(subject: Subject, seen: Sequence[_Seen]) -> None:
    """Raise BrokenPromiseError if most folders hold the answer of their task."""
    if subject.env.answer_in_prompt:
        return
    answers = [
        subject.answers.bare_answer(index) or _longest_turn(subject.answered[index][1])
        for index in range(len(seen))
    ]
    known = [
        (attempt, answer)
        for attempt, answer in zip(seen, answers, strict=True)
        if answer.strip() and not holds(prompt_text(attempt.task), answer)
    ]
    if len(known) < MIN_TASKS_FOR_SHARE:
        return
    if tells([_early_text(attempt) for attempt, _ in known], [answer for _, answer in known]):
        attempt, answer = next(pair for pair in known if holds(_early_text(pair[0]), pair[1]))
        path = next(
            file.path
            for session in attempt.sessions
            for file in session.written
            if file.is_early and holds(_text(file.content), answer)
        )
        raise BrokenPromiseError(
            f"the file {path} holds the answer, {shorten(answer)} at {task_label(attempt.task)}, "
            "before the policy's last word, and the policy can read it; write it in verdict(), or "
            "set answer_in_prompt = True if the files are what is asked about"
        )


def _longest_turn(reference: str) -> str:
    return max(split_turns(reference), key=len)


def _early_text(attempt: _Seen) -> str:
    return "\n".join(
        _text(file.content)
        for session in attempt.sessions
        for file in session.written
        if file.is_early
    )


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _check_brought_in(attempt: _Seen) -> None:
    """Raise BrokenPromiseError if what the verdict writes could be read before.

    A file that the prompt names and that is written again is one of the task's own: it is restored.
    """
    prompt = prompt_text(attempt.task)
    for session in attempt.sessions:
        early = [file for file in session.written if file.is_early and file.path not in prompt]
        for file in session.written:
            content = file.content.strip()
            if file.is_early or len(content) < _LEAST_BYTES:
                continue
            for before in early:
                if content in before.content:
                    raise BrokenPromiseError(
                        f"verdict() writes {file.path} at {task_label(attempt.task)}, and its "
                        f"content stood in {before.path} before the policy's last word; bring what "
                        "verifies in after that, in verdict()"
                    )


async def _check_tampering(subject: Subject, watched: Watched, seen: Sequence[_Seen]) -> int:
    """Check that a silent policy does not pass with files that are emptied, or that are copies.

    Returns:
        How many changes were tried.
    """
    tried, clock = 0, PlayClock(_SECONDS)
    for attempt in seen[: subject.small_count]:
        used = {
            file.path
            for session in attempt.sessions
            for file in session.written
            if file.is_early and any(file.path in command for command in session.commands)
        }
        copies = () if subject.env.answer_in_prompt else _copies(attempt, used)
        for path, how, content in (*_emptied(sorted(used)), *copies):
            if clock.up:
                return tried

            async def tamper(
                session: WatchedSession, path: str = path, content: bytes = content
            ) -> None:
                with suppress(ValueError):  # a path outside of the session's folder
                    await session.session.write({path: content})

            watched.before = tamper
            verdict = (await attempt_of(watched, attempt.task, always(""))).verdict
            tried += 1
            if verdict.passed:
                raise BrokenPromiseError(
                    f"with {path} {how} a silent policy {describe_verdict(verdict)} at "
                    f"{task_label(attempt.task)}: verdict() rests on a file that the policy "
                    "can read and change; write it in verdict(), after the policy's last word"
                )
    return tried


def _emptied(used: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the path of a file that the verdict uses, how it is emptied, and its new content."""
    for path in used:
        for how, content in _EMPTIED.items():
            yield path, how, content


def _copies(attempt: _Seen, used: Collection[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield where the verdict looks for what was made, what is copied there, and its content.

    Files that the verdict uses are copied, and others whose name says that they hold what is right;
    one that the prompt names is there to be copied.
    """
    prompt = prompt_text(attempt.task)
    told = {
        file.path: file.content
        for session in attempt.sessions
        for file in session.written
        if file.is_early
    }
    own = {path for session in attempt.sessions for path in session.read_last}
    own |= {name for name in _FILE_NAME.findall(prompt) if name in told or _USUAL.search(name)}
    copied = [
        path
        for path in told
        if (path in used or _TELLING.search(_base(path))) and not _is_named(prompt, _base(path))
    ]
    for path in sorted(own):
        for source in copied:
            if source != path and told[source] != told.get(path):
                yield path, f"as a copy of {source}", told[source]


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _is_named(prompt: str, name: str) -> bool:
    """Return whether a prompt has the name of a file as a word of its own."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", prompt) is not None
