"""The verdict cache: what it answers, what it never answers, and what becomes of it on disk."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import (
    ConfigError,
    Environment,
    Group,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
from grpo_core.verify.judge.cache import VerdictCache
from grpo_core.verify.sources import Sources

KEY = TaskKey("counting", "train", 0)


class Counting(Environment[str]):
    """Every verdict says how many were given before."""

    trusted = True
    reward_range = (0.0, 1000.0)

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.judged = 0

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, (Message("user", f"say {key.index}"),), "")

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.judged += 1
        await asyncio.sleep(0.01)
        if rollout.text == "broken" and self.judged == 1:
            raise RuntimeError("the judge is down")
        return Verdict({"reward": Reward(float(self.judged), seconds=1.0)}, answer=rollout.text)


class Moody(Counting):
    deterministic = False


class Remembering(Counting):
    stateful = True


class Comparing(Counting):
    async def verify_batch(self, groups: Sequence[Group[str]]) -> list[list[Verdict]]:
        return [
            [await self.averify(group.task, rollout) for rollout in group.rollouts]
            for group in groups
        ]


def judge(
    env: Counting,
    answers: Sequence[str | Rollout],
    *,
    cache: VerdictCache | None = None,
    draw: int = 0,
    key: TaskKey = KEY,
    retries: int = 0,
) -> tuple[list[Verdict], Verifier]:
    async def run() -> tuple[list[Verdict], Verifier]:
        settings = VerifyConfig(retries=retries)
        async with Verifier(
            env, settings=settings, cache=cache or VerdictCache(entries=100)
        ) as verifier:
            tasks = await verifier.tasks([key], draw)
            rollouts = [a if isinstance(a, Rollout) else Rollout.of(a) for a in answers]
            return (await verifier.verify(tasks, [rollouts]))[0], verifier

    return asyncio.run(run())


def test_equal_attempts_of_a_group_are_judged_once_and_counted():
    verdicts, verifier = judge(env := Counting(), ["a", "b", "a", "a"])
    assert env.judged == 2
    assert [verdict.answer for verdict in verdicts] == ["a", "b", "a", "a"]
    assert verdicts[0] == verdicts[2] == verdicts[3]
    assert [verdict.rewards["reward"].seconds for verdict in verdicts] == [1.0, 1.0, 0.0, 0.0]
    assert (verifier.stats.cache_lookups, verifier.stats.cache_hits) == (4, 2)


@pytest.mark.parametrize("kind", [Moody, Remembering, Comparing])
def test_an_environment_whose_verdicts_depend_on_more_than_the_attempt_is_always_asked(
    kind: type[Counting],
):
    _, verifier = judge(env := kind(), ["a", "a", "a"])
    assert env.judged == 3
    assert (verifier.stats.cache_lookups, verifier.stats.cache_hits) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"draw": 1},
        {"key": replace(KEY, level=0.5)},
        {"key": replace(KEY, split="eval")},
        {"answers": ["b"]},
        {"answers": [replace(Rollout.of("a"), finish="length")]},
        {"answers": [Rollout((Message("assistant", "a", thoughts="hm"),))]},
    ],
    ids=["draw", "level", "split", "text", "finish", "thoughts"],
)
def test_whatever_a_verdict_may_depend_on_is_part_of_its_name(other: dict[str, Any]):
    cache, env = VerdictCache(entries=100), Counting()
    for arguments in ({"answers": ["a"]}, {"answers": ["a"]}, {"answers": ["a"], **other}):
        judge(env, cache=cache, **arguments)
    assert env.judged == 2


def test_a_failure_is_not_kept_and_costs_no_other_attempt():
    verdicts, _ = judge(env := Counting(), ["broken", "broken", "broken"])
    assert [verdict.scored for verdict in verdicts] == [False, True, True]
    assert env.judged == 3
    again, verifier = judge(Counting(), ["broken"], retries=1)
    assert again[0].scored
    assert verifier.stats.cache_hits == 0


class Paying(Counting):
    """Each turn earns its number."""

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.judged += 1
        earned = tuple(float(number) for number in range(rollout.turns))
        return Verdict({"reward": Reward(turns=earned, seconds=1.0)})


def test_a_file_is_known_to_a_later_run_with_what_each_turn_earned(tmp_path: Path):
    say, path = Message("assistant", "a"), tmp_path / "deep" / "verdicts.sqlite"
    attempt = Rollout((say, Message("user", "?"), say))
    for judged in (1, 0):
        cache = VerdictCache(path, entries=100)
        verdicts, _ = judge(env := Paying(), [attempt], cache=cache)
        cache.close()
        assert env.judged == judged
        assert verdicts[0].rewards["reward"].turns == (0.0, 1.0)
    with sqlite3.connect(path) as file:
        file.execute("""UPDATE verdicts SET verdict = replace(verdict, '[0.0, 1.0]', '[1.0]')""")
    cache = VerdictCache(path, entries=100)
    judge(env, [attempt], cache=cache)
    cache.close()
    assert env.judged == 1, "a verdict with another number of turns was used"


@pytest.mark.parametrize("name", [None, "verdicts.sqlite"])
def test_only_so_many_are_kept_and_the_oldest_go_first(tmp_path: Path, name: str | None):
    cache = VerdictCache(tmp_path / name if name else None, entries=10)
    env = Counting()
    for start in range(0, 100, 5):
        judge(env, [str(number) for number in range(start, start + 5)], cache=cache)
    judge(env, [str(number) for number in range(90, 100)], cache=cache)
    assert env.judged == 100
    judge(env, ["89"], cache=cache)
    assert env.judged == 101


def test_a_damaged_file_is_one_clear_message(tmp_path: Path):
    (tmp_path / "verdicts.sqlite").write_text("this is no database " * 100)
    said = r"verdicts\.sqlite cannot be used: file is not a database; delete the file"
    with pytest.raises(ConfigError, match=said):
        VerdictCache(tmp_path / "verdicts.sqlite", entries=10)


def test_a_file_that_fails_later_costs_the_cache_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    cache = VerdictCache(tmp_path / "verdicts.sqlite", entries=10)
    env = Counting()
    cache.close()
    with caplog.at_level(logging.WARNING):
        verdicts, _ = judge(env, ["a", "a", "b"], cache=cache)
    assert all(verdict.scored for verdict in verdicts)
    assert [record.message for record in caplog.records] == [
        "verdicts are no longer cached: Cannot operate on a closed database."
    ]


@pytest.mark.parametrize(
    ("kind", "judged"), [("off", [4, 8]), ("memory", [2, 4]), ("disk", [2, 2])]
)
async def test_the_config_says_where_verdicts_are_kept(
    kind: str, judged: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    config = build_config([{"environment": "counting", "verify": {"cache": kind}}])
    env, rates = Counting(), []
    for expected in judged:
        async with Sources.of(config, {"counting": env}) as sources:
            tasks = await sources.tasks([KEY, replace(KEY, index=1)])
            await sources.verify(tasks, [[Rollout.of("a"), Rollout.of("a")]] * 2)
            rates.append(sources.cache_hit_rate())
        assert env.judged == expected
    assert rates == {"off": [None, None], "memory": [0.5, 0.5], "disk": [0.5, 1.0]}[kind]
    assert (tmp_path / "verdicts.sqlite").exists() == (kind == "disk")


DAMAGE = [
    "UPDATE verdicts SET verdict = '{'",
    "UPDATE verdicts SET verdict = x'ff'",
    "UPDATE verdicts SET verdict = '[[' || printf('%.*c', 200000, '[')",
    "DROP TABLE verdicts",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_rows_are_judged_again(tmp_path: Path, damage: str):
    path = tmp_path / "verdicts.sqlite"
    judge(Counting(), ["a"], cache=VerdictCache(path, entries=10))
    cache = VerdictCache(path, entries=10)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(damage)
        file.commit()
    verdicts, _ = judge(env := Counting(), ["a"], cache=cache)
    assert (env.judged, verdicts[0].scored) == (1, True)


def test_a_file_that_earlier_versions_wrote_is_used(tmp_path: Path):
    path = tmp_path / "verdicts.sqlite"
    judge(Counting(), ["a"], cache=VerdictCache(path, entries=10))
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("ALTER TABLE verdicts RENAME TO newer")
        file.execute(
            "CREATE TABLE verdicts (place INTEGER PRIMARY KEY, name TEXT UNIQUE, verdict TEXT)"
        )
        file.execute("INSERT INTO verdicts (name, verdict) SELECT name, verdict FROM newer")
        file.commit()
    env, cache = Counting(), VerdictCache(path, entries=10)
    judge(env, ["a"], cache=cache)
    assert env.judged == 0
    judge(env, [str(number) for number in range(20)], cache=cache)
    judge(env, ["19"], cache=cache)
    assert env.judged == 20


def test_a_file_that_another_process_locks_still_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("grpo_core.runs.store._WAIT_SECONDS", 0.1)
    path = tmp_path / "verdicts.sqlite"
    judge(Counting(), ["a"], cache=VerdictCache(path, entries=10))
    cache, env = VerdictCache(path, entries=10), Counting()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        judge(env, ["b", "c", "a"], cache=cache)
    assert env.judged == 2
    assert [record.message for record in caplog.records] == [
        "verdicts are no longer cached: database is locked"
    ]
