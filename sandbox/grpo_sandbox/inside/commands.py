"""Serves one request of a session in a child: runs a command, or writes or reads files.

Like a call, a child reads its own request from the stream and gives up all rights before it does
anything in the folder, in which commands of the policy may have left whatever they like. No process
of a command is left when the next child starts, so nothing changes while a child looks at it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from typing import Any, NoReturn

from grpo_sandbox.inside.call import RESULT, enter_place, read_body
from grpo_sandbox.inside.filter import SystemCallFilter
from grpo_sandbox.inside.frames import unpack
from grpo_sandbox.inside.places import OwnNamespaces, OwnUid, wipe
from grpo_sandbox.inside.values import MAX_ERROR

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ISOLATED = {
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",  # no module beside a script, or in the working folder
    # A repository of the policy's names programs of its own; these two run in almost any command.
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "core.hooksPath",
    "GIT_CONFIG_VALUE_1": "/dev/null",
}
"""Variables of a command that runs nothing that earlier commands have left for it."""
FILE = b"f"
"""Precedes the content of a file in the result of a read, which is empty if there is no file."""
WRITTEN = b"w"
"""The result of a write that has succeeded; any other result says why it has not."""
_CHUNK = 1 << 20


def run_command(
    head: dict[str, Any],
    place: OwnUid | OwnNamespaces,
    system_calls: SystemCallFilter | None,
    writers: dict[str, int],
) -> NoReturn:
    """Become the command that comes next on the stream; its result says why that is impossible."""
    request, text = unpack(read_body(head))
    home = place.open_home() if request["isolated"] else place.folder
    enter_place(head, place, system_calls, writers, stdin=_as_stdin(text))
    os.set_inheritable(RESULT, False)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    environment = {"HOME": home, "TMPDIR": home, "PATH": PATH, "LANG": "C.UTF-8"}
    if request["isolated"]:
        environment |= ISOLATED
    try:
        arguments = [text.encode("utf-8", "surrogatepass") for text in request["command"]]
        os.execvpe(arguments[0], arguments, environment)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _claim(f"the program cannot be started: {reason}"[:MAX_ERROR].encode())


def write_files(
    head: dict[str, Any],
    place: OwnUid | OwnNamespaces,
    system_calls: SystemCallFilter | None,
    writers: dict[str, int],
) -> NoReturn:
    """Write the files that come next on the stream, in place of whatever is at their paths."""
    request, content = unpack(read_body(head))
    enter_place(head, place, system_calls, writers, stdin=os.open(os.devnull, os.O_RDONLY))
    os.umask(0o022)
    try:
        for path, size in request["files"]:
            os.chdir(place.folder)
            _write(path, content[:size])
            content = content[size:]
    except OSError as error:
        _claim(f"{error.strerror}"[:MAX_ERROR].encode())
    _claim(WRITTEN)


def read_file(
    head: dict[str, Any],
    place: OwnUid | OwnNamespaces,
    system_calls: SystemCallFilter | None,
    writers: dict[str, int],
) -> NoReturn:
    """Claim the content of the file that the stream names; nothing if it is no regular file."""
    request, _ = unpack(read_body(head))
    enter_place(head, place, system_calls, writers, stdin=os.open(os.devnull, os.O_RDONLY))
    content = None
    with contextlib.suppress(OSError):
        content = _content(request["path"], request["limit"])
    _claim(b"" if content is None else FILE + content)


def _as_stdin(text: memoryview) -> int:
    """Return a descriptor from which `text` can be read.

    What does not fit into a pipe at once is written by a process that the supervisor inherits. It
    ends when it has written everything, or when no process is left that could read it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while text:
            text = text[os.write(writer, text) :]
    if text:
        first = os.fork()
        if first == 0:
            if os.fork() == 0:
                _feed(writer, text)
            os._exit(0)
        os.waitpid(first, 0)
    os.close(writer)
    return reader


def _feed(writer: int, text: memoryview) -> NoReturn:
    """Write `text` with no other descriptor open, and end."""
    os.closerange(0, writer)
    os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_blocking(writer, True)
    with contextlib.suppress(OSError):  # nobody reads it any more
        while text:
            text = text[os.write(writer, text) :]
    os._exit(0)


def _write(path: str, content: memoryview) -> None:
    """Write one file; its path is relative to the working folder, and has no "..".

    Whatever stands in the way is removed, and folders of any mode are made writable; a link is
    never followed.
    """
    *folders, name = os.fsencode(path).split(b"/")
    for folder in folders:
        mode = _mode(folder)
        if mode is not None and not stat.S_ISDIR(mode):
            os.unlink(folder)
            mode = None
        if mode is None:
            os.mkdir(folder)
        else:
            os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)
        os.chdir(folder)
    mode = _mode(name)
    if mode is not None and stat.S_ISDIR(mode):
        os.chmod(name, stat.S_IRWXU)
        wipe(os.fsdecode(name))
        os.chdir("..")
        os.rmdir(name)
    elif mode is not None:
        os.unlink(name)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    while content:
        content = content[os.write(descriptor, content) :]
    os.close(descriptor)


def _content(path: str, limit: int) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes, reached through no link."""
    *folders, name = os.fsencode(path).split(b"/")
    for folder in folders:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return None
        os.chdir(folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        return None
    parts = []
    while part := os.read(descriptor, _CHUNK):
        parts.append(part)
    return b"".join(parts)


def _mode(name: bytes) -> int | None:
    """Return the mode of the file at `name`, or None if there is no file."""
    try:
        return os.lstat(name).st_mode
    except FileNotFoundError:
        return None


def _claim(result: bytes) -> NoReturn:
    rest = memoryview(result)
    while rest:
        rest = rest[os.write(RESULT, rest) :]
    os._exit(0)
