"""Define the episode whose tools answer: methods that see the task and the episode's state."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Generic

from grpo_core.protocol.episode import Episode
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.tool_calling import (
    DescribedTool,
    as_message,
    fault_text,
    filled,
    invoke,
    refusal,
    result_text,
)
from grpo_core.protocol.tool_calls import calls_of
from grpo_core.protocol.tools import tools_of
from grpo_core.protocol.types import Data, Message, Task, ToolCall


class ToolEpisode(Episode, Generic[Data]):
    """Answers the policy's calls by its methods that are marked by `tool`.

    A turn without a call ends it. The environment returns `tools_of` the class from `tools()`, by
    which the policy is told of them, and an object of it from `episode(task)`.

    Args:
        task: the task of the attempt.
    """

    tool_seconds: ClassVar[float] = 5.0
    """The deadline for all calls of one turn.

    It has to be shorter than `timeout_seconds` of the environment, which ends the worker.
    """
    concurrent: ClassVar[bool] = True
    """Whether async tools of one turn run at the same time, and not one after another."""

    def __init__(self, task: Task[Data]) -> None:
        self.task = task

    def tools(self) -> Sequence[Callable[..., object]]:
        """Return the tools that answer calls: the marked methods."""
        return tools_of(self)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the results of the calls in the last turn, or None if it holds none."""
        return await answers_in_time(
            self.tools(),
            messages[-1],
            task=self.task,
            seconds=self.tool_seconds,
            concurrent=self.concurrent,
        )


async def answers_in_time(
    tools: Sequence[Callable[..., object]],
    message: Message | str,
    *,
    task: Task[Any] | None = None,
    seconds: float,
    concurrent: bool = True,
) -> list[Message] | None:
    """Make the tool calls in `message` as `answers` does, under a deadline, also of async tools.

    A call that takes too long is given up, and the policy is told; calls after it are not made. A
    plain function runs in a thread of its own, so that it does not hold other episodes.

    Args:
        tools: The functions.
        message: The policy's turn.
        task: Fills in the parameters of the type `Task`.
        seconds: The deadline of all calls together.
        concurrent: Whether neighbouring calls of async tools run at the same time. Plain functions
            run one after another.

    Raises:
        GrpoError: a tool raised it, as for a sandbox that failed; it is no result of the policy's.
    """
    calls = calls_of(message)
    if not calls:
        return None
    by_name = {tool.__name__: filled(tool, task) for tool in tools}
    plain = {tool.__name__ for tool in tools if not _is_async(tool)}
    end = asyncio.get_running_loop().time() + seconds
    texts: list[str] = []
    for together in _groups(calls, alone=plain if concurrent else set(by_name)):
        results = await asyncio.gather(
            *(_timed_result(by_name, call, end, seconds, call.name in plain) for call in together),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
            texts.append(result)
    return [as_message(text) for text in texts]


def _is_async(tool: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(tool.call if isinstance(tool, DescribedTool) else tool)


def _groups(calls: Sequence[ToolCall], *, alone: set[str]) -> Iterator[list[ToolCall]]:
    """Yield calls of the tools `alone` one by one, and runs of neighbouring other ones together."""
    numbered = [(number if call.name in alone else -1, call) for number, call in enumerate(calls)]
    for _, group in groupby(numbered, key=lambda pair: pair[0]):
        yield [call for _, call in group]


async def _timed_result(
    tools: Mapping[str, Callable[..., object]],
    call: ToolCall,
    end: float,
    seconds: float,
    in_thread: bool,
) -> str:
    """Make one call until the time `end`, and return the text that the policy gets."""
    if refused := refusal(tools, call):
        return refused
    left = end - asyncio.get_running_loop().time()
    if left <= 0:
        return f"error: {call.name} was not called, as the calls before took {seconds:g} s"
    work = partial(invoke, tools[call.name], call.arguments)
    try:
        async with asyncio.timeout(left) as timeout:
            value = await _in_thread(work) if in_thread else work()
            return result_text(await value if inspect.isawaitable(value) else value)
    except GrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the policy is told
        if timeout.expired():
            return f"error: {call.name} took longer than {seconds:g} s"
        return fault_text(call.name, error)


async def _in_thread(work: Callable[[], object]) -> object:
    """Return the result of `work` in a thread of its own.

    If the caller gives up, Python code in the thread is stopped. One that waits in C code is left
    behind, and does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[object, Exception | None]] = loop.create_future()

    def deliver(value: object, error: Exception | None) -> None:
        if not future.done():
            future.set_result((value, error))

    def run() -> None:
        try:
            outcome: tuple[object, Exception | None] = work(), None
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            outcome = None, error
        except SystemExit:  # the caller has given up
            return
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, *outcome)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        value, error = await future
    except asyncio.CancelledError:
        stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
        stop(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise
    if error is not None:
        raise error
    return value
