"""Look at the folder of a session from outside: what is there, of which kind and mode."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from grpo_core import SandboxError, Session

_LIST = r"find {} -printf '%y %m %n %P\0'"
_DIGESTS = r"printf '\0'; find . -type f -size -129 -exec sha256sum -z {} +"
"""Of files up to 64 KiB, one of which is the largest that a job is about."""
FILE, FOLDER = "f", "d"


@dataclass(frozen=True, slots=True)
class Entry:
    """Describes what is at a path, which no link leads to."""

    kind: str
    """The letter f for a regular file, d for a folder; others are links, pipes and devices."""
    mode: str
    """The rights in octal digits, such as 644."""
    names: int
    """The number of names of a file, above 1 where there are hard links to it."""
    digest: str = ""
    """SHA-256 of the content of a file that can be read."""


def given(content: str) -> Entry:
    """Return a file that the environment has written, as long as nobody has changed it."""
    return Entry(FILE, "644", 1, hashlib.sha256(content.encode()).hexdigest())


async def folder_state(session: Session) -> dict[str, Entry] | None:
    """Return what the folder holds, by path; None if the policy has left no way to look at it.

    These are commands of the verifier, so nothing that the policy has left runs in their place.
    What is in a folder that cannot be read is not listed.

    Raises:
        SandboxError: the jail has no `find` of GNU.
    """
    result = await session.exec(f"{_LIST.format('.')}; {_DIGESTS}")
    if result.status != "ok":  # its time is used up, the session has ended, or there is too much
        return None
    state = dict[str, Entry]()
    listed, _, summed = result.stdout.partition("\0\0")
    digests = {
        path.removeprefix("./"): digest
        for digest, _, path in (line.partition("  ") for line in summed.split("\0"))
    }
    for line in filter(None, listed.split("\0")):
        kind, mode, names, path = line.split(" ", 3)
        state[path] = Entry(kind, mode, int(names), digests.get(path, ""))
    if state.pop("", None) is not None:  # the folder itself, which is listed whatever it holds
        return state
    probe = await session.exec(_LIST.format("/ -maxdepth 0"))
    if probe.status == "ok" and not probe.stdout.startswith(FOLDER):
        raise SandboxError(
            f"the folder of a session cannot be listed: {probe.stderr.strip()[:200]!r}; a jail for "
            "this environment needs find of GNU findutils"
        )
    return None
