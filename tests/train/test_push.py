"""`grpo export --push`, with the hub's own client against a server that answers as the hub does."""

import base64
import hashlib
import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants

from grpo_core.runs.folder import RunFolder

from .runs import finished_arithmetic
from .short_runs import grpo

TOKEN = "hf_of_a_test"


class PushHub:
    """The part of the hub's HTTP interface that uploads use: repositories, small files in a commit, large ones by LFS."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.refuses: tuple[int, str] | None = None
        self._large: dict[str, bytes] = {}
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                status, answer = (
                    hub.answer(self.path.partition("?")[0], body) if known else (401, {})
                )
                if hub.refuses is not None and status == 200:
                    status, answer = hub.refuses[0], {"error": hub.refuses[1]}
                self._send(status, json.dumps(answer).encode())

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hub._large[self.path.rpartition("/")[2]] = body
                self._send(200, b"")

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer of a request of a known user."""
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization'] or 'me'}/{asked['name']}"
            if repo in self.repos:
                return 409, {"error": "You already created it", "url": f"{self.url}/{repo}"}
            self.repos[repo], self.private[repo] = {}, asked.get("visibility") == "private"
            return 200, {"url": f"{self.url}/{repo}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return 200, {"files": [_mode(file["path"]) for file in files]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{self.url}/large/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        repo = "/".join(path.split("/")[3:5])
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                data = self._large[value["oid"]]
                assert hashlib.sha256(data).hexdigest() == value["oid"]
                self.repos[repo][value["path"]] = data
        commit = {"commitUrl": f"{self.url}/{repo}/commit/1", "commitOid": "1", "hookOutput": ""}
        return 200, commit


def _mode(path: str) -> dict[str, Any]:
    large = path.endswith(".safetensors")
    return {
        "path": path,
        "uploadMode": "lfs" if large else "regular",
        "shouldIgnore": False,
        "oid": None,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_arithmetic(tmp_path_factory.mktemp("push"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[PushHub]:
    server = PushHub()
    # HF_ENDPOINT is read when the client is imported, which an earlier test may have done.
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another protocol for large files
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.close()


def test_an_adapter_is_uploaded_with_a_card_that_names_the_repository(
    run: Path, hub: PushHub
) -> None:
    said = grpo("export", run, "--push", "someone/adapter").output
    files = hub.repos["someone/adapter"]
    of_run = {path.name: path for path in (run / "final").iterdir()}
    assert set(files) == set(of_run) - {"manifest.json"}
    for name in set(files) - {"README.md"}:
        assert files[name] == of_run[name].read_bytes(), name
    card = files["README.md"].decode()
    assert ModelCard(card).data.library_name == "peft"
    assert 'location = "someone/adapter"' in card
    assert f"{hub.url}/someone/adapter" in said
    assert not hub.private["someone/adapter"]


def test_merged_weights_are_uploaded_to_a_repository_that_may_exist_and_may_be_private(
    run: Path, hub: PushHub, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    grpo("export", run, "--weights", model, "--push", "merged", "--private")
    assert hub.private == {"me/merged": True}
    files = hub.repos["me/merged"]
    assert files["model.safetensors"] == (model / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert ModelCard(card).data.library_name == "transformers"
    assert 'location = "me/merged"' in card
    files.clear()
    grpo("export", run, "--push", "me/merged")
    assert "adapter_model.safetensors" in files


@pytest.mark.parametrize(
    ("repo", "refuses", "message"),
    [
        ("a/b/c", None, "'a/b/c' is no name of a repository; give OWNER/NAME"),
        (
            "me/x",
            (403, "You don't have the rights to create a model under this namespace"),
            "(status 403: You don't have the rights to create a model under this namespace); take "
            "a repository of your own, or a token with the right to write",
        ),
        ("me/x", (500, "oops"), "(status 500: oops); try again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    run: Path, hub: PushHub, repo: str, refuses: tuple[int, str] | None, message: str
) -> None:
    hub.refuses = refuses
    said = grpo("export", run, "--push", repo, status=2).output
    assert message in " ".join(said.split())
    assert not any(hub.repos.values())


def test_a_token_that_is_missing_or_wrong_is_one_line(
    run: Path, hub: PushHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    said = " ".join(grpo("export", run, "--push", "me/x", status=2).output.split())
    assert "(status 401" in said
    assert "set HF_TOKEN to a token that is valid" in said
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(run / "none"))
    said = grpo("export", run, "--push", "me/x", status=2).output
    assert "set HF_TOKEN, or run `hf auth login`" in " ".join(said.split())


def test_without_a_network_there_is_one_line(
    run: Path, hub: PushHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    said = " ".join(grpo("export", run, "--push", "me/x", status=2).output.split())
    assert f"the hub at {nowhere} cannot be reached (ConnectError" in said
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = grpo("export", run, "--push", "me/x", status=2).output
    assert "HF_HUB_OFFLINE is set; unset it" in " ".join(said.split())


def test_nothing_is_uploaded_of_an_unfinished_run_or_through_a_link(
    run: Path, hub: PushHub, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("mine")
    (run / "final" / "notes.txt").symlink_to(tmp_path / "secret")
    said = " ".join(grpo("export", run, "--push", "me/x", status=2).output.split())
    assert "notes.txt is a link, which is not uploaded" in said
    assert (
        "--private is for --push"
        in grpo("export", run, "--private", "--to", "inspect", status=2).output
    )
    (run / "final").rename(run / "gone")
    assert "is not finished" in grpo("export", run, "--push", "me/x", status=2).output
    assert hub.repos == {}
    assert RunFolder(run).finished is False
