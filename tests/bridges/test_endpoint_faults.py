"""`grpo eval --endpoint` with servers that fail, and in processes that are killed: nothing is lost or counted twice."""

import json
import random
import signal
import time
from typing import Any

import pytest

from grpo_core import TaskKey

from ..plugins.endpoint import failed
from .evaluated import (
    FAULTS,
    FRAIL,
    GUESS,
    Evaluated,
    half_right,
    index_of,
    passed,
    results,
    scripted,
    seed_of,
)

pytestmark = pytest.mark.usefixtures("quick")
KEY = "sk-abcdef0123456789"


@pytest.mark.slow
def test_results_equal_those_without_faults(endpoint: Evaluated) -> None:
    """500, 429 with Retry-After, hanging, cut and closed connections, broken JSON, slow and endless bodies."""
    script = scripted(GUESS, tasks=12, samples=3, turns=half_right)
    more = ("--tasks", 12, "--samples", 3, "--timeout", 3, "--retries", 15, "--concurrency", 36)
    found = []
    for out, faults in (("without", ()), ("with", FAULTS)):
        answered = endpoint.follow(script, *faults)
        found.append(endpoint.evaluate(GUESS, *more, out=out))
        assert len(answered) == len(script)
    assert found[0]["results"] == found[1]["results"]
    assert found[0]["usage"]["retries"] == 0 < found[1]["usage"]["retries"]
    assert 0 < passed(found[0]) < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [3, pytest.param(24, marks=pytest.mark.heavy)], ids=["few", "many"]
)
def test_kills_lose_nothing_and_count_nothing_twice(kills: int, endpoint: Evaluated) -> None:
    """The client of a server under faults is killed at random moments of its dialogues, and goes on."""
    tasks, samples, concurrency = (10 * kills, 2, 4)
    faults = FAULTS if kills > 3 else ("status", "busy", "cut", "garbage", "close")
    script = scripted(GUESS, tasks=tasks, samples=samples, turns=half_right)
    counts = ("--tasks", tasks, "--samples", samples, "--timeout", 0.7, "--retries", 15)
    rng = random.Random(0)
    frozen: dict[str, int] = {}  # how often requests were answered whose attempts are on disk
    answered = endpoint.follow(script, *faults, seconds=0.03)
    for _ in range(kills):
        before = len(endpoint.lines())
        process = endpoint.begin(GUESS, *counts, "--concurrency", concurrency)
        while len(endpoint.lines()) == before:  # each process makes at least one attempt
            assert process.poll() is None, "the evaluation was over before all kills"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        for line in endpoint.lines():
            for turn in range(4):
                seed = seed_of(TaskKey(**line["key"]), line["attempt"], turn)
                frozen.setdefault(seed, answered[seed])
    found = results(endpoint.begin(GUESS, *counts, "--concurrency", 32))
    assert {seed: answered[seed] for seed in frozen} == frozen
    in_progress = 2 * concurrency * 4 * kills
    assert sum(answered.values()) - len(answered) <= in_progress
    endpoint.follow(script)
    expected = endpoint.evaluate(GUESS, *counts, out="undisturbed")
    assert found["complete"]
    assert found["results"] == expected["results"]
    lines = [(line["key"]["index"], line["attempt"]) for line in endpoint.lines()]
    assert sorted(lines) == [(task, number) for task in range(tasks) for number in range(samples)]


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, "--request FIELD=null"), (401, "--key-env"), (404, "--model-name")],
)
def test_a_request_that_is_refused_for_its_settings_ends_all_at_once(
    status: int, hint: str, endpoint: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message, whose text repeats no key, and few requests; nothing counts as an attempt."""
    monkeypatch.setenv("MY_KEY", KEY)
    endpoint.reply = lambda asked: failed(status, f"no, {KEY}, {asked['seed']}")
    more = ("--tasks", 50, "--concurrency", 2, "--key-env", "MY_KEY")
    done = endpoint.invoke(FRAIL, *more)
    assert done.exit_code == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert f"HTTP status {status}: no, [redacted]" in error
    assert hint in error
    assert KEY not in done.output
    assert len(endpoint.asked) <= 8
    assert not (endpoint.out / "attempts.jsonl").exists()


def test_an_attempt_that_the_server_does_not_answer_is_an_error_and_is_made_again(
    endpoint: Evaluated,
) -> None:
    """It is in no mean; the next call asks for it alone, and then all is as if nothing had happened."""
    down = True

    def reply(asked: dict[str, Any]) -> Any:
        broken = down and index_of(asked) == "2"
        return failed(503, "down") if broken else index_of(asked)

    endpoint.reply = reply
    set_rate = ("--set", "verify.max_error_rate=1", "--retries", 2)
    done = endpoint.invoke(FRAIL, *set_rate)
    assert done.exit_code == 0
    assert "2 x the dialogue failed before its end" in done.stderr
    assert "the endpoint failed (3 tries): HTTP status 503: down" in done.stderr
    assert f"--out {endpoint.out}" in done.stderr
    found = json.loads(done.stdout)
    assert found["results"][0]["unscored"] == 2
    assert passed(found) == 1.0
    down = False
    endpoint.asked.clear()
    again = endpoint.evaluate(FRAIL, *set_rate)
    assert len(endpoint.asked) == 2
    assert (again["results"][0]["unscored"], passed(again)) == (0, 1.0)
    assert again["usage"]["requests"] == 8


def test_too_many_failures_end_the_evaluation_with_their_reasons(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: failed(500, "broken")
    more = ("--tasks", 500, "--retries", 0, "--concurrency", 4)
    done = endpoint.invoke(FRAIL, *more)
    assert done.exit_code == 1
    assert "could not be judged, more than verify.max_error_rate allows" in done.stderr
    assert "HTTP status 500: broken" in done.stderr
    assert f"with --out {endpoint.out}" in done.stderr
    assert len(endpoint.asked) < 60


def test_a_verifier_that_failed_is_asked_again_and_the_server_is_not(
    endpoint: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = endpoint.folder / "broken"
    broken.touch()
    monkeypatch.setenv("FRAIL_WHILE", str(broken))
    endpoint.reply = index_of
    rate = ("--set", "verify.max_error_rate=1")
    found = endpoint.evaluate(FRAIL, *rate)
    assert found["results"][0]["unscored"] == 2
    assert "the verifier is down" in next(iter(found["errors"]))
    broken.unlink()
    endpoint.asked.clear()
    again = endpoint.evaluate(FRAIL, *rate)
    assert endpoint.asked == []
    assert (again["results"][0]["unscored"], passed(again)) == (0, 1.0)
    assert again["usage"] == found["usage"]


def test_a_refusal_of_a_neutral_text_is_one_of_the_settings(endpoint: Evaluated) -> None:
    """A limit of tokens that the model does not know would otherwise look like answers of 0."""
    endpoint.reply = lambda asked: failed(400, "stop: list is too long")
    done = endpoint.invoke(FRAIL, "--stop", "a", "--stop", "b")
    assert done.exit_code == 2
    assert "refuses the request: HTTP status 400: stop: list is too long" in done.stderr
    assert not (endpoint.out / "attempts.jsonl").exists()


def test_a_dialogue_that_outgrows_the_context_ends_with_the_turn_before(
    endpoint: Evaluated,
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        if len(asked["messages"]) > 7:
            return failed(400, "the prompt exceeds the context size")
        return "0"

    endpoint.reply = reply
    found = endpoint.evaluate(GUESS, "--tasks", 1, "--samples", 1)
    (result,) = found["results"]
    assert (result["refused"], "unasked" in result) == ({"context": 1}, False)
    (line,) = endpoint.lines()
    assert (line["finish"], line["reply_dropped"]) == ("length", True)
    assert [m["role"] for m in line["messages"]] == ["assistant"]


def test_a_pause_that_the_server_asks_for_is_kept_by_all_requests(endpoint: Evaluated) -> None:
    times: list[float] = []

    def reply(asked: dict[str, Any]) -> Any:
        times.append(time.monotonic())
        return (429, b"", {"Retry-After": "0.3"}) if len(times) == 1 else "1"

    endpoint.reply = reply
    endpoint.evaluate(FRAIL, "--concurrency", 1)
    assert len(times) == 9
    assert times[1] - times[0] >= 0.29


def test_requests_begin_evenly_spaced(endpoint: Evaluated) -> None:
    times: list[float] = []

    def reply(asked: dict[str, Any]) -> Any:
        times.append(time.monotonic())
        return "1"

    endpoint.reply = reply
    endpoint.evaluate(FRAIL, "--per-minute", 1200)
    assert times[-1] - times[0] >= 0.3


@pytest.mark.slow
def test_an_interrupted_evaluation_says_how_to_go_on(endpoint: Evaluated) -> None:
    """Attempts that were started end, and are printed; the rest is made by the next call."""
    script = scripted(GUESS, tasks=40, samples=1, turns=half_right)
    counts = ("--tasks", 40, "--samples", 1, "--concurrency", 2)
    answered = endpoint.follow(script, seconds=0.05)
    process = endpoint.begin(GUESS, *counts)
    while len(endpoint.lines()) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    found = results(process, status=130)
    assert not found["complete"]
    made = found["results"][0]["attempts"]
    assert 2 <= made == len(endpoint.lines()) < 40
    assert f"Continue with the same command and --out {endpoint.out}" in found["remarks"]
    whole = endpoint.evaluate(GUESS, *counts)
    assert set(answered.values()) == {1}
    assert whole["results"][0]["attempts"] == 40


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_server_that_is_away(endpoint: Evaluated) -> None:
    endpoint.stop()
    process = endpoint.begin(FRAIL, "--retries", 1000)
    while not (endpoint.out / "evaluation.json").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    found = results(process, status=130)
    assert found["results"][0]["attempts"] == 0


def test_lines_that_a_kill_or_an_accident_damaged_are_made_again(endpoint: Evaluated) -> None:
    file = endpoint.out / "attempts.jsonl"
    found = endpoint.evaluate(FRAIL)
    lines = file.read_bytes().splitlines(keepends=True)
    broken = b'{"key": 7, "verdict": null}\n' + b"".join(lines[:6]) + b"\xff\n" + lines[6][:50]
    file.write_bytes(broken)
    endpoint.asked.clear()
    done = endpoint.invoke(FRAIL)
    assert done.exit_code == 0, done.output
    assert "3 lines of it could not be read" in done.stderr
    assert len(endpoint.asked) == 2
    assert json.loads(done.stdout)["results"] == found["results"]
    assert len(endpoint.lines()) == 8


@pytest.mark.slow
def test_one_process_at_a_time_writes_a_folder(endpoint: Evaluated) -> None:
    endpoint.follow(scripted(GUESS, tasks=4, samples=2), seconds=1.5)
    process = endpoint.begin(GUESS, "--tasks", 4, "--samples", 2)
    while not (endpoint.out / "evaluation.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    done = endpoint.invoke(GUESS)
    assert done.exit_code == 2
    assert "another process is writing" in done.output
    assert results(process)["complete"]
