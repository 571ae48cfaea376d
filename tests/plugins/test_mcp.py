"""Tools of servers of the Model Context Protocol, in real processes: an example of its SDK, and one that fails."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from grpo_core import (
    CommandResult,
    ConfigError,
    Message,
    MissingExtraError,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
    tool,
    tools_of,
)
from grpo_core.protocol.tools import MAX_RESULT, schemas
from grpo_mcp import McpEpisode, McpError, McpServer

from .endpoint import respond
from .mcp_servers import BASIC, FRAIL, HERE, url  # noqa: F401 - a fixture

TASK = Task(TaskKey("weather", "train", 0), (Message("user", "Weather in Oslo? 2 + 3?"),), 5)


class Weather(McpEpisode[int]):
    tool_seconds: ClassVar[float] = 20.0

    @tool
    def hint(self) -> str:
        """Return a hint."""
        return f"below {self.task.data + 1}"

    async def verdict(self, rollout: Rollout) -> Verdict:
        right = rollout.text == str(self.task.data)
        return Verdict({"reward": Reward(right)}, passed=right)


class Hasty(Weather):
    tool_seconds: ClassVar[float] = 1.0


def calls(*named: tuple[str, dict[str, Any]]) -> str:
    return "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        for name, arguments in named
    )


async def played(
    server: McpServer, *turns: str | Callable[[], str], cls: type[Weather] = Weather, **more: Any
) -> tuple[list[list[str] | None], Verdict]:
    """Play an episode with a scripted policy; return the replies and the verdict."""
    episode = cls(TASK, server, **more)
    messages: list[Message] = []
    replies: list[list[str] | None] = []
    try:
        await episode.open()
        for turn in turns:
            text = turn if isinstance(turn, str) else turn()
            messages.append(Message("assistant", text))
            reply = await episode.reply(messages)
            replies.append(None if reply is None else [message.content for message in reply])
            messages += reply or ()
        return replies, await episode.verdict(Rollout(tuple(messages)))
    finally:
        await episode.close()


def play(*arguments: Any, **more: Any) -> tuple[list[list[str] | None], Verdict]:
    return asyncio.run(played(*arguments, **more))


def killing(turn: str) -> Callable[[], str]:
    """Kill the server before a turn."""

    def kill() -> str:
        (pid,) = servers()
        os.kill(pid, signal.SIGKILL)
        return turn

    return kill


def servers() -> set[int]:
    """The processes of servers that this process has started."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True)  # fmt: skip
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    return {int(pid) for pid, parent, args in rows if int(parent) == os.getpid() and "mcp_" in args}


@pytest.mark.slow
def test_an_example_of_the_sdk_serves_two_tools_in_an_episode() -> None:
    server = McpServer(BASIC)
    described = schemas([*tools_of(Weather), *server.tools()])
    assert [tool["function"]["name"] for tool in described] == ["hint", "sum", "get_weather"]
    replies, verdict = play(
        server,
        calls(("get_weather", {"city": "Oslo"}), ("sum", {"a": 2, "b": 3}), ("hint", {})),
        calls(("sum", {"a": "x"}), ("product", {})),
        "5",
    )
    assert replies[0] == ["Weather in Oslo: 22degreesC", "5", "below 6"]
    assert replies[1] is not None
    assert replies[1][0].startswith("error: Error executing tool sum: 2 validation errors")
    assert replies[1][1] == "error: there is no tool 'product'; there are get_weather, hint, sum"
    assert replies[2] is None
    assert verdict.passed
    assert servers() == set()


@pytest.mark.slow
def test_the_same_server_is_reached_by_http_and_its_death_is_no_reward(url: str) -> None:  # noqa: F811
    server = McpServer(url=url, names=("sum",), seconds=5)
    assert [described.name for described in server.tools()] == ["sum"]
    turn = calls(("sum", {"a": 2, "b": 3}))
    assert play(server, turn)[0] == [["5"]]
    with pytest.raises(McpError, match="cannot be used"):
        play(server, turn, killing(turn))


@pytest.mark.slow
def test_a_server_that_was_killed_is_started_again_in_the_state_that_it_had() -> None:
    count = calls(("count", {"by": 1}), ("count", {"by": 1}))
    more = killing(calls(("count", {"by": 5})))
    assert play(McpServer(FRAIL), count, more)[0] == [["1", "2"], ["7"]]
    assert servers() == set()


@pytest.mark.slow
def test_a_call_that_ends_the_server_again_is_blamed_and_the_policy_is_told(tmp_path: Path) -> None:
    once = calls(("count", {"by": 3}), ("die_once", {"path": str(tmp_path / "died")}))
    replies, _ = play(McpServer(FRAIL), once, calls(("count", {"by": 1}), ("crash", {}), ("count", {"by": 1})))  # fmt: skip
    assert replies[0] == ["3", "alive"]
    assert replies[1] is not None
    assert replies[1][0] == "4"
    assert replies[1][1].startswith("error: the server ended in this call and was started again")
    assert replies[1][2] == "1"
    assert servers() == set()


@pytest.mark.slow
def test_a_call_that_hangs_fails_or_floods_becomes_a_short_text() -> None:
    replies, _ = play(McpServer(FRAIL), calls(("fail", {}), ("flood", {})))
    assert replies[0] is not None
    assert replies[0][0] == "error: Error executing tool fail"
    assert replies[0][1] == "x" * MAX_RESULT
    replies, _ = play(McpServer(FRAIL), calls(("hang", {})), cls=Hasty)
    assert replies == [["error: hang took longer than 1 s"]]
    assert servers() == set()


@pytest.mark.heavy
async def test_two_episodes_have_servers_of_their_own() -> None:
    count = calls(("count", {"by": 1}))
    both = await asyncio.gather(*(played(McpServer(FRAIL), count, count) for _ in range(2)))
    assert [replies for replies, _ in both] == [[["1"], ["2"]]] * 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([*FRAIL, "refuse"], "cannot be used: MCPError: Connection closed"),
        (["/no/such/program"], "cannot be used: FileNotFoundError"),
        ([sys.executable, "-c", "import sys, time; print('no licence', file=sys.stderr, flush=True); time.sleep(60)"], "it was not ready in 2 s; its last output: no licence"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_start_is_a_failure_of_the_infrastructure(
    command: Sequence[str], message: str
) -> None:
    server = McpServer(command, seconds=2)
    with pytest.raises(McpError, match=message):
        play(server, "5")
    assert servers() == set()


def test_mistakes_in_how_a_server_is_given_are_said() -> None:
    with pytest.raises(ConfigError, match="one of: command, url, transport"):
        McpServer()
    with pytest.raises(ConfigError, match="has no tool product; it has sum, get_weather"):
        McpServer(BASIC, names=("sum", "product")).tools()
    with pytest.raises(McpError, match="FileNotFoundError"):
        McpServer(["/no/such/program"]).tools()


@pytest.mark.heavy
def test_a_server_in_a_place_of_its_own_is_reached_by_a_transport() -> None:
    from mcp import StdioServerParameters, stdio_client

    def transport() -> Any:
        return stdio_client(StdioServerParameters(command=BASIC[0], args=BASIC[1:]))

    assert play(McpServer(transport=transport), calls(("sum", {"a": 2, "b": 3})))[0] == [["5"]]


def test_the_extra_is_asked_for_where_the_sdk_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'grpo-core\[mcp\]'"):
        McpServer(BASIC).tools()


class Folder:
    """A session without a jail: a folder in which commands run as ordinary processes."""

    def __init__(self, path: Path) -> None:
        self.path, self.closed = path, False

    async def exec(self, command: Sequence[str], *, input: str = "", timeout: float | None = None) -> CommandResult:  # noqa: ASYNC109  # fmt: skip
        process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, cwd=self.path)
        output, _ = await process.communicate(input.encode())
        if len(output) > 100_000:
            return CommandResult("output_limit")
        return CommandResult("ok", process.returncode, output.decode())

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            (self.path / name).write_bytes(content.encode() if isinstance(content, str) else content)  # fmt: skip

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        return (self.path / path).read_bytes()

    async def close(self) -> None:
        self.closed = True


class Folders:
    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)

    async def session(self, files: Any = None, **_: Any) -> Folder:
        await self.folder.write(files or {})
        return self.folder


@pytest.mark.slow
def test_a_server_runs_inside_a_session_and_keeps_what_is_in_its_folder(tmp_path: Path) -> None:
    sandbox = Folders(tmp_path)
    files = {"server.py": (HERE / "mcp_hostile.py").read_text(encoding="utf-8")}
    server = McpServer(["python3", "server.py", "plain"])
    add = calls(("add", {"by": 2}), ("add", {"by": 3}), ("hint", {}))
    flood = calls(("end", {"by": 1}), ("add", {"by": 1}), ("flood", {"by": 200_000}))
    (first, second), _ = play(server, add, flood, sandbox=sandbox, files=files)
    assert second is not None
    assert first == ["2", "5", "below 6"]
    assert second[0].startswith("error: the server ended in this call and was started again")
    assert second[1] == "6"
    assert second[2] == "error: the result is longer than the session allows"
    assert sandbox.folder.closed
    with pytest.raises(ConfigError, match="given by its command"):
        McpServer(url="http://127.0.0.1/").inside(sandbox.folder)


@contextlib.contextmanager
def gateway(server_url: str, fails: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
    """A proxy in front of a server that answers some of its requests with status 429."""

    class Gateway(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            asked = json.loads(body) if body else {}
            if fails(asked):
                respond(self, 429, b"")
                return
            kept = {
                k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")
            }
            request = urllib.request.Request(server_url, body or None, kept, method=self.command)
            try:
                answer = urllib.request.urlopen(request, timeout=20)
            except urllib.error.HTTPError as error:
                answer = error
            names = ("Content-Type", "Mcp-Session-Id")
            told = {name: answer.headers[name] for name in names if name in answer.headers}
            respond(self, answer.status, answer.read(), told)

        do_POST = do_DELETE = forward

        def do_GET(self) -> None:  # no stream of the server's own messages
            respond(self, 405, b"")

        def log_message(self, *_: object) -> None: ...

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}/mcp"
    finally:
        proxy.shutdown()
        proxy.server_close()


@pytest.mark.slow
def test_a_rate_limit_of_a_server_is_waited_for_or_an_error_and_nothing_the_policy_hears(
    url: str,  # noqa: F811
) -> None:
    limited = {"left": 0, "which": ("tools/call",)}

    def fails(asked: dict[str, Any]) -> bool:
        is_limited = asked.get("method") in limited["which"] and limited["left"] > 0
        limited["left"] -= is_limited
        return is_limited

    with gateway(url, fails) as address:
        server = McpServer(url=address, names=("sum",), seconds=20)
        server.tools()
        limited["left"] = 2
        assert play(server, calls(("sum", {"a": 2, "b": 3})))[0] == [["5"]]
        assert limited["left"] == 0

        def limit_all() -> str:
            limited.update(left=1000, which=("tools/call", "tools/list"))
            return calls(("sum", {"a": 2, "b": 3}))

        with pytest.raises(McpError, match="HTTP errors"):
            play(server, limit_all)


@pytest.mark.slow
def test_a_call_that_fails_each_time_while_the_server_answers_is_told_to_the_policy(
    url: str,  # noqa: F811
) -> None:
    def fails(asked: dict[str, Any]) -> bool:
        return asked.get("method") == "tools/call" and asked["params"]["arguments"].get("a") == 7

    with gateway(url, fails) as address:
        server = McpServer(url=address, names=("sum",), seconds=20)
        replies, _ = play(server, calls(("sum", {"a": 7, "b": 3}), ("sum", {"a": 2, "b": 3})))
        assert replies == [["error: Server returned an error response", "5"]]
