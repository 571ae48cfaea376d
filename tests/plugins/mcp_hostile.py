"""A server of the standard library alone that does to its client whatever its argument says, in lines of JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

KIND = sys.argv[1]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
TOOL = {"name": "say", "description": "Say something.", "inputSchema": SCHEMA}
BAD_RESULTS = {
    "half a pair": '{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "\\ud800"}]}}',
    "deep": '{"jsonrpc": "2.0", "id": %d, "result": {"content": ' + "[" * 5000 + "]" * 5000 + "}}",
    "cut": '{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type',
    "no content": '{"jsonrpc": "2.0", "id": %d, "result": {"content": 5}}',
    "no result": '{"jsonrpc": "2.0", "id": %d}',
    "another id": '{"jsonrpc": "2.0", "id": 9%d000, "result": {"content": []}}',
    "no id": '{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "no"}}  %d',
    "long": '{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "' + "x" * 9_000_000 + '"}]}}',
}  # fmt: skip


def write(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def flood(**message: Any) -> None:
    while True:
        write(**message)


def used(name: str, by: int) -> str:
    """The result of a tool of the kind "plain", which adds to a number in a file, says much or ends the server."""
    if name == "end":
        os._exit(1)
    if name == "flood":
        return "x" * by
    total = Path("total.txt")
    total.write_text(str(by + (int(total.read_text()) if total.exists() else 0)))
    return total.read_text()


def listed(number: int) -> dict[str, Any]:
    match KIND:
        case "plain":
            schema = {**SCHEMA, "properties": {"by": {"type": "integer"}}, "required": ["by"]}
            return {"tools": [{"name": n, "inputSchema": schema} for n in ("add", "end", "flood")]}
        case "pages":
            return {"tools": [{**TOOL, "name": f"t{number}"}], "nextCursor": str(number)}
        case "circle":
            return {"tools": [TOOL], "nextCursor": "again"}
        case "fat pages":
            return {"tools": [{**TOOL, "name": f"t{number}", "description": "x" * 200_000}], "nextCursor": str(number)}  # fmt: skip
        case "fat tool":
            return {"tools": [{**TOOL, "description": "x" * 5_000_000}]}
        case "fat schema":
            return {"tools": [{**TOOL, "inputSchema": {**SCHEMA, "x": ["y" * 100] * 9000}}]}
        case "many tools":
            return {"tools": [{**TOOL, "name": f"t{i}"} for i in range(5000)]}
        case "slow pages":
            import time

            time.sleep(0.4)
            return {"tools": [], "nextCursor": str(number)}
    return {"tools": [TOOL]}


def main() -> None:
    if KIND == "greeting":
        print("Welcome! Licence: none. [INFO] {listening}", flush=True)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        if "method" not in asked:
            print(f"answer of the client: {line.strip()}", file=sys.stderr, flush=True)
            continue
        match asked["method"]:
            case "initialize":
                version = asked["params"]["protocolVersion"]
                info = {"name": "hostile", "version": "1"}
                write(id=asked["id"], result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})  # fmt: skip
            case "tools/list":
                write(id=asked["id"], result=listed(number))
            case "tools/call":
                if KIND in BAD_RESULTS:
                    print(BAD_RESULTS[KIND] % asked["id"], flush=True)
                elif KIND == "notifications":
                    said = {"level": "info", "data": "x" * 1000}
                    flood(method="notifications/message", params=said)
                elif KIND == "pings":
                    flood(id=1, method="ping")
                elif KIND == "requests":
                    for kind in ("sampling/createMessage", "elicitation/create", "roots/list"):
                        write(id=f"s-{kind}", method=kind, params={})
                    done = {"progressToken": 1, "progress": 1}
                    write(method="notifications/progress", params=done)
                    write(id=asked["id"], result={"content": [{"type": "text", "text": "fine"}]})
                elif KIND == "no line":
                    while True:
                        print("x" * 65_536, end="", flush=True)
                elif KIND == "plain":
                    params = asked["params"]
                    text = used(params["name"], **params["arguments"])
                    write(id=asked["id"], result={"content": [{"type": "text", "text": text}]})
                else:
                    print("[INFO] called", flush=True)
                    write(id=asked["id"], result={"content": [{"type": "text", "text": "fine"}]})
            case _ if "id" in asked:
                write(id=asked["id"], error={"code": -32601, "message": "Method not found"})


main()
