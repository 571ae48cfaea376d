"""Call sandboxes and judges for the episodes of one worker, which has only stand-ins for them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_core.calls.call import Call
from grpo_core.calls.deadline import describe
from grpo_core.calls.service_wire import (
    METHODS,
    BadValueError,
    pack,
    pack_content,
    pack_error,
    typed,
    unpack,
    unpack_files,
    unpack_list,
)
from grpo_core.protocol.environment import Services
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.judge import JudgeRequest
from grpo_core.protocol.sandbox import Limits, Program, Session

_MOST_CALLS = 1000
"""The most calls in progress for one worker; one with more counts as broken."""
_CLOSE_SECONDS = 10.0
"""How long sessions may take to end that an episode has left open."""


@dataclass(slots=True)
class _Borrower:
    """Hold what one episode has borrowed."""

    calls: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    sockets: set[str] = field(default_factory=set)
    """Paths of the sockets that its sessions may reach."""


class Lending:
    """Make the calls of services for the episodes of one worker, and end what they leave open."""

    def __init__(self, services: Services, send: Callable[[Mapping[str, Any]], None]) -> None:
        """Prepare the calls.

        Args:
            services: what is lent.
            send: sends a message to the worker.
        """
        self._services, self._send = services, send
        self._borrowers: dict[str, _Borrower] = {}
        self._handles = itertools.count()

    def admit(self, episode: str) -> None:
        """Allow an episode to call services."""
        self._borrowers[episode] = _Borrower()

    def allow_socket(self, episode: str, path: str) -> None:
        """Allow the sessions of an episode to reach a socket of this machine."""
        if (borrower := self._borrowers.get(episode)) is not None:
            borrower.sockets.add(path)

    def call(self, message: Mapping[str, Any], clock: Call) -> None:
        """Begin a call that a worker requests, and send its result once there is one.

        Args:
            message: the fields `call`, its number, `episode`, `service`, `method`, `arguments`.
            clock: limits the request during which the episode calls; the service may stop it.

        Raises:
            BadValueError: it is no valid call.
        """
        number = typed(message.get("call"), int, "call")
        borrower = self._borrowers.get(typed(message.get("episode"), str, "episode"))
        if borrower is None:  # the episode was closed while it called
            return
        taken = sum(len(each.calls) for each in self._borrowers.values())
        if number in borrower.calls or taken >= _MOST_CALLS:
            raise BadValueError(f"more than {_MOST_CALLS} calls at once, or two with one number")
        service, method = message.get("service"), message.get("method")
        arguments = message.get("arguments")
        if not isinstance(arguments, dict) or not isinstance(service, str):
            raise BadValueError("a call of a service has no arguments")
        if METHODS.get((service, str(method))) != arguments.keys():
            raise BadValueError(f"there is no method {service!s:.40}.{method!s:.40} of these names")
        with clock.current():
            task = asyncio.create_task(
                self._answer(number, borrower, f"{service}.{method}", arguments)
            )
        borrower.calls[number] = task
        # Not at the end of the coroutine: one that is dropped at once never begins.
        task.add_done_callback(lambda _: borrower.calls.pop(number, None))

    def drop(self, message: Mapping[str, Any]) -> None:
        """Cancel a call that its episode no longer waits for."""
        borrower = self._borrowers.get(str(message.get("episode")))
        number = message.get("drop")
        if borrower is not None and isinstance(number, int) and number in borrower.calls:
            borrower.calls[number].cancel()

    async def dismiss(self, episode: str) -> None:
        """Cancel the calls of an episode that has ended, and end the sessions it left open."""
        borrower = self._borrowers.pop(episode, None)
        if borrower is None:
            return
        calls = list(borrower.calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        endings = [asyncio.create_task(session.close()) for session in borrower.sessions.values()]
        if endings:
            await asyncio.wait(endings, timeout=_CLOSE_SECONDS)
        for ending in endings:
            ending.add_done_callback(lambda ending: ending.cancelled() or ending.exception())

    async def close(self) -> None:
        """Dismiss all episodes."""
        await asyncio.gather(*(self.dismiss(episode) for episode in list(self._borrowers)))

    async def _answer(
        self, number: int, borrower: _Borrower, method: str, arguments: Mapping[str, Any]
    ) -> None:
        """Make a call and send its result."""
        try:
            answer = {"result": number, "value": await self._value(borrower, method, arguments)}
        except Exception as error:  # noqa: BLE001 - services raise what they like
            text = str(error) if isinstance(error, GrpoError | ValueError) else describe(error)
            answer = {"result": number, "error": pack_error(error, text)}
        try:
            self._send(answer)
        except (TypeError, ValueError) as error:
            text = f"the result of {method} cannot be sent: {describe(error)}"
            self._send({"result": number, "error": pack_error(error, text)})

    async def _value(self, borrower: _Borrower, method: str, values: Mapping[str, Any]) -> Any:
        """Return the result of a call, as JSON data.

        Raises:
            BadValueError: an argument has another type.
        """
        match method:
            case "sandbox.run":
                sandbox = self._services.sandbox(typed(values["name"], str, "name"))
                outcomes = await sandbox.run(unpack_list(Program, values["programs"]))
                return [pack(list(row)) for row in outcomes]
            case "sandbox.session":
                return await self._open_session(borrower, values)
            case "judge.judge":
                judge = self._services.judge(typed(values["name"], str, "name"))
                judgements = await judge.judge(unpack_list(JudgeRequest, values["requests"]))
                return pack(list(judgements))
        return await self._use_session(borrower, method, values)

    async def _open_session(self, borrower: _Borrower, values: Mapping[str, Any]) -> int:
        """Open a session of a sandbox, and return the number by which the episode names it."""
        sandbox = self._services.sandbox(typed(values["name"], str, "name"))
        limits = None if values["limits"] is None else unpack(Limits, values["limits"])
        socket = typed(values["socket"], str | None, "socket")
        if socket is not None and socket not in borrower.sockets:
            raise GrpoError(
                "a session from a worker process reaches no socket but that of the endpoint that "
                f"its agent was given; {socket!r:.200} is none"
            )
        session = await sandbox.session(
            unpack_files(values["files"]),
            image=typed(values["image"], str | None, "image"),
            limits=limits,
            **({} if socket is None else {"socket": socket}),  # older sandboxes know none
        )
        handle = next(self._handles)
        borrower.sessions[handle] = session
        return handle

    async def _use_session(
        self, borrower: _Borrower, method: str, values: Mapping[str, Any]
    ) -> Any:
        """Call a session that the episode has opened."""
        handle = typed(values["handle"], int, "handle")
        if method == "session.close":
            session = borrower.sessions.pop(handle, None)
            return None if session is None else await session.close()
        if handle not in borrower.sessions:
            raise GrpoError("the session is closed")
        session = borrower.sessions[handle]
        if method == "session.write":
            return await session.write(unpack_files(values["files"]))
        if method == "session.read":
            path, limit = typed(values["path"], str, "path"), typed(values["limit"], int, "limit")
            content = await session.read(path, limit=limit)
            return None if content is None else pack_content(content)
        command: str | list[str] = typed(values["command"], str | list[str], "command")
        result = await session.exec(
            command,
            input=typed(values["input"], str, "input"),
            timeout=typed(values["timeout"], float | None, "timeout"),
            **({"of_policy": True} if typed(values["of_policy"], bool, "of_policy") else {}),
        )
        return pack(result)
