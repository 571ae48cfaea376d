"""A server of the standard library alone, as it runs in a jail: it adds numbers to a file, and ends itself when asked to."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
TOOLS = [
    {"name": name, "description": text, "inputSchema": SCHEMA}
    for name, text in (
        ("add", "Add to a total in a file."),
        ("end", "End."),
        ("flood", "Say much."),
    )
]


def add(by: int) -> str:
    total = Path("total.txt")
    total.write_text(str(by + (int(total.read_text()) if total.exists() else 0)))
    return total.read_text()


def result(request: dict[str, Any]) -> dict[str, Any] | None:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            by = request["params"]["arguments"]["by"]
            if request["params"]["name"] == "end":
                os._exit(1)
            text = "x" * by if request["params"]["name"] == "flood" else add(by)
            return {"content": [{"type": "text", "text": text}], "isError": False}
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        told = result(asked)
        outcome = (
            {"error": {"code": -32601, "message": "Method not found"}}
            if told is None
            else {"result": told}
        )
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **outcome}), flush=True)
