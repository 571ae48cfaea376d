"""Run a server inside a session of a sandbox, in which each request starts it anew."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from grpo_core import Session
from grpo_mcp.guard import UnreadableResultError, read_message

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_DRIVER = """
import json, subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=-1, stdout=-1, text=True)
answer = ""
for line in sys.stdin.read().splitlines():
    server.stdin.write(line + "\\n")
    server.stdin.flush()
    wanted = json.loads(line).get("id")
    while wanted is not None:
        answer = server.stdout.readline()
        if not answer:
            sys.exit(1)
        try:
            told = json.loads(answer)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("id") == wanted and "method" not in told:
            break
sys.stdout.write(answer)
sys.stdout.flush()
server.kill()
"""
"""Runs in the jail: it hands requests to the server one by one and prints the last answer."""

_INTERNAL_ERROR = -32603
"""The protocol's code for a call that could not be made."""
_LIMITS = {
    "output_limit": "the result is longer than the session allows",
    "timeout_cpu": "the call took more CPU time than the session allows",
    "timeout_wall": "the call took longer than the session allows",
    "oom": "the call took more memory than the session allows",
}
"""What the policy is told of a call that reached a limit, by the status of the command."""


@contextlib.asynccontextmanager
async def session_transport(
    session: Session, command: Sequence[str]
) -> AsyncIterator[TransportStreams]:
    """Connect a client with a server that runs in a session, and yield the two streams.

    A command of a session ends with its processes, so the server is started for each request and
    greeted again. It keeps what it writes into the session's folder, and nothing else. The jail
    needs `python3`.

    Args:
        session: the session, which the caller closes.
        command: the server's program and its arguments, as they are in the jail.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    answers, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, requests = anyio.create_memory_object_stream[SessionMessage](0)

    async def answer() -> None:
        greeting: list[str] = []
        async with answers, requests:
            async for sent in requests:
                line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                method = json.loads(line).get("method")
                if "id" not in json.loads(line):
                    greeting += [line] if method == "notifications/initialized" else []
                    continue
                text = await _answer(session, command, [*greeting, line])
                if text is None:
                    return  # the client sees that the connection has ended
                if method == "initialize":
                    greeting = [line]
                try:
                    await answers.send(read_message(text))
                except UnreadableResultError as error:  # an answer, whatever it looks like
                    await answers.send(UnreadableResultError(str(error)))

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        yield from_server, to_server
        group.cancel_scope.cancel()


async def _answer(session: Session, command: Sequence[str], lines: Sequence[str]) -> str | None:
    """Return the server's answer to the last of some messages; None if it ended before."""
    result = await session.exec(
        ["python3", "-I", "-c", _DRIVER, *command], input="".join(f"{line}\n" for line in lines)
    )
    limit = _LIMITS.get(result.status)
    if limit is None:
        return result.stdout if result.status == "ok" and result.exit_code == 0 else None
    error = {"code": _INTERNAL_ERROR, "message": limit}
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(lines[-1])["id"], "error": error})
