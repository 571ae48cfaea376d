"""Servers of the Model Context Protocol for tests."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAUNCH = "import runpy, sys; runpy.run_path(sys.argv[1])['mcp'].run(*sys.argv[2:3], **({'port': int(sys.argv[3])} if sys.argv[3:] else {}))"
BASIC = [sys.executable, "-c", LAUNCH, str(HERE / "mcp_basic_tool.py")]
FRAIL = [sys.executable, str(HERE / "mcp_frail.py")]


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*BASIC, "streamable-http", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
