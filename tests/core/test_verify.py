"""The engine against verifiers that do everything wrong, in real worker processes."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hostile_envs as hostile
import pytest
from judged import judge, keys, trainer
from processes import is_alive, running_with, wait_until, workers_below

from grpo_core import (
    ConfigError,
    Environment,
    GrpoError,
    Message,
    NoConfig,
    Reward,
    Rollout,
    RunStoppedError,
    Spec,
    Verdict,
)
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
from grpo_core.verify.judge.error_rate import ErrorRate


def judge_one(env: Environment[Any], answer: str, **settings: Any) -> Verdict:
    return judge(env, [[answer]], **settings)[0][0][0]


def workers_at_work(parent: int, count: int) -> list[int]:
    """Its workers once there are that many, and a moment later, when they are in the middle of a verdict."""
    assert wait_until(lambda: len(workers_below(parent)) == count, 30)
    workers = workers_below(parent)
    time.sleep(0.5)
    assert workers_below(parent) == workers
    return workers


# What comes back


BAD_RESULTS = {
    "raise": "ValueError: the table is missing",
    "exit": "sys.exit(3)",
    "none": "returned None",
    "nan": "must be finite",
    "above": "outside reward_range 0..1",
    "text": "is a str; it must be a number",
    "number": "is a float; it must be a Reward",
    "names": "has the parts ['format'], `parts` declares ['reward']",
    "weight": "has the weight 0.5, `parts` declares 1",
    "object": "detail is not JSON",
    "turns:0.5,0.5": "says what 2 turns earned, but the policy had 1; `turns` has one number for",
    "turns:inf": "must be finite",
    "unjudged": "the judge is down",
}


@pytest.mark.parametrize(
    "env", [hostile.Hostile(), hostile.Trusted()], ids=["in a worker", "inline"]
)
def test_a_result_that_is_no_verdict_becomes_an_error_that_says_what_was_wrong(
    env: Environment[Any],
) -> None:
    verdicts, stats = judge(env, [["1", *BAD_RESULTS, "0.5"]])
    first, *bad, last = verdicts[0]
    assert (first.total, first.passed, last.total) == (1.0, True, 0.5)
    for verdict, (order, reason) in zip(bad, BAD_RESULTS.items(), strict=True):
        assert not verdict.scored, order
        assert reason in (verdict.error or ""), order
    assert (stats.errors, stats.verdicts) == (len(BAD_RESULTS), len(BAD_RESULTS) + 2)


@pytest.mark.slow
def test_verifiers_that_hang_or_die_lose_only_their_own_row_within_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    monkeypatch.setenv("HOSTILE_NOTE", str(note))
    started = time.monotonic()
    verdicts, _ = judge(
        hostile.Hostile(),
        [["1", "sleep", "hold the GIL"], ["die", "0", "segfault"], ["spawn", "exit", "1"]],
        timeout_seconds=3,
        worker_environment=("HOSTILE_NOTE",),
    )
    assert time.monotonic() - started < 60
    assert [[v.scored for v in group] for group in verdicts] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    errors = [v.error or "" for group in verdicts for v in group]
    assert "exceeded its deadline of 3 s" in errors[1]
    assert "in misbehave" in errors[1], "the error shows where the verifier hung"
    assert "exceeded its deadline of 3 s" in errors[2]
    assert "exited with status 7" in errors[3]
    assert "goodbye" in errors[3]
    assert "SIGSEGV" in errors[5]
    assert note.exists()
    assert running_with(note) == [], "the verifier started it"


def test_what_a_verifier_prints_or_reads_does_not_touch_the_pipe() -> None:
    answers = ["print", "read stdin", "1", "print", "1"]
    ((*verdicts,),), _ = judge(hostile.Hostile(), [answers], workers=1)
    assert [v.total for v in verdicts] == [1.0] * 5


def test_what_a_verifier_writes_to_its_folder_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = judge_one(hostile.Hostile(), "write").answer
    assert folder is not None
    assert folder != str(tmp_path)
    assert not Path(folder).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_leaks_memory_is_replaced_and_no_row_is_lost() -> None:
    verdicts, stats = judge(hostile.Hostile(), [["leak"] * 8], workers=1, worker_memory_mb=120)
    assert stats.errors == 0
    held = [v.metrics["held"] for v in verdicts[0]]
    assert max(held) < 8
    assert held.count(1) > 1


def test_a_verdict_that_was_lost_to_a_dead_worker_is_asked_for_again(tmp_path: Path) -> None:
    verdicts, stats = judge(hostile.Hostile(), [[f"once:{tmp_path / 'marker'}", "1"]], retries=1)
    assert [v.total for v in verdicts[0]] == [1.0, 1.0]
    assert (stats.retried, stats.errors) == (1, 0)


async def test_hostile_texts_travel_unchanged() -> None:
    text = "\x00\ud800" + "x" * 1_000_000
    async with Verifier(hostile.Hostile(), settings=VerifyConfig(workers=1)) as verifier:
        (task,) = await verifier.tasks(keys(1))
        assert await verifier.audit(task, Rollout.of(text)) == len(text)


# Tasks, references, dialogues


async def test_tasks_and_references_come_from_a_worker_and_secrets_stay_there() -> None:
    async with Verifier(hostile.Hostile(), settings=VerifyConfig(workers=2)) as verifier:
        tasks = await verifier.tasks(keys(3), draws=[7, 8, 9])
        assert [(t.prompt, t.data, t.draw) for t in tasks] == [
            (f"question {i}", None, 7 + i) for i in range(3)
        ]
        assert await verifier.reference(tasks[1]) == "1 drawn 8"
        assert await verifier.reply(tasks[2], [Message("assistant", "why")]) == (
            Message("user", "2: why?"),
        )
        with pytest.raises(GrpoError, match=r"failed in reply\(\).*exceeded its deadline"):
            await verifier.reply(tasks[2], [Message("assistant", "fall silent")])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("raise", "the table is missing"),
        ("sleep", "exceeded its deadline of 0.5 s"),
        ("die", "exited with status 7"),
        ("empty", "prompt is empty"),
        ("other key", "pass the key on unchanged"),
        ("none", "AssertionError"),
    ],
)
def test_a_task_that_cannot_be_made_is_a_clear_error(order: str, reason: str) -> None:
    env = hostile.HostileTasks(hostile.HostileTasksConfig(order))
    with pytest.raises(
        GrpoError, match=r"environment 'hostile' failed in task\(\) for TaskKey"
    ) as caught:
        judge(env, [["1"]], task_timeout_seconds=0.5 if order == "sleep" else 60)
    assert reason in str(caught.value)


async def test_a_task_that_differs_between_processes_is_never_judged_as_if_it_were_the_same() -> (
    None
):
    env = hostile.HostileTasks(hostile.HostileTasksConfig("impure"))
    async with Verifier(env, settings=VerifyConfig(workers=1, retries=0)) as verifier:
        (task,) = await verifier.tasks(keys(1))
        await verifier.verify([task], [[Rollout.of("die")]])
        ((verdict,),) = await verifier.verify([task], [[Rollout.of("1")]])
    assert "take all randomness from key.rng()" in (verdict.error or "")


async def test_a_worker_is_built_from_the_spec_and_the_overrides_when_they_are_given() -> None:
    spec = Spec("hostile", "hostile_envs:HostileTasks")
    async with Verifier(hostile.Hostile(), spec=spec, overrides={"order": "plain"}) as verifier:
        assert (await verifier.tasks(keys(1)))[0].prompt == "question 0"


# Inline and asynchronous


def test_a_trusted_environment_runs_in_this_process_and_still_has_deadlines() -> None:
    ((_, late, after),), _ = judge(hostile.Trusted(), [["1", "sleep", "1"]], timeout_seconds=0.5)
    assert "exceeded its deadline of 0.5 s" in (late.error or "")
    assert after.total == 1.0


@pytest.mark.parametrize(
    ("env", "settings", "here"),
    [
        (hostile.Trusted(), {}, True),
        (hostile.Hostile(), {}, False),
        (hostile.Hostile(), {"isolation": "inline"}, True),
        (hostile.Trusted(), {"isolation": "process"}, False),
    ],
    ids=["trusted", "untrusted", "told to run here", "told to run elsewhere"],
)
def test_an_untrusted_environment_runs_elsewhere_unless_told_otherwise(
    env: Environment[Any], settings: dict[str, Any], here: bool
) -> None:
    assert (judge_one(env, "pid", workers=1, **settings).answer == str(os.getpid())) is here


def test_asynchronous_verdicts_keep_their_limit_and_their_deadlines() -> None:
    env = hostile.Patient()
    answers = ["1"] * 10 + ["sleep", "swallow", "raise", "exit", "none"]
    verdicts, _ = judge(env, [answers], timeout_seconds=0.3, max_concurrency=4)
    assert [v.scored for v in verdicts[0]] == [True] * 10 + [False] * 5
    assert env.most <= 4


def test_two_event_loops_one_after_the_other_can_use_the_same_verifier() -> None:
    verifier = Verifier(hostile.Hostile(), settings=VerifyConfig(workers=1))
    tasks = asyncio.run(verifier.tasks(keys(2)))
    first = asyncio.run(verifier.verify(tasks, [[Rollout.of("1")] * 3] * 2))
    asyncio.run(verifier.close())
    assert [v.total for group in first for v in group] == [1.0] * 6
    assert workers_below(os.getpid()) == []


# One rollout


@pytest.mark.parametrize("env_class", [hostile.Trusted, hostile.Patient, hostile.Batch])
async def test_a_rollout_gets_the_verdict_alone_that_it_gets_among_others(
    env_class: type[Environment[Any]],
) -> None:
    rollouts = [Rollout.of("1"), Rollout.of("0.5"), Rollout((), finish="error")]
    async with Verifier(env_class(), weights={"reward": 0.5}) as verifier:
        task = await verifier.task(keys(1)[0])
        alone = [await verifier.judge(task, rollout) for rollout in rollouts]
        (together,) = await verifier.verify([task], [rollouts])
    assert alone == together
    assert [verdict.total for verdict in alone[:2]] == [0.5, 0.25]
    assert [verdict.scored for verdict in alone] == [True, True, False]
    assert (verifier.stats.verdicts, verifier.stats.errors) == (6, 2)


# Whole groups


BROKEN = Rollout((), finish="error")


@pytest.mark.parametrize(
    ("answers", "retries", "scored", "calls"),
    [
        (
            [["1", "0"], ["1", "raise"], ["0.5", "1"]],
            0,
            [[True, True], [False, False], [True, True]],
            [[0, 1, 2], [0], [1], [2]],
        ),
        (
            [["1", "0"], ["1", "forgotten"], ["1", "nan"]],
            1,
            [[True, True], [False, False], [True, False]],
            [[0, 1, 2], [1], [2]],
        ),
        ([[BROKEN, "1"], ["1"], [BROKEN]], 0, [[False, True], [True], [False]], [[0, 1]]),
    ],
    ids=["one fails", "one has too few verdicts", "dialogues broke"],
)
def test_a_group_that_cannot_be_judged_is_asked_again_alone_and_takes_no_other_with_it(
    answers: list[list[Any]], retries: int, scored: list[list[bool]], calls: list[list[int]]
) -> None:
    env = hostile.Batch()
    verdicts, stats = judge(env, answers, retries=retries)
    assert [[v.scored for v in group] for group in verdicts] == scored
    assert env.calls == calls
    assert stats.errors == sum(group.count(False) for group in scored)
    if retries == 1:
        assert "returned 1 items for 2 rollouts" in (verdicts[1][0].error or "")


def test_a_batch_that_hangs_ends_at_its_deadline_and_costs_only_the_group_that_hung_it() -> None:
    ((judged,), (hung,)), _ = judge(hostile.Batch(), [["1"], ["wait"]], timeout_seconds=0.2)
    assert judged.total == 1.0
    assert "verify_batch() exceeded its deadline of 0.2 s" in (hung.error or "")


# Settings


@pytest.mark.parametrize("env", [hostile.Hostile(), hostile.Batch()])
def test_what_each_turn_earned_reaches_the_trainer_with_its_weight(env: Environment[Any]) -> None:
    asked = (Message("assistant", "1"), Message("user", "?"), Message("assistant", "turns:0,0.5"))
    verdict = judge(env, [[Rollout(asked)]], weights={"reward": 3.0})[0][0][0]
    assert verdict.rewards == {"reward": Reward(0.5, 3.0, turns=(0.0, 0.5))}
    assert verdict.total == 1.5
    assert "had 1" in (judge(env, [["turns:0,0.5"]])[0][0][0].error or "")


def test_an_environment_and_weights_that_cannot_be_used_are_refused_before_any_worker() -> None:
    class Local(hostile.Hostile):
        pass

    class Needy(hostile.Hostile):
        needs = frozenset({"sandbox"})

    apart = r"top level of a module.*trusted = True.*verify\.isolation=inline"
    for env, weights, said in (
        (hostile.Trusted(), {"rewards": 1.0}, "did you mean 'reward'"),
        (Local(), None, apart),
        (Needy(NoConfig()), None, r"needs sandbox.*averify"),
    ):
        with pytest.raises(ConfigError, match=said):
            Verifier(env, weights=weights)


# Nothing left behind


async def test_ctrl_c_in_the_middle_of_a_verdict_leaves_no_process() -> None:
    settings = VerifyConfig(workers=2, timeout_seconds=60)
    async with Verifier(hostile.Hostile(), settings=settings) as verifier:
        tasks = await verifier.tasks(keys(1))
        job = asyncio.ensure_future(verifier.verify(tasks, [[Rollout.of("sleep")] * 2]))
        await asyncio.to_thread(workers_at_work, os.getpid(), 2)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
    assert workers_below(os.getpid()) == []


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux kills the workers of a killed parent at once"
)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", ["hold the GIL", "sleep"])
def test_kill_9_of_the_trainer_leaves_no_worker_and_the_next_one_removes_its_folder(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer(hostile.Hostile, order, folder=tmp_path) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"ready\n"
        (worker,) = workers_at_work(killed.pid, 1)
        killed.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_alive(worker), 5)
    (left,) = tmp_path.iterdir()
    own = tmp_path / f"{left.name.rsplit('-', 2)[0]}-{os.getpid()}-x"  # of a trainer that is alive
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asyncio.run(Verifier(hostile.Hostile()).close())
    assert (left.exists(), own.exists()) == (False, True)


# The error rate


def test_a_run_stops_above_the_error_rate_and_names_the_most_common_reasons() -> None:
    rate = ErrorRate(stop_above=0.2)
    good = Verdict(rewards={"reward": Reward(0.0)})
    bad = Verdict.failed("the judge is down\ndetails")
    rate.add([good] * 8 + [bad] * 2)
    rate.add([good] * 8 + [bad] * 2)
    assert rate.rate == 0.2
    said = r"(?s)5 of the last 21 rollouts.*\n  4 x the judge is down\n  1 x out of memory"
    with pytest.raises(RunStoppedError, match=said):
        rate.add([Verdict.failed("out of memory")])


def test_a_few_early_errors_and_errors_of_long_ago_do_not_stop_a_run() -> None:
    rate = ErrorRate(stop_above=0.2, window=100, minimum=20)
    good, bad = Verdict(rewards={"reward": Reward(0.0)}), Verdict.failed("slow start")
    rate.add([bad] * 3 + [good] * 100)
    assert rate.rate == 0.0
    rate.add([bad] * 20)
    assert rate.rate == 0.2
