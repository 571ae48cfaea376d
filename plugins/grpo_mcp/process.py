"""Run a server as a child process, and read its output in bounded memory.

The transport of the SDK keeps a line of any length.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from grpo_mcp.guard import MAX_MESSAGE_BYTES, UnreadableResultError, read_message

if TYPE_CHECKING:
    from anyio.abc import Process
    from mcp.client._transport import TransportStreams

_CHUNK_BYTES = 65_536
_GRACE_SECONDS = 2.0
"""How long a server may take to end by itself, and then to end when it is told to."""
_POLL_SECONDS = 0.01
_FLUSH_SECONDS = 0.5


@contextlib.asynccontextmanager
async def process_transport(
    command: Sequence[str], variables: Mapping[str, str], log: IO[str]
) -> AsyncIterator[TransportStreams]:
    """Start a server, yield the two streams to it, and end it with its descendants.

    Args:
        command: its program and arguments.
        variables: environment variables besides the few that it gets anyway.
        log: takes its standard error.

    Raises:
        OSError: it cannot be started.
    """
    import anyio
    from mcp.client.stdio import get_default_environment
    from mcp.shared.message import SessionMessage

    process = await anyio.open_process(
        [*command],
        env={**get_default_environment(), **variables},
        stderr=log,
        start_new_session=True,
    )
    from_process, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_send, to_process = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process, from_process)
        group.start_soon(_write, process, to_process, from_process)
        try:
            yield received, to_send
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                to_send.close()
                await _end(process)
            group.cancel_scope.cancel()


async def _read(process: Process, messages: Any) -> None:
    """Pass on the lines of a process's output as messages; what is too long is dropped."""
    import anyio

    assert process.stdout is not None
    line, is_cut = bytearray(), False
    async with messages:
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, OSError):
            while True:
                first, *others = (await process.stdout.receive(_CHUNK_BYTES)).split(b"\n")
                for number, part in enumerate((first, *others)):
                    if number > 0:
                        if not await _pass_on(bytes(line), is_cut, messages):
                            await _drain(process)
                            return
                        line, is_cut = bytearray(), False
                    is_cut = is_cut or len(line) + len(part) > MAX_MESSAGE_BYTES
                    if not is_cut:
                        line += part
                    elif len(line) > _CHUNK_BYTES:
                        del line[_CHUNK_BYTES:]  # the beginning says whether it was a message


async def _pass_on(line: bytes, is_cut: bool, messages: Any) -> bool:
    """Pass on what a line says; return whether somebody reads it."""
    import anyio

    item: Any
    try:
        if is_cut:
            reason = f"it has more than {MAX_MESSAGE_BYTES} bytes"
            raise UnreadableResultError(reason, is_message=b'"jsonrpc"' in line)
        item = read_message(line)
    except UnreadableResultError as error:
        item = error
    try:
        await messages.send(item)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return False
    return True


async def _drain(process: Process) -> None:
    """Drop the rest of the output, for which a server that ends may wait."""
    import anyio

    assert process.stdout is not None
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, OSError):
        while True:
            await process.stdout.receive(_CHUNK_BYTES)


async def _write(process: Process, messages: Any, from_process: Any) -> None:
    """Write messages to a process's input; if it takes none, the connection ends."""
    import anyio

    assert process.stdin is not None
    try:
        async with messages:
            async for sent in messages:
                line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(f"{line}\n".encode())
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        await from_process.aclose()


async def _end(process: Process) -> None:
    """End a process: by the end of its input, by a signal, or by force, with its descendants."""
    import anyio

    assert process.stdin is not None
    with anyio.move_on_after(_FLUSH_SECONDS):
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
    for ending in (None, signal.SIGTERM, signal.SIGKILL):
        if ending is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, ending)
        with anyio.move_on_after(_GRACE_SECONDS):
            while process.returncode is None:  # noqa: ASYNC110 - wait() waits for its pipes, too
                await anyio.sleep(_POLL_SECONDS)
        if process.returncode is not None:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind
    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.aclose()
