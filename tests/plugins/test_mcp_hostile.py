"""Servers of the Model Context Protocol that flood, loop, lie or never end: bounded in time and memory, and blamed rightly."""

import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from psutil import Process

from grpo_mcp import McpError, McpServer

from .test_mcp import Weather, calls, play, servers

BAD_RESULTS = (
    "half a pair",
    "deep",
    "cut",
    "no content",
    "no result",
    "another id",
    "no id",
    "long",
)
SCRIPT = str(Path(__file__).with_name("mcp_hostile.py"))


class Patient(Weather):
    tool_seconds: ClassVar[float] = 20.0
    timeout_seconds: ClassVar[float] = 60.0


def server(kind: str, seconds: float = 20) -> McpServer:
    return McpServer([sys.executable, "-S", SCRIPT, kind], seconds=seconds)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pages", "its tools have more than 100 pages"),
        ("circle", "it names the same next page twice"),
        ("fat pages", "or 4194304 bytes of descriptions"),
        ("fat tool", "the description of the tool 'say' has more than 262144 bytes"),
        ("fat schema", "the description of the tool 'say' has more than 262144 bytes"),
        ("many tools", "it has more than 1000 tools"),
    ],
)
def test_a_list_of_tools_that_is_too_long_is_the_servers_failure(kind: str, reason: str) -> None:
    before, started = Process().memory_info().rss, time.monotonic()
    with pytest.raises(McpError, match=f"does not list its tools: .*{reason}"):
        play(server(kind), "5")
    with pytest.raises(McpError, match=f"does not list its tools: .*{reason}"):
        server(kind).tools()
    assert time.monotonic() - started < 20
    assert Process().memory_info().rss - before < 150 * 2**20
    assert servers() == set()


def test_one_deadline_holds_for_connecting_and_for_all_pages() -> None:
    started = time.monotonic()
    with pytest.raises(McpError, match="it took longer than 3 s"):
        play(server("slow pages", seconds=3), "5")
    assert time.monotonic() - started < 9
    assert servers() == set()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", BAD_RESULTS)
def test_a_result_that_cannot_be_read_is_at_once_an_error_of_the_tool(kind: str) -> None:
    started = time.monotonic()
    replies, _ = play(server(kind), calls(("say", {})), cls=Patient)
    assert time.monotonic() - started < 15
    assert replies[0] is not None
    assert replies[0][0].startswith("error: ")
    assert "took longer" not in replies[0][0]
    assert servers() == set()


@pytest.mark.parametrize("kind", ["greeting", "requests"])
def test_other_output_and_requests_of_a_server_change_no_result(kind: str) -> None:
    assert play(server(kind), calls(("say", {}), ("say", {})))[0] == [["fine", "fine"]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["notifications", "pings", "no line"])
def test_a_server_that_floods_is_stopped_in_bounded_memory(kind: str) -> None:
    before, started = Process().memory_info().rss, time.monotonic()
    replies, _ = play(server(kind), calls(("say", {})))
    assert replies[0] is not None
    assert replies[0][0].startswith("error: ")
    assert time.monotonic() - started < 30
    assert Process().memory_info().rss - before < 150 * 2**20
    assert servers() == set()
