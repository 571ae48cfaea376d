"""Run the agent of an attempt, in the process that runs the environment's code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from grpo_core.plugins.versions import check_versions
from grpo_core.protocol.agent import AgentEnvironment, set_access
from grpo_core.protocol.endpoint import Access
from grpo_core.protocol.episode import Episode
from grpo_core.protocol.errors import MissingExtraError
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.judge.checks import BrokenContractError, awaited

RETURNED = "returned"
CUT_OFF = "cut off"
"""Keys of the result of a run: what the agent returned, or why its attempt was cut off."""
CUT_OFF_CODES = ("context_length_exceeded", "turns_exceeded")
"""Codes of the refusals that end an attempt as one that was cut off."""
MAX_OUTPUT_BYTES = 1_000_000
"""How much of each output of a command is kept."""
_CLIENT_SECONDS = 24 * 3600.0
"""How long a client waits for the policy; the run decides when an attempt has to end."""


class AgentRun(Episode):
    """Run an agent once, in the form of an episode without replies.

    Args:
        env: the environment.
        task: the task.
        variables: the environment variables of its command.
    """

    def __init__(
        self, env: AgentEnvironment[Any], task: Task[Any], variables: Mapping[str, str]
    ) -> None:
        self._env, self._task, self._variables = env, task, variables

    async def open(self) -> Sequence[Message]:
        """Load what the agent needs, which takes seconds the first time, and say nothing.

        Raises:
            MissingExtraError: the package openai is missing.
        """
        if not self._env.has_command():
            await asyncio.to_thread(_load_openai)
        return ()

    async def agent(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Run the agent with the access in `fields`.

        Returns:
            What it returned, under RETURNED, or a refusal that ended it, under CUT_OFF.

        Raises:
            BrokenContractError: what it returned is not JSON data.
            Exception: whatever the agent raised.
        """
        access = Access(**fields)
        set_access(access)
        if self._env.has_command():
            command = self._env.command(self._task)
            return {RETURNED: await _run_command(command, self._task, access, self._variables)}
        async with open_client(access) as client:
            try:
                returned = await awaited(self._env.agent(self._task, client), "agent")
            except Exception as error:
                if getattr(error, "code", None) in CUT_OFF_CODES:
                    return {CUT_OFF: str(error)}
                raise
        try:
            return {RETURNED: json.loads(json.dumps(returned, allow_nan=False))}
        except (TypeError, ValueError, RecursionError) as error:
            raise BrokenContractError(
                f"agent() returned what is not JSON data ({error}); return numbers, texts, lists "
                "and dictionaries"
            ) from None

    async def reply(self, messages: Sequence[Message]) -> None:
        """Raise, since an agent asks and is not asked."""
        raise BrokenContractError("an attempt by an agent has no replies")

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Raise, since the environment judges by other means."""
        raise BrokenContractError("an attempt by an agent is judged by the environment itself")


@asynccontextmanager
async def open_client(access: Access) -> AsyncIterator[Any]:
    """Open the client of the `openai` package that has an access.

    Raises:
        MissingExtraError: the package is missing.
    """
    openai = _load_openai()
    # No proxy is in between, and no certificate is needed, which would take long to load.
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False)
    client = openai.AsyncOpenAI(
        base_url=access.base_url,
        api_key=access.key,
        timeout=_CLIENT_SECONDS,
        http_client=http_client,
    )
    try:
        yield client
    finally:
        await client.close()


def _load_openai() -> Any:
    """Return the package openai, with the parts that it would load late.

    Raises:
        MissingExtraError: it is missing.
    """
    check_versions("an agent", "serve")
    try:
        import openai
        import openai.resources.chat
    except ImportError:
        raise MissingExtraError("an agent", "serve", package="openai") from None
    return openai


async def _run_command(
    command: Sequence[str], task: Task[Any], access: Access, variables: Mapping[str, str]
) -> dict[str, str | int]:
    """Return the status and the outputs of an agent's command, which is ended if this is.

    Raises:
        BrokenContractError: the command is not a list of texts.
        OSError: it cannot be started.
    """
    if isinstance(command, str) or not all(isinstance(part, str) for part in command):
        raise BrokenContractError(
            "command() returned no list of texts; return the program and its arguments"
        )
    environ = {
        **variables,
        "OPENAI_BASE_URL": access.base_url,
        "OPENAI_API_KEY": access.key,
        "OPENAI_MODEL": access.model,
    }
    prompt: Any = task.prompt
    if not isinstance(prompt, str):
        prompt = [message.to_json() for message in prompt]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            _, stdout, stderr = await asyncio.gather(
                _write(process.stdin, json.dumps(prompt).encode()),
                _read(process.stdout),
                _read(process.stderr),
            )
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return {"status": status, "stdout": stdout, "stderr": stderr}


async def _write(stream: asyncio.StreamWriter, body: bytes) -> None:
    """Write everything and close the stream; the program need not read it."""
    with contextlib.suppress(ConnectionError):
        stream.write(body)
        await stream.drain()
    stream.close()


async def _read(stream: asyncio.StreamReader) -> str:
    """Return the beginning of a stream as text; the rest is read and dropped."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        kept += chunk[: MAX_OUTPUT_BYTES - len(kept)]
    return kept.decode("utf-8", "replace")
