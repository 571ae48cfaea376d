"""Worker processes that are attacked from inside, by real code in real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hostile_workers as hostile
import pytest
from judged import trainer
from processes import is_alive, running_with, wait_until, workers_below

from grpo_core import Environment, GrpoError, Rollout, TaskKey, Verdict
from grpo_core.calls.process import WorkerProcess
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers, which only Linux has")
MOST_TEXT = 2000


def judge_in_turn(env: Environment[Any], answers: Sequence[str], **settings: Any) -> list[Verdict]:
    """Ask a pool of one worker for one verdict after the other; it never has a second worker."""

    async def run() -> list[Verdict]:
        chosen = VerifyConfig(**{"workers": 1, "retries": 0, **settings})
        async with Verifier(env, settings=chosen) as verifier:
            tasks = await verifier.tasks([TaskKey("hostile", "train", 0)])
            verdicts = []
            for answer in answers:
                verdicts += (await verifier.verify(tasks, [[Rollout.of(answer)]]))[0]
                assert len(workers_below(os.getpid())) <= 1, f"a worker is left after {answer}"
            return verdicts

    verdicts = asyncio.run(run())
    assert workers_below(os.getpid()) == []
    return verdicts


# Replies


@pytest.mark.slow
def test_a_reply_that_is_none_ends_the_worker_and_costs_no_other_verdict() -> None:
    answers = [order for name in hostile.BODIES for order in (f"body:{name}", "pid:")]
    verdicts = judge_in_turn(hostile.Attacker(), answers, timeout_seconds=20)
    for answer, verdict in zip(answers, verdicts, strict=True):
        if answer == "pid:":
            assert verdict.total == 1.0
        else:
            assert "reply is invalid" in (verdict.error or ""), answer
            assert len(verdict.error or "") < MOST_TEXT, answer
    workers = {verdict.answer for verdict in verdicts[1::2]}
    assert len(workers) == len(hostile.BODIES), "each had a new worker"


def test_a_header_that_announces_too_much_is_refused_before_anything_is_read() -> None:
    answers = [*(f"header:{name}" for name in hostile.HEADERS), "oversized:", "pid:"]
    *refused, served = judge_in_turn(hostile.Attacker(), answers, timeout_seconds=20)
    assert all("reply is invalid" in (verdict.error or "") for verdict in refused)
    assert served.total == 1.0


def test_what_comes_after_a_reply_is_never_the_reply_to_the_next_request() -> None:
    """The first verdict may be forged: code in the worker can do whatever the worker can."""
    orders = ["twice:", "pid:", "bytes after:", "pid:", "for the next:", "pid:"]
    verdicts = judge_in_turn(hostile.Attacker(), orders, retries=1)
    assert [verdict.total for verdict in verdicts] == [1.0] * 6
    honest = [verdict.answer for verdict in verdicts[1::2]]
    assert "forged" not in honest
    assert len(set(honest)) == 3, "a worker with bytes to spare is replaced"


def test_a_worker_that_dies_of_a_signal_is_said_to_whatever_the_signal_is() -> None:
    orders = ["die of:40", f"die of:{int(signal.SIGALRM)}", "pid:"]
    unnamed, named, after = judge_in_turn(hostile.Attacker(), orders)
    assert "the worker process was killed by signal 40" in (unnamed.error or "")
    assert "the worker process was killed by SIGALRM" in (named.error or "")
    assert after.total == 1.0


# Texts


LONG_ORDERS = ["raise:", "exit:", "parts:", "failed:"]


@pytest.mark.parametrize(
    ("env", "orders"),
    [
        (hostile.Attacker(), [*LONG_ORDERS, "long error reply:"]),
        (hostile.TrustedAttacker(), LONG_ORDERS),
    ],
    ids=["in a worker", "inline"],
)
def test_the_text_of_an_error_is_bounded_and_says_how_long_it_was(
    env: Environment[Any], orders: list[str]
) -> None:
    asked = ["unprintable:", "pid:", *orders]
    unprintable, scored, *long = judge_in_turn(env, asked, timeout_seconds=30)
    for order, verdict in zip(orders, long, strict=True):
        assert not verdict.scored
        assert len(verdict.error or "") <= MOST_TEXT, order
        assert "characters)" in (verdict.error or ""), order
        assert (verdict.error or "").encode(), order
    assert "UnprintableError" in (unprintable.error or "")
    assert scored.total == 1.0


def test_an_environment_that_cannot_be_built_is_told_in_a_bounded_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = hostile.LongUnbuildable()
    monkeypatch.setenv("LONG_UNBUILDABLE", "1")
    with pytest.raises(GrpoError, match="could not build the environment: OSError: xxx") as caught:
        judge_in_turn(env, ["pid:"], worker_environment=("LONG_UNBUILDABLE",))
    assert len(str(caught.value)) < MOST_TEXT + 500


def test_a_verdict_too_large_to_send_is_an_error_and_the_worker_goes_on() -> None:
    answers = ["pid:", "large:", "pid:"]
    before, large, after = judge_in_turn(hostile.Attacker(), answers, timeout_seconds=20)
    assert "keep `detail` small" in (large.error or "")
    assert before.answer == after.answer


# The environment of a worker


def test_workers_inherit_the_listed_variables_and_those_that_the_settings_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "https_proxy"]
    secrets += [f"GRPO_{word}" for word in ("API_KEY", "Api_Key", "PASSPHRASE", "PASSWD", "AUTH")]
    secrets += ["GRPO_DSN", "GRPO_DATA", "LC_DSN", "COVERAGE_DSN"]
    others = ["LC_TIME", "OMP_NUM_THREADS", "HF_HOME", "GRPO_CACHE", "MY_DATA"]
    for name in [*secrets, *others, "MY_OTHER_DATA"]:
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    further = ("MY_DATA", "NOT_SET")
    (verdict,) = judge_in_turn(hostile.Attacker(), ["environment:"], worker_environment=further)
    inherited = json.loads(verdict.answer or "")
    assert [name for name in [*secrets, "MY_OTHER_DATA", "NOT_SET"] if name in inherited] == []
    assert [name for name in others if name not in inherited] == []
    assert inherited["PATH"] == os.environ["PATH"]
    assert Path(inherited["TMPDIR"]).name.startswith("grpo-worker-")


# What a verifier starts


def noted(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


@pytest.mark.sampled(1)
@LINUX
@pytest.mark.parametrize(
    "end", ["", " and sleep", " and die", " and crash", " and stop the parent"]
)
def test_a_process_with_a_session_of_its_own_ends_with_its_worker(end: str, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    judge_in_turn(hostile.Attacker(), [f"daemon:{note}", f"daemon:{note}", f"daemon{end}:{note}"])
    assert len(noted(note)) == 3
    assert running_with(note) == []


@LINUX
def test_a_process_with_a_session_of_its_own_ends_with_a_killed_trainer(tmp_path: Path) -> None:
    """Even if its worker's parent is stopped."""
    note = tmp_path / "pids"
    orders = [f"daemon:{note}", f"daemon, stop the parent and sleep:{note}"]
    with trainer(hostile.Attacker, *orders, folder=tmp_path) as killed:
        assert wait_until(lambda: note.exists() and len(noted(note)) == 2, 30)
        workers = workers_below(killed.pid)
        assert len(running_with(note)) == 2
        time.sleep(0.2)  # the last order goes on after its note
        killed.send_signal(signal.SIGKILL)
    assert len(workers) == 1
    assert wait_until(lambda: not (any(map(is_alive, workers)) or running_with(note)))


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    started: list[WorkerProcess] = []
    thread = threading.Thread(target=lambda: started.append(WorkerProcess()))
    thread.start()
    thread.join()
    (worker,) = started
    try:
        time.sleep(0.3)
        spec = {"name": "attacker", "target": "hostile_workers:Attacker", "extra": None}
        assert worker.ask({"spec": spec, "overrides": {}, "seconds": 30}).error is None
    finally:
        worker.end()


@LINUX
def test_a_helper_that_a_verifier_keeps_lives_as_long_as_its_worker() -> None:
    verdicts = judge_in_turn(hostile.Attacker(), ["helper:"] * 3)
    helpers = {verdict.answer or "" for verdict in verdicts}
    assert len(helpers) == 1
    assert running_with(helpers.pop()) == []


# Bounded waits


def test_an_environment_that_never_finishes_closing_is_killed() -> None:
    started = time.monotonic()
    (verdict,) = judge_in_turn(hostile.Deaf(), ["pid:"])
    assert verdict.total == 1.0
    assert time.monotonic() - started < 10


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "order",
    ["half:", pytest.param("escape and trickle:", marks=LINUX)],
    ids=["half a reply", "a trickle of a process without its reaper"],
)
def test_a_reply_that_never_ends_keeps_nobody_waiting(order: str) -> None:
    started = time.monotonic()
    endless, after = judge_in_turn(hostile.Attacker(), [order, "pid:"], timeout_seconds=2)
    assert "exceeded its deadline of 2 s" in (endless.error or "")
    assert after.total == 1.0
    assert time.monotonic() - started < 15


def test_a_verifier_that_floods_its_output_ends_at_its_deadline() -> None:
    before = time.process_time()
    flooding, after = judge_in_turn(hostile.Attacker(), ["flood:", "pid:"], timeout_seconds=1.5)
    assert "exceeded its deadline of 1.5 s" in (flooding.error or "")
    assert len(flooding.error or "") < 2 * MOST_TEXT
    assert after.total == 1.0
    assert time.process_time() - before < 1.4, "what is thrown away costs the trainer little"


@LINUX
def test_processes_that_replace_themselves_end_with_their_worker(tmp_path: Path) -> None:
    """Each forks the next and ends, so the one that is there is never there for long."""
    note = tmp_path / "time"
    judge_in_turn(hostile.Attacker(), [f"chain:{note}"])
    last = note.read_text()
    time.sleep(0.5)
    assert note.read_text() == last


def test_a_folder_of_any_depth_goes_with_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (verdict,) = judge_in_turn(hostile.Attacker(), ["deep folder:"])
    left = list(tmp_path.iterdir())
    subprocess.run(["rm", "-rf", *left], check=True)  # what is that deep, pytest cannot remove
    assert verdict.total == 1.0
    assert left == []


def test_only_folders_of_trainers_that_have_gone_are_removed_whatever_their_names_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (verdict,) = judge_in_turn(hostile.Attacker(), ["environment:"])
    prefix = Path(json.loads(verdict.answer or "")["TMPDIR"]).name.rsplit("-", 2)[0]
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (tmp_path / f"{prefix}-{gone.pid}-link").symlink_to(precious)
    deep = tmp_path / f"{prefix}-{gone.pid}-deep"
    beyond = tmp_path / f"{prefix}-{10**30}-x"
    for folder in (deep, beyond, tmp_path / f"{prefix}-\u00b2-x"):
        folder.mkdir()
    (deep / "link").symlink_to(precious)
    (deep / "closed").mkdir(mode=0)
    judge_in_turn(hostile.Attacker(), ["pid:"])
    assert (deep.exists(), beyond.exists()) == (False, False)
    assert (precious / "file").exists()
