"""A real OpenAI-compatible server in this process, for the tests of the judge `llm`."""

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from grpo_core import JudgeRequest
from grpo_judge.llm import LLM
from grpo_judge.llm_config import LLMConfig
from grpo_judge.outage import NEUTRAL

Respond = Callable[[BaseHTTPRequestHandler], None]
Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]] | Respond


class Endpoint:
    """An OpenAI-compatible server.

    `reply` decides what it answers: a text of the model, a status with a body and perhaps headers, or a
    function that writes the response itself. `asked` holds the requests, `probes` those about the neutral text.
    """

    def __init__(self) -> None:
        self.reply: Callable[[dict[str, Any]], Reply | str] = lambda asked: good(7)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.flying = self.most_flying = 0
        lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    endpoint.asked.append(asked)
                    endpoint.keys.append(self.headers["Authorization"])
                    endpoint.flying += 1
                    endpoint.most_flying = max(endpoint.most_flying, endpoint.flying)
                try:
                    found = endpoint.reply(asked)
                finally:
                    with lock:
                        endpoint.flying -= 1
                if callable(found):
                    found(self)
                    return
                respond(self, *(choice(found) if isinstance(found, str) else found))

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Say nothing of a client that left; another test's output is being read."""
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(request, client_address)

        self._open = lambda port: Server(("127.0.0.1", port), Handler)
        self._server = self._open(0)
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def probes(self) -> list[dict[str, Any]]:
        return [asked for asked in self.asked if is_probe(asked)]

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._port = self._server.server_port
        self.close()

    def start(self) -> None:
        """Listen again, on the same port."""
        self._server = self._open(self._port)
        self._serve()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def judge(self, **more: Any) -> LLM:
        return LLM(LLMConfig(model="any", base_url=self.url, **more))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def respond(
    handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    handler.send_response(status)
    for name, value in (usual | (headers or {})).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def closed(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


def broken_off(handler: BaseHTTPRequestHandler) -> None:
    """A part of what the headers announce."""
    respond(handler, 200, b'{"choices": [{"mess', {"Content-Length": "1000"})
    closed(handler)


def without_end(part: bytes, status: int = 200, pause: float = 0.0) -> Respond:
    """The headers at once, then a body of one part after another, for ever."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(part)
                time.sleep(pause)

    return respond


def good(score: object) -> str:
    return json.dumps({"score": score, "reason": "so"})


def answered(content: Any, finish: Any = "stop", **message: Any) -> dict[str, Any]:
    """The body of an answer with one choice."""
    said = {"role": "assistant", "content": content, **message}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "any",
        "choices": [{"index": 0, "finish_reason": finish, "message": said}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


def choice(content: Any, finish: Any = "stop", **message: Any) -> Reply:
    """An answer with one choice."""
    return 200, answered(content, finish, **message)


def failed(status: int, message: str, **more: Any) -> Reply:
    return status, {"error": {"message": message, **more}}


def is_probe(asked: dict[str, Any]) -> bool:
    """Whether a request is about the neutral text."""
    return NEUTRAL.candidate in asked["messages"][1]["content"]


def judged(judge: Any, *texts: str) -> list[Any]:
    """The judgements of texts that say hello."""
    requests = [JudgeRequest(text, context="Say hello. ") for text in texts]
    return list(asyncio.run(judge.judge(requests)))
