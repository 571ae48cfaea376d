"""The report of a run: what is in the file, what the server tells to whom, what forensics find."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_report.html.forensics import forensics, trends
from grpo_report.html.opened import OpenRun
from grpo_report.html.phrases import frequent_phrases
from grpo_report.html.pictures import pictures_of
from grpo_report.html.server import ReportData, ReportServer
from grpo_report.html.single import single_file

from .report_runs import ODD, SCRIPT, add_hostile_groups, add_rollouts, group, trained_run, verdict
from .short_runs import grpo
from .test_old_folders import ARCHIVE

WRONG_QUERIES = (
    *("run=7", "run=-1", "run=" + "9" * 5000, "tokens_from=x", "order=id;drop", "text=a%00b"),
    *("environment=%ED%A0%80", "reward_from=nan", "steps_to=inf", "task=1e300", "task=0.5"),
    "page=9e18",
)


@pytest.fixture
def run(settings: dict[str, Any], tmp_path: Path) -> RunFolder:
    folder = trained_run(settings, tmp_path / "run", steps=4)
    add_hostile_groups(folder, step=5)
    return folder


@contextmanager
def serving(*runs: OpenRun) -> Iterator[ReportServer]:
    with ReportServer(ReportData(runs)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def open_run(run: RunFolder) -> Iterator[OpenRun]:
    opened = OpenRun(run.path, name="run")
    yield opened
    opened.close()


def test_the_command_writes_one_file_that_names_no_other(run):
    grpo("report", run.path)
    text = (run.path / "report.html").read_text()
    own = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert "http" not in own.replace("http-equiv", "")
    assert not re.search(r"\b(src|href)=", own)
    assert "default-src 'none'" in text
    assert "window.ran" not in own


def test_a_report_replaces_a_link_and_leaves_its_target(run, tmp_path):
    target = tmp_path / "precious.txt"
    target.write_text("precious")
    (run.path / "report.html").symlink_to(target)
    grpo("report", run.path)
    assert target.read_text() == "precious"
    assert not (run.path / "report.html").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    refused = grpo("report", run.path, "--out", tmp_path / "pipe", status=2)
    assert "not a regular file" in refused.output


def test_a_report_is_made_of_a_run_of_an_older_format(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    runs = [path.parent for path in sorted(tmp_path.rglob("rollouts.jsonl"))]
    assert len(runs) == 2
    grpo("report", *runs)
    opened = OpenRun(runs[0], name="old")
    assert opened.metrics()["steps"]["columns"]["reward/mean"]
    assert opened.group_at(1, "train", 0)["prompt"] is None
    opened.close()


@pytest.mark.slow
def test_of_a_large_run_the_file_holds_a_sample_and_says_so(run):
    add_rollouts(run, 800, step=10)
    opened = OpenRun(run.path, name="run")
    whole = single_file([opened])
    assert '"sample":null' in whole
    bound = len(whole) - 40_000
    sampled = single_file([opened], most_bytes=bound)
    assert len(sampled) <= bound
    assert re.search(r'"sample":"This file holds a random sample: [\d,]+ of 1\d\d groups', sampled)
    opened.close()


def test_the_server_answers_only_this_machine_and_who_knows_the_token(open_run):
    with serving(open_run) as server:
        address, port = server.socket.getsockname()
        assert (address, server.socket.family) == ("127.0.0.1", socket.AF_INET)
        page = f"/{server.token}/"
        for path, status in {
            page: 200,
            f"{page}api/groups?run=0": 200,
            "/": 403,
            "/wrong/api/page": 403,
            f"{page}api/nothing": 404,
            f"{page}../../config.json": 404,
            "http://[": 400,
        }.items():
            assert asked(port, path)[0] == status, path
        assert asked(port, page, f"evil.example:{port}")[0] == 403
        assert asked(port, page, "localhost")[0] == 200  # at port 80, browsers name none
        assert asked(port, page, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
        status, _, headers = asked(port, f"/{server.token}")
        assert (status, headers["Location"]) == (302, page)
        for wrong in WRONG_QUERIES:
            status, answer, _ = asked(port, f"{page}api/groups?{wrong}")
            assert (status, list(json.loads(answer))) == (400, ["error"]), wrong
        _, _, headers = asked(port, page)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        with pytest.raises(ConfigError, match=f"port {port} .* choose another --port"):
            ReportServer(ReportData([open_run]), port=port)


def asked(
    port: int, path: str, host: str = "", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers of the answer; without a host, it is the server's own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}", **headers})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_server_shows_what_a_run_has_written_since(run, open_run):
    data = ReportData([open_run])
    before = data.answers["page"]({})["runs"][0]
    assert before["alarms"][0]["at"] == "5/train/0"
    run.rollouts(6, replace(group(7, "new", ["a"], [verdict(1.0)]), advantages=[0.0]))
    after = data.answers["page"]({})["runs"][0]
    assert after["facets"]["rollouts"] == before["facets"]["rollouts"] + 1
    assert after["revision"] != before["revision"]


def test_ctrl_c_ends_the_page(run):
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "watch", run.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        address = server.stdout.readline().decode()
        with urlopen(address.strip(), timeout=20) as answer:
            assert b"page-data" in answer.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        said = server.stderr.read().decode()
    assert "ended" in said
    assert "Traceback" not in said


def test_pictures_are_regular_files_of_the_run_folder_each_once(tmp_path):
    run, secret = tmp_path / "run", tmp_path / "secret.png"
    run.mkdir()
    (run / "a.png").write_bytes(b"pixels")
    secret.write_bytes(b"secret")
    os.mkfifo(run / "pipe.png")
    for link, target in {
        "out": secret,
        "one": "two.png",
        "two": "one.png",
        "text": "a.txt",
    }.items():
        (run / f"{link}.png").symlink_to(target)
    (run / "a.txt").write_text("text")
    spellings = ["./" * number + "a.png" for number in range(200)]
    refused = ["pipe.png", "one.png", "text.png", "out.png", "no.png", "x\0.png"]
    named = {"deep": [{"pictures": [*spellings, *refused, "../secret.png"]}]}
    shown = pictures_of({**named, "text": "see a.svg", "whole": str(secret)}, run)
    urls = {one["name"]: one.get("url") for one in shown}
    assert urls.pop("a.png") == "data:image/png;base64,cGl4ZWxz"
    assert set(urls.values()) == {None}
    assert [one["name"] for one in shown if "reason" in one][:3] == refused[:3]


def test_large_pictures_do_not_fill_the_page(tmp_path):
    large = [f"{number}.png" for number in range(20)]
    for name in large:
        (tmp_path / name).write_bytes(b"p" * (3 << 20))
    shown = pictures_of({"pictures": large}, tmp_path)
    assert sum("url" in one for one in shown) == 5  # of 3 MB each, at most 16 MB
    assert len(shown) == 17
    assert "all after it are left out" in shown[-1]["reason"]


def test_a_run_that_goes_back_while_it_is_shown_lacks_groups_and_nothing_breaks(run, open_run):
    log = run.path / "rollouts.jsonl"
    data = ReportData([open_run])
    asked_for = {"step": "5", "split": "train", "number": "0"}
    assert data.answers["group"](asked_for)["prompt"]
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for line in lines if json.loads(line).get("step") != 5))
    assert data.answers["forensics"]({})["disagreements"] == []
    assert data.answers["group"](asked_for) is None
    assert "page-data" in single_file([open_run])


def test_forensics_find_what_was_planted(run, open_run):
    found = forensics(open_run)
    assert {(row["at"], row["low"], row["high"]) for row in found["disagreements"]} >= {
        ("5/train/0", 0.0, 1.0),
        ("5/train/1", 0.5, 0.75),
    }
    for number in range(30):
        texts = [f"I am certain, task {number}", f"task {number}", f"well, task {number}", "so"]
        one = group(number, "t", texts, [verdict(1.0), *[verdict(0.0)] * 3])
        run.rollouts(9, replace(one, advantages=[0.0] * 4))
    open_run.index.extend()
    phrases = forensics(open_run)["phrases"]["rows"]
    assert "i am certain ," in [row["phrase"] for row in phrases], phrases


def test_phrases_that_all_texts_share_are_no_finding_and_many_are_compared_soon():
    assert frequent_phrases(["the sum is 4"] * 50, ["the sum is 4"] * 150) == []
    assert frequent_phrases([], ["x"]) == []
    (row,) = frequent_phrases(["trust me " + str(i) for i in range(50)], ["no " * 3] * 50)
    assert (row["phrase"], row["paid"], row["rest"]) == ("trust me", 50, 0)
    words = " ".join(f"word{number}" for number in range(3000))
    begun = time.perf_counter()
    assert len(frequent_phrases([words] * 30, ["other"] * 30)) == 25
    assert time.perf_counter() - begun < 10


def test_metrics_of_a_newer_version_are_left_out_and_a_line_without_a_step_is_an_error(
    run, open_run
):
    path = run.path / "metrics.jsonl"
    good, before = path.read_text(), open_run.metrics()
    path.write_text(good + '{"kind": "something new", "step": 1}\n{"kind": ["odd"]}\n')
    assert open_run.metrics() == before
    path.write_text(good + '{"kind": "step", "loss": 1.0}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl has a line whose step is None"):
        open_run.metrics()


def test_a_measure_that_falls_while_the_reward_rises_is_marked():
    steps = {
        "step": [float(step) for step in range(50)],
        "reward/mean": [step / 50 + step % 2 / 100 for step in range(50)],
        "env/audit": [0.9 - step / 60 + step % 2 / 100 for step in range(50)],
        "groups/distinct": [0.5 + step % 3 / 100 for step in range(50)],
    }
    marks = {row["name"]: bool(row["suspicious"]) for row in trends(steps, {})}
    assert marks == {"reward/mean": False, "env/audit": True, "groups/distinct": False}
    for growth, marked in ((0.001, False), (0.01, True)):  # of the length, by a step
        longer = {"completion_length/mean": [100 * (1 + growth * step) for step in range(50)]}
        assert bool(trends(steps | longer, {})[-1]["suspicious"]) == marked
    falling = steps | {"reward/mean": [1 - step / 50 for step in range(50)]}
    assert not any(row["suspicious"] for row in trends(falling, {}))


def test_the_page_holds_odd_characters_as_the_log_stores_them(open_run):
    shown = open_run.group_at(5, "train", 0)
    assert shown is not None
    assert [message["content"] for message in shown["prompt"]] == [ODD, SCRIPT]
