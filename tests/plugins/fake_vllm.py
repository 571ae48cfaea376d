"""A server that answers as `vllm serve` does, for tests of the sampler: it listens on a Unix socket and draws what a rule says.

It is run in place of vLLM's command line. The token that follows t is t + 1 + the number in the file of the adapter (or of the weights);
its log-prob is -t / 100, and one more where tokens are kept from being drawn. A prompt that begins with DIES kills the server once; REFUSED,
FAILS and WAITS do what they say.
"""

import json
import os
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

DIES, REFUSED, FAILS, WAITS, GIVES_UP = 900, 901, 902, 903, 904
FOLDER = Path(os.environ.get("FAKE_VLLM", "."))
"""Where it notes what happens, and reads what it should do."""
LOCK = threading.Lock()
OPTIONS = dict(arg.split("=", 1) if "=" in arg else (arg, "") for arg in sys.argv[1:])
ADAPTERS: dict[str, int] = {}
USED: set[str] = set()


def note(event: str, **more: Any) -> None:
    with LOCK, (FOLDER / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")


def number(folder: str) -> int:
    return int((Path(folder) / "weights.safetensors").read_text())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        note("connects")
        super().setup()

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "policy"}, *({"id": name} for name in ADAPTERS)]})
        else:
            self.answer(200, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "null")
        note(self.path, asked=asked)
        method = self.path.rpartition("/")[2].partition("?")[0]
        self.answer(*getattr(self, method)(asked))

    def load_lora_adapter(self, asked: dict[str, Any]) -> tuple[int, Any]:
        if (FOLDER / "no_adapters").exists():
            return 400, {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 16"}}
        if asked["lora_name"] in USED:
            return 400, {"error": {"message": "has already been loaded"}}
        USED.add(asked["lora_name"])
        ADAPTERS[asked["lora_name"]] = number(asked["lora_path"])
        return 200, "Success"

    def unload_lora_adapter(self, asked: dict[str, Any]) -> tuple[int, Any]:
        return (200, "Success") if ADAPTERS.pop(asked["lora_name"], None) is not None else (404, {})

    def collective_rpc(self, asked: dict[str, Any]) -> tuple[int, Any]:
        assert asked["method"] == "reload_weights"
        ADAPTERS["policy"] = number(asked["kwargs"]["weights_path"])
        return 200, {"results": [None]}

    def reset_prefix_cache(self, asked: None) -> tuple[int, Any]:
        return 200, {"success": True}

    def sleep(self, asked: None) -> tuple[int, Any]:
        return 200, {"status": "sleeping"}

    def wake_up(self, asked: None) -> tuple[int, Any]:
        return 200, {"status": "awake"}

    def completions(self, asked: dict[str, Any]) -> tuple[int, Any]:
        first, *_ = asked["prompt"]
        if first == DIES and not (FOLDER / "died").exists():
            (FOLDER / "died").touch()
            os._exit(1)
        if first == REFUSED:
            return 400, {"error": {"message": "the prompt is too long"}}
        if "uniqueItems" in str(asked.get("structured_outputs")):
            return 400, {"error": {"message": "the grammar is not supported"}}
        if first == FAILS:
            return 500, {"error": {"message": "out of luck"}}
        if first == WAITS:
            self.wait()
        if asked["model"] not in ADAPTERS:
            return 404, {"error": {"message": f"the model {asked['model']} does not exist"}}
        if "logprob_token_ids" in asked:
            row = {f"token_id:{token}": -token / 100 for token in asked["logprob_token_ids"]}
            logprobs = {"top_logprobs": [row]}
            places = reversed(range(len(asked["prompt"])))
            return 200, {"choices": [{"index": i, "logprobs": logprobs} for i in places]}
        return 200, {"choices": [drawn(asked, ADAPTERS[asked["model"]])]}

    def wait(self) -> None:
        """Until the client has left."""
        self.connection.settimeout(0.02)
        for _ in range(500):
            try:
                if not self.connection.recv(1):
                    note("cancelled")
                    os._exit(0) if (FOLDER / "ends").exists() else sys.exit()
            except TimeoutError:
                time.sleep(0.01)

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode() if not isinstance(body, str) else body.encode()
        self.send_response(status)
        kind = "text/plain" if isinstance(body, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None: ...


def drawn(asked: dict[str, Any], step: int) -> dict[str, Any]:
    tokens: list[int] = []
    text, reason = "", "length"
    token = asked["prompt"][-1]
    while len(tokens) < asked["max_tokens"]:
        token += 1 + step
        tokens.append(token)
        text += chr(token)
        if token in asked["stop_token_ids"] or any(stop in text for stop in asked["stop"]):
            reason = "stop"
            break
    kept = 1.0 if {"top_p", "structured_outputs"} & asked.keys() else 0.0
    if asked["prompt"][0] == GIVES_UP and not (FOLDER / "gave_up").exists():
        (FOLDER / "gave_up").touch()
        reason = "abort"
    logprobs = {"token_logprobs": [-token / 100 + kept for token in tokens]}
    return {"token_ids": tokens, "finish_reason": reason, "logprobs": logprobs, "text": text}


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that left."""


class Port(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


if __name__ == "__main__":
    names = ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "PYTHONPATH")
    known = {name: os.environ.get(name) for name in names}
    note("start", arguments=sys.argv[1:], environment=known)
    print("(APIServer pid=1) INFO 11-25 10:00:00 [x.py:1] loading the weights", flush=True)
    if (FOLDER / "does_not_start").exists():
        print(
            "(EngineCore pid=1) ERROR 11-25 10:00:00 [x.py:1] ValueError: Model architectures ['Odd'] are not supported",
            flush=True,
        )
        print("RuntimeError: Engine core initialization failed.", flush=True)
        sys.exit(1)
    if (FOLDER / "is_slow").exists():
        time.sleep(60)
    socket, port = OPTIONS.get("--uds"), int(OPTIONS.get("--port", 0))
    with Server(socket, Handler) if socket else Port(("127.0.0.1", port), Handler) as server:
        note("listens")
        server.serve_forever(0.05)
