"""Check that nothing which the policy has left in a session's folder runs in the verdict.

Before the verdict is asked for, the folder gets files that Python, shells and other tools run by
themselves. Each of them leaves a trace when it is run.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

from grpo_core import GrpoError
from grpo_core.api.verify import Verifier
from grpo_kit.check import check
from grpo_kit.dialogues.episode_files import Watched, attempt_of
from grpo_kit.dialogues.episodes import require_episodes
from grpo_kit.dialogues.players import PlayClock
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.sandboxes.watched_sandbox import WatchedSession, with_watched_sandboxes
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Subject, task_label

_SECONDS = 20.0
_TRACE = ".grpo-startup-trace"
"""The file that says which of the planted files was run."""
_MODULES = (
    *("json", "random", "re", "math", "csv"),
    *("subprocess", "pathlib", "collections", "unittest", "pytest"),
)
"""Modules that a verifier may import, and that are looked for beside its script first."""
_TOOLS = ("python3", "python", "cat", "diff", "ls", "sh", "pytest", "git", "make")
"""Programs whose names the policy may use in a folder that is on somebody's PATH."""
_IN_PACKAGES = ("usercustomize.py", "sitecustomize.py")
_IN_FOLDER = ("sitecustomize.py", "usercustomize.py", "conftest.py", *(f"{m}.py" for m in _MODULES))
_OF_SHELLS = (".profile", ".bashrc", ".bash_profile", ".bash_env", ".shrc", ".zshenv")
_OF_PYTHON = "import site, sys; print(site.getusersitepackages())"
_OUTPUT_WORDS = 200


@check(
    "episode.startup",
    "fault",
    asks=(
        "Does nothing that the policy left in the folder of a session run in the commands of "
        "the verdict (start-up files and modules of Python, of shells, of git)?"
    ),
)
async def check_startup(subject: Subject) -> str:
    """Check that no command of the verdict runs a file that the policy has planted."""
    require_episodes(subject)
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("it uses no sandbox")
    env, sandboxes = with_watched_sandboxes(subject.env)
    clock, planted, commands = PlayClock(_SECONDS), 0, 0
    async with Verifier(env, settings=subject.inline_verifier.settings) as verifier:
        watched = Watched(verifier, sandboxes)
        for task, reference in subject.answered[:MIN_TASKS_FOR_SHARE]:
            if clock.up and commands:
                break
            traps: list[_Traps] = []

            async def plant(session: WatchedSession, traps: list[_Traps] = traps) -> None:
                trap = _Traps(session)
                session.after = trap.look
                traps.append(trap)
                await trap.plant()

            watched.before = plant
            await attempt_of(watched, task, split_turns(reference))
            planted += sum(trap.planted for trap in traps)
            commands += sum(trap.commands for trap in traps)
            for trap in traps:
                if trap.run:
                    raise BrokenPromiseError(
                        f"in the verdict at {task_label(task)} the command {trap.run[0]!r} runs "
                        f"{trap.run[1]}, which the policy has left in the session's folder, and so "
                        "can change what the verdict sees; use a sandbox whose sessions isolate "
                        "the commands of a verdict, start Python with -I, and do not search the "
                        "folder for modules, programs or settings"
                    )
    if not planted:
        raise NotCheckedError("no session of an episode with a reference took the files")
    if not commands:
        return "the verdict runs no command of its own in the session"
    return f"{commands} commands of verdicts ran none of {planted} files that were planted"


class _Traps:
    """Plant files in a session, and look which of them the commands of the verdict run."""

    def __init__(self, session: WatchedSession) -> None:
        self._session = session
        self.planted = self.commands = 0
        self.run: tuple[str, str] | None = None
        """The first command that ran a planted file, and the path of the file."""

    async def plant(self) -> None:
        """Write the files, besides those that the environment itself has written."""
        raw = self._session.session
        folder = (await raw.exec("pwd")).stdout.strip()
        if not folder.startswith("/"):
            return  # its commands are not those of a shell
        packages = (await raw.exec(["python3", "-c", _OF_PYTHON])).stdout.strip()
        files = _files(folder, packages.removeprefix(f"{folder}/"))
        own = {file.path for file in self._session.written}
        chosen = {path: text for path, text in files.items() if path not in own}
        with suppress(ValueError, GrpoError):
            await raw.write(chosen)
            names = " ".join(path for path in chosen if path in _TOOLS)
            await raw.exec(f"chmod 755 {names}")
            self.planted = len(chosen)
        await self._forget()

    async def look(self, command: str, of_policy: bool) -> None:
        """Note which planted file a command has run; one of the policy's programs may run them."""
        if of_policy:
            await self._forget()
            return
        self.commands += 1
        trace = await self._session.session.read(_TRACE)
        if trace and self.run is None:
            path = trace.decode("utf-8", "replace").split("\n")[0][:_OUTPUT_WORDS]
            self.run = command[:_OUTPUT_WORDS], path

    async def _forget(self) -> None:
        await self._session.session.write({_TRACE: ""})


def _files(folder: str, packages: str) -> dict[str, str]:
    """Return the files to plant, by path.

    Args:
        folder: path of the session's folder in the jail.
        packages: path of the user's packages of Python below that folder; any other is left out.
    """
    files = {name: _python(folder, name) for name in _IN_FOLDER}
    if packages and not packages.startswith("/"):
        paths = [f"{packages}/{name}" for name in _IN_PACKAGES]
        files |= {path: _python(folder, path) for path in paths}
        files[f"{packages}/grpo.pth"] = _python(folder, f"{packages}/grpo.pth")
    files |= {name: _shell(folder, name) for name in _OF_SHELLS}
    files |= {name: f"#!/bin/sh\n{_shell(folder, name)}" for name in _TOOLS}
    files[".pdbrc"] = _python(folder, ".pdbrc")
    git = _shell(folder, ".gitconfig").strip().replace("\\", "\\\\").replace('"', '\\"')
    files[".gitconfig"] = f'[core]\n\tfsmonitor = "{git}; false"\n'
    return files


def _python(folder: str, path: str) -> str:
    trace = f"{folder}/{_TRACE}"
    return f"import sys; open({trace!r}, 'a').write({path + chr(10)!r})\n"


def _shell(folder: str, path: str) -> str:
    return f"echo {shlex.quote(path)} >> {shlex.quote(f'{folder}/{_TRACE}')}\n"
