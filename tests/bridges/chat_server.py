"""An OpenAI-compatible server in a process of its own: it answers by a script, and may fail in many ways.

    python chat_server.py SCRIPT LOG SECONDS [FAULT ...]

SCRIPT is a JSON object: for the seed of a request, the message of its answer. LOG gets a line for
each whole answer, which takes SECONDS. Each request meets some of the faults, by chance, before it
is answered. The port is printed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

MOST_FAULTS = 3
"""Each request is answered after at most so many failures."""
HANG_SECONDS = 20.0
FAULTS = ("status", "busy", "hang", "cut", "garbage", "shape", "slow", "huge", "close")


def answer(asked: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an answer."""
    text = "messages" not in asked
    choice = {"text": message["content"]} if text else {"message": message}
    reason = "tool_calls" if message.get("tool_calls") else message.pop("finish", "stop")
    return {
        "id": "1",
        "object": "text_completion" if text else "chat.completion",
        "created": 0,
        "model": asked["model"],
        "choices": [{"index": 0, "finish_reason": reason, **choice}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: dict[str, Any]
    log: Path
    seconds: float
    faults: tuple[str, ...]
    asked: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)
        seed = str(asked.get("seed"))
        with self.lock:
            number = self.asked[seed]
            self.asked[seed] += 1
        rng = random.Random(f"{seed} {number}")
        if self.faults and number < MOST_FAULTS and rng.random() < 0.5:
            getattr(self, rng.choice(self.faults))()
            return
        time.sleep(self.seconds)
        message = dict(self.script.get(seed, {"role": "assistant", "content": "?"}))
        self.respond(200, json.dumps(answer(asked, message)).encode())
        with self.lock, self.log.open("a") as log:
            log.write(f"{seed}\n")

    def respond(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def status(self) -> None:
        self.respond(500, b'{"error": {"message": "broken"}}')

    def busy(self) -> None:
        self.respond(429, b'{"error": {"message": "busy"}}', Retry_After="0.05")

    def hang(self) -> None:
        time.sleep(HANG_SECONDS)

    def close(self) -> None:
        self.close_connection = True
        self.connection.close()

    def cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "500")
        self.end_headers()
        self.wfile.write(b'{"choices": [{"mess')
        self.close()

    def garbage(self) -> None:
        self.respond(200, b'{"choices": [{"message": {"content": NaN}, <html>')

    def shape(self) -> None:
        self.respond(200, b'{"choices": [], "usage": {"completion_tokens": "many"}}')

    def slow(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        for _ in range(round(HANG_SECONDS / 0.05)):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def huge(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(10**12))
        self.end_headers()
        for _ in range(200):
            self.wfile.write(b" " * 1_000_000)

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):  # the client left, or a fault closed the connection
            self.close_connection = True

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None: ...


def main() -> None:
    script, log, seconds, *faults = sys.argv[1:]
    Handler.script = json.loads(Path(script).read_text())
    Handler.log = Path(log)
    Handler.seconds = float(seconds)
    Handler.faults = tuple(faults)
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
