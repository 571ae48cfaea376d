"""`grpo eval --endpoint` with servers that fail, and in processes that are killed: nothing is lost or counted twice."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_core import TaskKey
from grpo_core.runs.lines import read_lines

from ..plugins.endpoint import Endpoint
from .chat_server import FAULTS
from .evaluated import (
    FRAIL,
    GUESS,
    begin,
    chat,
    count_lines,
    evaluate,
    half_right,
    index_of,
    invoke,
    passed,
    results,
    right,
    says,
    scripted,
    seed_of,
    serving,
)

pytestmark = pytest.mark.usefixtures("quick")
KEY = "sk-abcdef0123456789"


@pytest.mark.slow
def test_results_equal_those_without_faults(tmp_path: Path) -> None:
    """500, 429 with Retry-After, hanging, cut and closed connections, broken JSON, slow and endless bodies."""
    script = scripted(GUESS, tasks=12, samples=3, turns=half_right)
    more = ("--tasks", 12, "--samples", 3, "--timeout", 3, "--retries", 15, "--concurrency", 36)
    found = []
    for number, faults in enumerate(((), FAULTS)):
        with serving(script, tmp_path / f"server{number}", *faults) as server:
            found.append(evaluate(GUESS, server.url, tmp_path / str(number), *more))
            assert len(server.answered()) == len(script)
    assert found[0]["results"] == found[1]["results"]
    assert found[0]["usage"]["retries"] == 0 < found[1]["usage"]["retries"]
    assert 0 < passed(found[0]) < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [3, pytest.param(24, marks=pytest.mark.heavy)], ids=["few", "many"]
)
def test_kills_lose_nothing_and_count_nothing_twice(kills: int, tmp_path: Path) -> None:
    """The client of a server under faults is killed at random moments of its dialogues, and goes on."""
    tasks, samples, concurrency = (10 * kills, 2, 4)
    faults = FAULTS if kills > 3 else ("status", "busy", "cut", "garbage", "close")
    script = scripted(GUESS, tasks=tasks, samples=samples, turns=half_right)
    counts = ("--tasks", tasks, "--samples", samples, "--timeout", 0.7, "--retries", 15)
    out, rng = tmp_path / "out", random.Random(0)
    frozen: dict[str, int] = {}  # how often requests were answered whose attempts are on disk
    with serving(script, tmp_path / "server", *faults, seconds=0.03) as server:
        for _ in range(kills):
            process = begin(GUESS, server.url, out, *counts, "--concurrency", concurrency)
            before = count_lines(out)
            while count_lines(out) == before:  # each process makes at least one attempt
                assert process.poll() is None, "the evaluation was over before all kills"
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.5))
            process.kill()
            process.communicate()
            answered = server.answered()
            for line in read_lines(out / "attempts.jsonl"):
                for turn in range(4):
                    seed = seed_of(TaskKey(**line["key"]), line["attempt"], turn)
                    frozen.setdefault(seed, answered[seed])
        found = results(begin(GUESS, server.url, out, *counts, "--concurrency", 32))
        answered = server.answered()
    assert {seed: answered[seed] for seed in frozen} == frozen
    in_progress = 2 * concurrency * 4 * kills
    assert sum(answered.values()) - len(answered) <= in_progress
    with serving(script, tmp_path / "quiet") as server:
        expected = evaluate(GUESS, server.url, tmp_path / "undisturbed", *counts)
    assert found["complete"]
    assert found["results"] == expected["results"]
    lines = [(line["key"]["index"], line["attempt"]) for line in read_lines(out / "attempts.jsonl")]
    assert sorted(lines) == [(task, number) for task in range(tasks) for number in range(samples)]


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, "--request FIELD=null"), (401, "--key-env"), (404, "--model-name")],
)
def test_a_request_that_is_refused_for_its_settings_ends_all_at_once(
    status: int, hint: str, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message, whose text repeats no key, and few requests; nothing counts as an attempt."""
    monkeypatch.setenv("MY_KEY", KEY)
    endpoint.reply = lambda asked: (status, {"error": {"message": f"no, {KEY}, {asked['seed']}"}})
    more = ("--tasks", 50, "--concurrency", 2, "--key-env", "MY_KEY")
    done = invoke(FRAIL, endpoint.url, tmp_path / "out", *more)
    assert done.exit_code == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert f"HTTP status {status}: no, [redacted]" in error
    assert hint in error
    assert KEY not in done.output
    assert len(endpoint.asked) <= 8
    assert not (tmp_path / "out" / "attempts.jsonl").exists()


def test_an_attempt_that_the_server_does_not_answer_is_an_error_and_is_made_again(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """It is in no mean; the next call asks for it alone, and then all is as if nothing had happened."""
    down = True

    def reply(asked: dict[str, Any]) -> Any:
        broken = down and index_of(asked) == "2"
        return (503, {"error": {"message": "down"}}) if broken else right(asked)

    endpoint.reply = reply
    set_rate = ("--set", "verify.max_error_rate=1", "--retries", 2)
    done = invoke(FRAIL, endpoint.url, tmp_path / "out", *set_rate)
    assert done.exit_code == 0
    assert "2 x the dialogue failed before its end" in done.stderr
    assert "the endpoint failed (3 tries): HTTP status 503: down" in done.stderr
    assert f"--out {tmp_path / 'out'}" in done.stderr
    found = json.loads(done.stdout)
    assert found["results"][0]["unscored"] == 2
    assert passed(found) == 1.0
    down = False
    endpoint.asked.clear()
    again = evaluate(FRAIL, endpoint.url, tmp_path / "out", *set_rate)
    assert len(endpoint.asked) == 2
    assert (again["results"][0]["unscored"], passed(again)) == (0, 1.0)
    assert again["usage"]["requests"] == 8


def test_too_many_failures_end_the_evaluation_with_their_reasons(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda asked: (500, {"error": {"message": "broken"}})
    more = ("--tasks", 500, "--retries", 0, "--concurrency", 4)
    done = invoke(FRAIL, endpoint.url, tmp_path / "out", *more)
    assert done.exit_code == 1
    assert "could not be judged, more than verify.max_error_rate allows" in done.stderr
    assert "HTTP status 500: broken" in done.stderr
    assert f"with --out {tmp_path / 'out'}" in done.stderr
    assert len(endpoint.asked) < 60


def test_a_verifier_that_failed_is_asked_again_and_the_server_is_not(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("FRAIL_WHILE", str(broken))
    endpoint.reply = right
    rate = ("--set", "verify.max_error_rate=1")
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out", *rate)
    assert found["results"][0]["unscored"] == 2
    assert "the verifier is down" in next(iter(found["errors"]))
    broken.unlink()
    endpoint.asked.clear()
    again = evaluate(FRAIL, endpoint.url, tmp_path / "out", *rate)
    assert endpoint.asked == []
    assert (again["results"][0]["unscored"], passed(again)) == (0, 1.0)
    assert again["usage"] == found["usage"]


def test_a_refusal_of_a_neutral_text_is_one_of_the_settings(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """A limit of tokens that the model does not know would otherwise look like answers of 0."""
    endpoint.reply = lambda asked: (400, {"error": {"message": "stop: list is too long"}})
    done = invoke(FRAIL, endpoint.url, tmp_path / "out", "--stop", "a", "--stop", "b")
    assert done.exit_code == 2
    assert "refuses the request: HTTP status 400: stop: list is too long" in done.stderr
    assert not (tmp_path / "out" / "attempts.jsonl").exists()


def test_a_dialogue_that_outgrows_the_context_ends_with_the_turn_before(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        if len(asked["messages"]) > 7:
            return 400, {"error": {"message": "the prompt exceeds the context size"}}
        return 200, chat(says("0"))

    endpoint.reply = reply
    found = evaluate(GUESS, endpoint.url, tmp_path / "out", "--tasks", 1, "--samples", 1)
    (result,) = found["results"]
    assert (result["refused"], "unasked" in result) == ({"context": 1}, False)
    (line,) = read_lines(tmp_path / "out" / "attempts.jsonl")
    assert (line["finish"], line["reply_dropped"]) == ("length", True)
    assert [m["role"] for m in line["messages"]] == ["assistant"]


def test_a_pause_that_the_server_asks_for_is_kept_by_all_requests(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    times: list[float] = []

    def busy(handler: Any) -> None:
        handler.send_response(429)
        handler.send_header("Retry-After", "0.3")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def reply(asked: dict[str, Any]) -> Any:
        times.append(time.monotonic())
        return busy if len(times) == 1 else (200, chat(says("1")))

    endpoint.reply = reply
    evaluate(FRAIL, endpoint.url, tmp_path / "out", "--concurrency", 1)
    assert len(times) == 9
    assert times[1] - times[0] >= 0.29


def test_requests_begin_evenly_spaced(endpoint: Endpoint, tmp_path: Path) -> None:
    times: list[float] = []

    def reply(asked: dict[str, Any]) -> Any:
        times.append(time.monotonic())
        return 200, chat(says("1"))

    endpoint.reply = reply
    evaluate(FRAIL, endpoint.url, tmp_path / "out", "--per-minute", 1200)
    assert times[-1] - times[0] >= 0.3


@pytest.mark.slow
def test_an_interrupted_evaluation_says_how_to_go_on(tmp_path: Path) -> None:
    """Attempts that were started end, and are printed; the rest is made by the next call."""
    script = scripted(GUESS, tasks=40, samples=1, turns=half_right)
    counts = ("--tasks", 40, "--samples", 1, "--concurrency", 2)
    out = tmp_path / "out"
    with serving(script, tmp_path / "server", seconds=0.05) as server:
        process = begin(GUESS, server.url, out, *counts)
        while count_lines(out) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        found = results(process, status=130)
        assert not found["complete"]
        made = found["results"][0]["attempts"]
        assert 2 <= made == count_lines(out) < 40
        assert f"Continue with the same command and --out {out}" in found["remarks"]
        whole = evaluate(GUESS, server.url, out, *counts)
        assert set(server.answered().values()) == {1}
    assert whole["results"][0]["attempts"] == 40


def test_a_stop_does_not_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    with serving({}, tmp_path / "server", "busy", seconds=0.05) as server:
        url = server.url
    process = begin(FRAIL, url, tmp_path / "out", "--retries", 1000, code="import time\n")
    while not (tmp_path / "out" / "evaluation.json").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    found = results(process, status=130)
    assert found["results"][0]["attempts"] == 0


def test_lines_that_a_kill_or_an_accident_damaged_are_made_again(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = evaluate(FRAIL, endpoint.url, out)
    lines = (out / "attempts.jsonl").read_bytes().splitlines(keepends=True)
    broken = b'{"key": 7, "verdict": null}\n' + b"".join(lines[:6]) + b"\xff\n" + lines[6][:50]
    (out / "attempts.jsonl").write_bytes(broken)
    endpoint.asked.clear()
    done = invoke(FRAIL, endpoint.url, out)
    assert done.exit_code == 0, done.output
    assert "3 lines of it could not be read" in done.stderr
    assert len(endpoint.asked) == 2
    assert json.loads(done.stdout)["results"] == found["results"]
    assert count_lines(out) == 8


@pytest.mark.slow
def test_one_process_at_a_time_writes_a_folder(tmp_path: Path) -> None:
    script = scripted(GUESS, tasks=4, samples=2)
    out = tmp_path / "out"
    with serving(script, tmp_path / "server", seconds=1.5) as server:
        process = begin(GUESS, server.url, out, "--tasks", 4, "--samples", 2)
        while not (out / "evaluation.json").exists():
            assert process.poll() is None
            time.sleep(0.02)
        done = invoke(GUESS, server.url, out)
        assert done.exit_code == 2
        assert "another process is writing" in done.output
        assert results(process)["complete"]
