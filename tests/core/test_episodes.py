"""Episodes: attempts with state of their own, in real worker processes that are killed, blocked and left."""

import asyncio
import gc
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import guessing_games as games
import psutil
import pytest
from processes import wait_until, workers_below
from scripted import played

from grpo_core import (
    CommandResult,
    Environment,
    GrpoError,
    Message,
    Outcome,
    Rollout,
    Services,
    Spec,
    TaskKey,
    current_call,
)
from grpo_core.config.settings import SandboxConfig, VerifyConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import Lender
from grpo_core.protocol.executor import Answer, EnvironmentToVerify, Request
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.conversation import Conversation
from grpo_core.verify.episodes.playing import Played, play
from grpo_core.verify.judge.cache import VerdictCache
from grpo_core.verify.workers.hosts import Placement
from grpo_core.verify.workers.local import LocalExecutor, answer_json

NUMBERS = [TaskKey("games", "train", index) for index in range(4)]


def events(folder: Path) -> Counter[str]:
    """Return how often each event happened in all processes."""
    path = folder / "events.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.split()[0] for line in lines)


@asynccontextmanager
async def verifying(
    env: Environment[Any],
    *,
    cache: VerdictCache | None = None,
    placement: Placement | None = None,
    spec: Spec | None = None,
    **settings: Any,
) -> AsyncIterator[Verifier]:
    """Yield a verifier, which leaves no worker."""
    chosen = VerifyConfig(**{"workers": 1, **settings})
    async with Verifier(
        env, settings=chosen, cache=cache, placement=placement, spec=spec
    ) as verifier:
        yield verifier
    assert workers_below(os.getpid()) == []


def play_all(env: Environment[Any], *scripts: Sequence[str], **settings: Any) -> list[Played]:
    """Play scripts in an environment with a verifier of their own."""

    async def run() -> list[Played]:
        async with verifying(env, **settings) as verifier:
            return await played(verifier, *scripts)

    return asyncio.run(run())


def answers(attempts: Sequence[Played]) -> list[str | None]:
    return [attempt.verdict.answer if attempt.verdict else None for attempt in attempts]


def heard(attempt: Played) -> list[str]:
    """Return the first message of each reply."""
    return [reply[0].content for reply in attempt.replies]


KINDS = pytest.mark.parametrize(
    ("kind", "isolation"),
    [(games.Games, "auto"), (games.TrustedGames, "auto"), (games.Games, "inline")],
    ids=["in a worker", "trusted", "inline"],
)


@pytest.mark.slow
def test_an_episode_that_ends_its_worker_every_time_takes_no_other_one_with_it(
    tmp_path: Path,
) -> None:
    env = games.CulpritGames(games.Config(folder=str(tmp_path)))
    culprit, *others = play_all(env, *[["a", "b"]] * 4)
    assert answers(others) == ["a,b"] * 3
    assert culprit.verdict is not None
    assert culprit.verdict.error is not None
    assert "the worker process was killed by SIGKILL" in culprit.verdict.error
    assert events(tmp_path)["die"] == 7


@pytest.mark.parametrize("kind", [games.SeatedGames, games.TrustedSeatedGames])
def test_episodes_that_wait_for_an_open_one_do_not_keep_it_from_going_on(
    kind: type[games.Games],
) -> None:
    attempts = play_all(kind(), *[["a", "b", "c"]] * 4, max_concurrency=1)
    assert answers(attempts) == ["a,b,c"] * 4


@KINDS
async def test_an_episode_judges_its_own_state_and_a_replay_agrees(
    kind: type[games.Games], isolation: str
) -> None:
    async with verifying(kind(), isolation=isolation) as verifier:
        (task,) = await verifier.tasks(NUMBERS[:1])
        right = str(task.key.rng().randrange(10))
        attempts = [
            await play(verifier, task, script, max_turns=4, judge=True)
            for script in (["a", "b"], ["a", "b", "c", "d"], ["a", right], [right], ["a"])
        ]
        assert answers(attempts) == ["a,b", "a,b,c", f"a,{right}", right, "a"]
        assert [attempt.ended for attempt in attempts] == [False, False, True, True, False]
        assert attempts[0].rollout.messages == (
            Message("user", "you have 4 guesses"),
            Message("assistant", "a"),
            Message("user", "1: no"),
            Message("assistant", "b"),
        )
        again = (await verifier.verify([task], [[attempt.rollout for attempt in attempts]]))[0]
        assert again == [attempt.verdict for attempt in attempts]
        cut_off = replace(attempts[0].rollout, finish="length", reply_dropped=False)
        assert (await verifier.verify([task], [[cut_off]]))[0][0].answer == "a"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", ["die", "block", "sleep"])
async def test_an_episode_lost_in_the_middle_is_replayed_and_so_are_those_beside_it(
    tmp_path: Path, fault: str
) -> None:
    scripts = [["x", fault, "y"], ["a", "b", "c"], ["d", "e", "f"]]
    async with verifying(games.Games(games.Config(folder=str(tmp_path)))) as verifier:
        waiting = verifier.conversation((await verifier.tasks(NUMBERS[3:]))[0])
        opening = tuple(await waiting.open())
        attempts = await played(verifier, *scripts)
        assert answers(attempts) == [",".join(script) for script in scripts]
        # the one that was silent meanwhile goes on as well
        said = (*opening, Message("assistant", "late"))
        assert list(await waiting.reply(said) or ()) == [Message("user", "1: no")]
        verdict = await waiting.verdict(Rollout(said, reply_dropped=True))
        await waiting.close()
        assert verdict.answer == "late"


async def test_an_episode_that_cannot_be_replayed_ends_as_an_error_and_never_as_a_reward(
    tmp_path: Path,
) -> None:
    async with verifying(games.OnceGames(games.Config(folder=str(tmp_path)))) as verifier:
        (attempt,) = await played(verifier, ["x", "die", "y"])
        assert attempt.rollout.finish == "error"
        assert attempt.verdict is not None
        assert "SIGKILL" in (attempt.verdict.error or "")
        (well,) = await played(verifier, ["x"])
        assert answers([well]) == ["x"]
        (task,) = await verifier.tasks(NUMBERS[:1])
        ((verdict,),) = await verifier.verify([task], [[well.rollout]])
        assert (verdict.error or "").startswith("OnceGames is not replayable")


async def test_a_replay_that_diverges_is_an_error_that_says_where() -> None:
    async with verifying(games.Games()) as verifier:
        (task,) = await verifier.tasks(NUMBERS[:1])
        (attempt,) = await played(verifier, ["a", "b", "c"])
        messages = list(attempt.rollout.messages)
        messages[4] = Message("user", "2: yes")
        changed = [
            Rollout(tuple(messages), reply_dropped=True),
            replace(attempt.rollout, reply_dropped=False),  # the game goes on, the record ends
            Rollout.of("a"),
        ]
        ((replies, end, opening),) = await verifier.verify([task], [changed])
    assert replies.error == (
        "replay diverged at message 5 after the prompt: the episode says user: '2: no', and the "
        "record has user: '2: yes'"
    )
    assert "the episode says user: '3: no', and the record has nothing" in str(end.error)
    assert "message 1 after the prompt" in str(opening.error)


def test_a_verdict_is_asked_of_the_living_episode_before_it_is_replayed(tmp_path: Path) -> None:
    env = games.Games(games.Config(folder=str(tmp_path), breaks="first verdict"))
    assert answers(play_all(env, ["a", "b"])) == ["a,b"]
    assert events(tmp_path) == {"open": 1, "verdict": 2, "close": 1}


def test_a_drifting_episode_that_is_lost_is_an_error(tmp_path: Path) -> None:
    env = games.Games(games.Config(folder=str(tmp_path), drifts=True))
    (attempt,) = play_all(env, ["x", "die"])
    assert "replay diverged at message 1" in attempt.rollout.error


@pytest.mark.sampled(1)
@KINDS
async def test_every_episode_is_closed_whatever_happens(
    tmp_path: Path, kind: type[games.Games], isolation: str
) -> None:
    """After a deadline, a broken reply, a cancelled player, a broken opening, and the end of the verifier."""
    config = games.Config(folder=str(tmp_path))
    async with verifying(kind(config), isolation=isolation) as verifier:
        (task,) = await verifier.tasks(NUMBERS[:1])
        (late,) = await played(verifier, ["always-sleep"])
        assert "exceeded its deadline of 2 s" in late.rollout.error
        playing = asyncio.create_task(played(verifier, ["a", "always-sleep"]))
        await asyncio.sleep(0.5)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await verifier.conversation(task).open()  # nobody closes it
        await asyncio.sleep(0.2)
    found = events(tmp_path)
    assert found["open"] == found["close"] == 4  # two for the deadline: it is tried again

    async with verifying(kind(replace(config, breaks="open")), isolation=isolation) as verifier:
        (attempt,) = await played(verifier, ["a"])
    assert "open broke" in attempt.rollout.error
    assert attempt.rollout.messages == ()
    assert attempt.verdict is not None
    assert not attempt.verdict.scored
    found = events(tmp_path)
    assert found["open"] == found["close"] == 6


@KINDS
async def test_a_cancelled_close_ends_after_the_episode(
    kind: type[games.Games], isolation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with verifying(kind(games.Config(folder=str(tmp_path))), isolation=isolation) as verifier:
        (task,) = await verifier.tasks(NUMBERS[:1])
        conversation = verifier.conversation(task)
        await conversation.open()
        closing = asyncio.create_task(conversation.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert events(tmp_path)["close"] == 1
    assert not caplog.records


def test_calls_that_an_episode_gives_up_at_once_are_forgotten() -> None:
    (attempt,) = play_all(games.HastyGames(None, lending(Jails())), ["a"])
    assert attempt.rollout.error == ""
    assert heard(attempt) == ["gave up 1500 calls"]


def test_a_call_that_is_too_large_fails_and_ends_no_worker() -> None:
    (attempt,) = play_all(games.LargeGames(None, lending(Jails())), ["a"])
    assert "session.write have 9,000,1" in heard(attempt)[0]


async def test_episodes_use_the_sandbox_of_the_host() -> None:
    lender = Lender(PluginHost(), SandboxConfig())
    async with verifying(games.RunningGames(None, lender.services(games.RunningGames))) as verifier:
        attempts = await played(verifier, ["a", "b"], ["c"])
        assert [heard(attempt) for attempt in attempts] == [["2 42 ok"] * 2, ["2 42 ok"]]
        await lender.close()


@pytest.mark.slow
def test_time_that_a_service_stops_does_not_count_and_its_failure_is_an_error() -> None:
    class Slow:
        async def run(self, programs: Sequence[Any]) -> Any:
            with current_call().stopped():
                await asyncio.sleep(3)
            return [[Outcome("ok", value=1), Outcome("ok", value=2)]]

    class Broken:
        async def run(self, programs: Sequence[Any]) -> Any:
            raise ConnectionError("the sandbox is gone")

    (attempt,) = play_all(games.RunningGames(None, lending(Slow())), ["a"], timeout_seconds=1.0)
    assert heard(attempt) == ["1 2 ok"]
    (attempt,) = play_all(games.RunningGames(None, lending(Broken())), ["a"])
    assert "the sandbox is gone" in attempt.rollout.error


def lending(sandbox: Any) -> Services:
    return Services(sandboxes={"default": sandbox})


class Jail:
    """A session in memory, which knows one command."""

    def __init__(self, files: dict[str, str | bytes]) -> None:
        self.files, self.closed = files, 0

    async def exec(self, command: Any, *, input: str = "", timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as a session has it
        assert (command, input, timeout) == (["cat", "guess"], "", 1.5)
        return CommandResult("ok", 0, str(self.files["guess"]))

    async def write(self, files: dict[str, str | bytes]) -> None:
        self.files |= files

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        content = self.files[path]
        return content if isinstance(content, bytes) else content.encode()

    async def close(self) -> None:
        self.closed += 1


class Jails:
    """A sandbox that opens sessions in memory."""

    def __init__(self) -> None:
        self.opened: list[Jail] = []

    async def session(self, files: Any = None, *, image: Any = None, limits: Any = None) -> Jail:
        self.opened.append(Jail(dict(files)))
        return self.opened[-1]


@pytest.mark.slow
async def test_sessions_live_in_the_host_and_end_with_their_episode_or_its_worker() -> None:
    jails = Jails()
    env = games.SessionGames(None, lending(jails))
    async with verifying(env) as verifier:
        attempts = await played(verifier, ["a", "b"], ["c"])
        replies = list(map(heard, attempts))
        start = "0 b'\\xff\\x00'"
        assert replies == [[f"a {start}", f"b {start}"], [f"c {start}"]]
        assert [jail.closed for jail in jails.opened] == [1, 1]
        (lost,) = await played(verifier, ["a", "die"])
        assert "SIGKILL" in lost.rollout.error
    assert [jail.closed for jail in jails.opened] == [1] * 9, "seven are those of the lost one"


class Afar:
    """An executor whose place gets and gives only JSON text, and loses all episodes on request."""

    in_process: ClassVar[bool] = False

    def open(self, environment: EnvironmentToVerify) -> Any:
        self.described = json.dumps(environment.to_json())
        self.inner = self._make()
        return Place(self)

    def _make(self) -> Any:
        return LocalExecutor().open(EnvironmentToVerify.from_json(json.loads(self.described)))

    async def lose(self) -> None:
        await self.inner.close()
        self.inner = self._make()
        await self.inner.open()


class Place:
    def __init__(self, executor: Afar) -> None:
        self.executor = executor

    async def open(self) -> None:
        await self.executor.inner.open()

    async def ask(self, request: Request, *, seconds: float) -> Answer:
        text = json.dumps(request.to_json())
        answer = await answer_json(self.executor.inner, text, seconds=seconds)
        return Answer.from_json(json.loads(answer))

    async def close(self) -> None:
        await self.executor.inner.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [games.Games, games.TrustedGames])
async def test_episodes_live_at_the_far_end_of_an_executor(kind: type[games.Games]) -> None:
    executor = Afar()
    spec = Spec(kind.__name__, f"guessing_games:{kind.__name__}")
    async with verifying(kind(), placement=Placement(executor, "afar"), spec=spec) as verifier:
        attempts = await played(verifier, ["a", "b"], ["c"])
        assert answers(attempts) == ["a,b", "c"]
        conversation = verifier.conversation((await verifier.tasks(NUMBERS[:1]))[0])
        opening = tuple(await conversation.open())
        said = (*opening, Message("assistant", "x"))
        reply = tuple(await conversation.reply(said) or ())
        await executor.lose()
        longer = (*said, *reply, Message("assistant", "y"))
        assert list(await conversation.reply(longer) or ()) == [Message("user", "2: no")]
        await conversation.close()


@pytest.mark.slow
async def test_only_verdicts_of_replayable_episodes_are_cached() -> None:
    for kind, hits in ((games.Games, 1), (games.OnceGames, 0)):
        async with verifying(kind(), cache=VerdictCache(entries=10)) as verifier:
            for _ in range(2):
                await played(verifier, ["a", "b"])
            assert verifier.stats.cache_hits == hits


@pytest.mark.slow
async def test_nothing_is_left_after_200_episodes() -> None:
    me = psutil.Process()
    before = me.num_fds()
    async with verifying(games.Games()) as verifier:
        (task,) = await verifier.tasks(NUMBERS[:1])
        counts = []
        for _ in range(5):
            gc.collect()  # what earlier tests left may hold descriptors until it is collected
            await asyncio.gather(
                *(play(verifier, task, ["a", "b"], max_turns=4, judge=True) for _ in range(40))
            )
            worker = psutil.Process(max(workers_below(me.pid)))
            counts.append(
                (me.num_fds(), me.num_threads(), len(workers_below(me.pid)), worker.num_fds())
            )
        grown = [last - first for first, last in zip(counts[0], counts[-1], strict=True)]
        assert max(grown) <= 0, counts
    assert wait_until(lambda: me.num_fds() <= before)


@pytest.mark.slow
async def test_what_an_episode_breaks_of_the_protocol_is_said() -> None:
    for env, message in (
        (games.NotEpisodes(), r"episode\(\) returned a int; it must return an Episode"),
        (games.SpeaksForThePolicy(), 'of the role "assistant"'),
    ):
        async with verifying(env) as verifier:
            (task,) = await verifier.tasks(NUMBERS[:1])
            conversation: Conversation = verifier.conversation(task)
            with pytest.raises(GrpoError, match=message):
                await conversation.open()
            await conversation.close()
