"""A real OpenAI-compatible server in this process, for the tests of the judge `llm`."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from grpo_core import JudgeRequest
from grpo_judge.llm import LLM
from grpo_judge.llm_config import LLMConfig
from grpo_judge.outage import NEUTRAL

Reply = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]


class Endpoint:
    """An OpenAI-compatible server.

    `reply` decides what it answers: a text of the model, a status with a body, or a function that
    writes the response itself. `asked` holds the requests, `probes` those about the neutral text.
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
                status, body = (200, answered(found)) if isinstance(found, str) else found
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

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


def good(score: object) -> str:
    return json.dumps({"score": score, "reason": "so"})


def answered(text: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "any",
        "choices": [choice],
        "usage": usage,
    }


def is_probe(asked: dict[str, Any]) -> bool:
    """Whether a request is about the neutral text."""
    return NEUTRAL.candidate in asked["messages"][1]["content"]


def judged(judge: Any, *texts: str) -> list[Any]:
    """The judgements of texts that say hello."""
    requests = [JudgeRequest(text, context="Say hello. ") for text in texts]
    return list(asyncio.run(judge.judge(requests)))
