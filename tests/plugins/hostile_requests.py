"""Requests that a stranger might send to the endpoint, drawn from a seed; the bytes are written here, since clients refuse to."""

import gzip
import json
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hello"}


def nested(depth: int, leaf: Any, step: Callable[[Any], Any]) -> Any:
    for _ in range(depth):
        leaf = step(leaf)
    return leaf


def schemas(rng: random.Random) -> Any:
    """A schema that is deep, long, wide, endless, wrong, or slow to compile."""
    word = rng.choice("abcdef")
    return rng.choice(
        [
            lambda: nested(rng.randint(1, 140), {"type": "string"}, lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}),
            lambda: nested(rng.randint(1, 10), {"type": "null"}, lambda s: {"anyOf": [s, {"type": "array", "items": s}]}),
            lambda: {"allOf": [{"type": "string", "pattern": f".*[a-z].{{{10 + i}}}"} for i in range(rng.choice([2, 20]))]},
            lambda: {"allOf": [{"anyOf": [{"required": [f"{i}{j}"], "properties": {f"{i}{j}": {"type": "string"}}} for j in range(2)]} for i in range(rng.choice([8, 30]))]},
            lambda: {"allOf": [{"type": "integer", "multipleOf": rng.choice([7, 99_991])} for _ in range(rng.choice([1, 5]))]},
            lambda: {"type": "string", "pattern": rng.choice([f"^({word}{{1,100000}}){{1,100000}}$", f"({word}+)+$", "(" * 3000, "[", f"(?={word})x", r"(a)\1", f".*{word}.{{900}}", "\\p{L}{1,5000}"])},
            lambda: {"type": "array", "items": {"type": "string"}, rng.choice(["minItems", "maxItems"]): rng.choice([10**9, 10**30, -1, 1.5, "x"])},
            lambda: {"type": "string", rng.choice(["minLength", "maxLength"]): 10**9},
            lambda: {"enum": [f"{word}{i}" for i in range(rng.choice([3, 5000, 60_000]))]},
            lambda: {"type": "object", "properties": {f"{word}{i}": {"type": "string"} for i in range(rng.choice([3, 300, 3000]))}},
            lambda: {"$ref": rng.choice(["#", "#/$defs/a", "http://127.0.0.1:1/x", "file:///etc/passwd", 5, "#/x/%00"]), "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            lambda: {"$defs": {"d0": {"type": "string"}, **{f"d{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{i - 1}"} for k in "ab"}, "required": ["a", "b"]} for i in range(1, 40)}}, "$ref": "#/$defs/d39"},
            lambda: {"const": rng.choice(["é\u4e00", "\x00", 10**400, 1e308, [], {}])},
            lambda: {"type": rng.choice(["x", 5, None, [], ["string", 3]])},
            lambda: {"type": "object", "x-guidance": {"whitespace_pattern": "(a{1,1000}){1,1000}"}},
            lambda: {"type": "boolean"},
        ]
    )()  # fmt: skip


def tools(rng: random.Random) -> Any:
    return [
        {"type": "function", "function": {"name": rng.choice(["add", "a.b", "x" * 65]), "description": "d" * rng.choice([0, 10, 300_000]), "parameters": rng.choice([lambda: schemas(rng), dict, list, lambda: {"properties": {"a": {"type": [{}], "anyOf": [3]}}}])()}}
        for _ in range(rng.choice([1, 2, 300]))
    ]  # fmt: skip


def messages(rng: random.Random) -> Any:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": rng.choice(["{}", "[" * 5000, '{"a":' * 500 + "1" + "}" * 500, "9" * 6000, "NaN"])}}  # fmt: skip
    return rng.choice(
        [
            lambda: [USER] * rng.choice([1, 3, 400, 9000, 60_000]),
            lambda: [{"role": "user", "content": rng.choice(["x", "\x00", "é", "<|im_end|>", " "]) * rng.choice([1, 5000, 3_000_000])}],
            lambda: [{"role": "user", "content": [{"type": "text", "text": "x"}] * rng.choice([1, 3000, 30_000])}],
            lambda: [USER, {"role": "assistant", "tool_calls": [call] * rng.choice([1, 2, 2000])}, {"role": "tool", "tool_call_id": "a", "content": "5"}],
            lambda: [None] * rng.choice([1, 50_000]),
            lambda: [{"role": rng.choice(["x" * 100_000, "user", 5]), "content": rng.choice([5, None, {}, [[]], [None] * 9000])}],
            lambda: [{**USER, **{f"k{i}": i for i in range(rng.choice([1, 30_000]))}}],
            lambda: rng.choice([5, {}, "x" * 10**6, None, []]),
        ]
    )()  # fmt: skip


def numbers(rng: random.Random) -> Any:
    return rng.choice([0, 1, -1, 2, 0.5, 1e-300, 1e300, 10**30, 2**63, True, None, "1", 99_999])


def body(rng: random.Random) -> bytes:
    """A body, mostly JSON."""
    asked: dict[str, Any] = {"model": "policy", "max_tokens": rng.choice([1, 4, 8])}
    if rng.random() < 0.3:
        asked["prompt"] = rng.choice(["x", "x" * 500_000, [5] * rng.choice([1, 2000, 500_000]), [10**9], ["a"] * rng.choice([2, 200]), [[1], [2, 3]], [], [None] * 50_000])  # fmt: skip
    else:
        asked["messages"] = messages(rng) if rng.random() < 0.5 else [USER]
    if rng.random() < 0.4:
        schema = {"name": "s", "schema": schemas(rng)}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif rng.random() < 0.3:
        asked["tools"] = tools(rng)
    for name in ("temperature", "top_p", "n", "seed", "max_tokens", "stream", "logprobs"):
        if rng.random() < 0.08:
            asked[name] = numbers(rng)
    if rng.random() < 0.1:
        asked["stop"] = rng.choice(["", "x", ["x"] * 20, "y" * 100_000, [None], ["a", "b"]])
    if rng.random() < 0.1:
        asked["metadata"] = {f"k{i}": i for i in range(rng.choice([1, 20_000]))}
    if rng.random() < 0.05:
        asked["k" * rng.choice([5, 200_000])] = 1
    data = json.dumps(asked).encode()
    damage = rng.random()
    if damage < 0.7:
        return data
    cut = rng.randrange(len(data))
    return rng.choice(
        [
            lambda: data[:cut],
            lambda: data[:cut] + bytes(rng.randrange(256) for _ in range(4)) + data[cut:],
            lambda: gzip.compress(data),
            lambda: data.decode().encode("utf-16"),
            lambda: b"[" * rng.choice([10, 300, 300_000]),
            lambda: b'{"a":' * rng.choice([10, 100_000]),
            lambda: b'"' * rng.choice([1, 500_000]) + b"\\" * 3,
            lambda: b'{"messages":"' + b"\\ud800" * rng.choice([1, 100_000]) + b'"}',
            lambda: b'{"n":' + b"9" * rng.choice([20, 5000, 200_000]) + b"}",
            lambda: b"",
            lambda: data + b" " * rng.choice([1, 2**21]),
        ]
    )()


@dataclass(frozen=True)
class Hostile:
    """The bytes of one connection."""

    data: bytes
    is_refusable: bool
    """Whether a web page may have sent it, or the key is wrong."""


def hostile(rng: random.Random, port: int, key: str) -> Hostile:
    """Draw what one client sends."""
    content = body(rng)
    good_host, bad = f"127.0.0.1:{port}", False
    host, kind, path, method = good_host, "application/json", rng.choice([CHAT, CHAT, TEXT]), "POST"
    lines: list[str] = []
    odd = rng.random()
    if odd < 0.08:
        host = rng.choice(["evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "[::1", "0x7f.1", "2130706433", "localhost:x", "a@localhost", "10.0.0.1", "localhost localhost", "LOCALHOST.evil"])  # fmt: skip
        bad = True
    elif odd < 0.16:
        origin = rng.choice(["null", "http://evil.example", "https://localhost", f"http://localhost:{port + 1}", "http://", "file://", f"http://127.0.0.1:{port}@evil.example", f"http://127.0.0.1:{port}/"])  # fmt: skip
        lines.append(f"Origin: {origin}")
        bad = True
    elif odd < 0.2:
        lines.append(f"Sec-Fetch-Site: {rng.choice(['cross-site', 'same-site', 'x'])}")
        bad = True
    elif odd < 0.24:
        host = rng.choice(["localhost", f"LocalHost:{port}", "localhost.", f"[::1]:{port}", "127.0.0.1", "127.9.9.9"])  # fmt: skip
    if rng.random() < 0.08:
        kind = rng.choice(["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x" * 500])  # fmt: skip
        bad = True
    if rng.random() < 0.08:
        key, bad = rng.choice(["", "x", "x" * 5000, "é"]), True
    if rng.random() < 0.1:
        path = rng.choice(["/", "/v1/models", "/health", "/openapi.json", "/v1/models/" + "x" * 3000, "/%00%ff", "//[", "*", "http://[/", "/v1/chat/completions/" + "../" * 50])  # fmt: skip
        method = rng.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "X" * 100, "TRACE"])
        bad = True
    length = rng.choice([len(content)] * 60 + [len(content) + 5, max(0, len(content) - 5), 10**12])
    lines += [f"Host: {host}", f"Content-Type: {kind}", f"Authorization: Bearer {key}"]
    if rng.random() < 0.1:
        lines += rng.choice([["Content-Encoding: gzip"], ["Expect: 100-continue"], ["Connection: Upgrade", "Upgrade: websocket"], ["X-A: " + "y" * 70_000], [f"X-{i}: y" for i in range(2000)], ["Host: localhost"], ["no colon"], ["X: \x00"]])  # fmt: skip
    if rng.random() < 0.1:
        step = rng.choice([1, 100, 70_000]) if len(content) < 5000 else 70_000
        parts = [content[i : i + step] for i in range(0, len(content), step)]
        content = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        content += rng.choice([b"0\r\n\r\n", b"zz\r\n"])
        lines.append("Transfer-Encoding: chunked")
    else:
        lines.append(f"Content-Length: {length}")
    version = rng.choice(["HTTP/1.1"] * 20 + ["HTTP/1.0", "HTTP/9", ""])
    head = "\r\n".join([f"{method} {path} {version}".rstrip(), *lines, "Connection: close", "", ""])
    data = head.encode("latin-1") + content
    if rng.random() < 0.03:
        data = bytes(rng.randrange(256) for _ in range(rng.choice([1, 100, 5000])))
    return Hostile(data, bad)


def exchanged(port: int, data: bytes, *, seconds: float, leaves: bool = False) -> tuple[int, bytes]:
    """Send bytes over a connection of their own; return the status of the answer, 0 for none, and its body."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.settimeout(0.05)
        waiting, end = memoryview(data), time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if waiting:
                    waiting = waiting[connection.send(waiting[:262_144]) :]
                    continue
                if leaves:
                    break
                part = connection.recv(262_144)
            except TimeoutError:
                if _is_whole(received):
                    break
                if waiting:  # the server may have answered already
                    try:
                        part = connection.recv(262_144)
                    except (TimeoutError, OSError):
                        continue
                    received += part
                continue
            except OSError:
                break
            if not part:
                break
            received += part
            if _is_whole(received):
                break
    head, _, rest = received.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    return (int(words[1]) if len(words) > 1 else 0), rest


def _is_whole(received: bytes) -> bool:
    head, separator, rest = received.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return bool(separator) and len(rest) >= int(line.partition(b":")[2])
    return rest.endswith(b"0\r\n\r\n")
