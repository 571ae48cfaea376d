"""The executor `ray` with actors that are objects of this process: who is asked, and what happens when one is lost.

`test_ray_real.py` has Ray itself.
"""

import asyncio
import concurrent.futures
import json
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from grpo_core import ConfigError, GrpoError, MissingExtraError, Spec, TaskKey
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import ExecutorConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_executor
from grpo_core.protocol import sampler as sampling
from grpo_core.protocol.executor import Answer, EnvironmentToVerify, Request
from grpo_ray import pool as module
from grpo_ray.config import Actors, RayConfig, RaySamplerConfig
from grpo_ray.drawing import RayDrawing
from grpo_ray.own import OwnCluster
from grpo_ray.place import RayPlace
from grpo_ray.sampler import RaySampler


class RayError(Exception):
    """Stands for `ray.exceptions.RayError`."""


class RayActorError(RayError):
    """Stands for that of an actor that died."""


class Method:
    """A method of an actor; `remote` begins a call, as that of Ray."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        loop = asyncio.get_running_loop()

        def finish(task: asyncio.Task[Any]) -> None:
            if future.cancelled():
                return
            if error := task.exception():
                future.set_exception(error)
            else:
                future.set_result(task.result())

        task = loop.create_task(self._call(*arguments))
        task.add_done_callback(finish)
        return SimpleNamespace(future=lambda: future, task=task)


class Actor:
    """An actor that answers with its number once `release` is set."""

    def __init__(self, number: int, opening: dict[str, Any]) -> None:
        self.number, self.asked, self.closed, self.killed = number, 0, False, False
        self.release = asyncio.Event()
        self.dead = self.silent = False
        self._opening = opening
        self.open, self.ask = Method(self._open), Method(self._ask)
        self.ping, self.close = Method(self._ping), Method(self._close)

    async def _open(self) -> str:
        wait = self._opening.get("wait", 0)
        await asyncio.sleep(wait)
        return json.dumps(
            {"node": f"node{self.number}", "pid": self.number, "differing": "", "fault": ""}
            | self._opening
        )

    async def _ask(self, request: str, seconds: float) -> str:
        self.asked += 1
        await self.release.wait()
        if self.dead:
            raise RayActorError("the process is gone class_name: Verification")
        return json.dumps(Answer("value", self.number).to_json())

    async def _ping(self) -> None:
        if self.silent:
            await asyncio.sleep(3600)

    async def _close(self) -> None:
        self.closed = True


class Cluster:
    """Stands for the cluster: it makes actors, of which the first open as `openings` say."""

    def __init__(self, *openings: dict[str, Any]) -> None:
        self.actors: list[Actor] = []
        self._openings = list(openings)

    def join(self) -> None:
        pass

    def describe(self) -> str:
        return "1 node with 2 CPU"

    def start_actor(self, actor: type, actors: Actors, *arguments: str, calls: int) -> Actor:
        opening = self._openings.pop(0) if self._openings else {}
        self.actors.append(Actor(len(self.actors), opening))
        return self.actors[-1]


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module `ray` that can only end actors; the calls that were cancelled."""
    fake, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    cancelled: list[Any] = []
    vars(exceptions).update(RayError=RayError, RayActorError=RayActorError)
    vars(fake).update(
        exceptions=exceptions,
        kill=lambda actor: setattr(actor, "killed", True),
        cancel=cancelled.append,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    return cancelled


def place_of(cluster: Cluster, count: int, *, concurrency: int = 1, start: float = 5.0) -> RayPlace:
    described = EnvironmentToVerify(Spec("toy", "toy:Toy"), concurrency=concurrency)
    whole: Any = cluster
    return RayPlace(whole, described, Actors(), count=lambda: count, start_seconds=start)


@asynccontextmanager
async def playing(
    cluster: Cluster, count: int, **more: Any
) -> AsyncIterator[tuple[list[Actor], RayPlace]]:
    """Yield the actors of a cluster with a place that is open, and is closed then."""
    place = place_of(cluster, count, **more)
    await place.open()
    yield cluster.actors, place
    await place.close()


def request(session: str | None = None) -> Request:
    return Request("verify", TaskKey("toy", "train", 0), prompt="", session=session)


async def asking(place: RayPlace, count: int, **more: Any) -> list[asyncio.Task[Answer]]:
    tasks = [asyncio.create_task(place.ask(request(**more), seconds=1)) for _ in range(count)]
    await asyncio.sleep(0.01)
    return tasks


async def test_the_actor_with_the_fewest_requests_is_asked_and_the_others_wait() -> None:
    async with playing(Cluster(), 3, concurrency=2) as (actors, place):
        tasks = await asking(place, 7)
        assert [actor.asked for actor in actors] == [2, 2, 2]
        actors[1].release.set()
        await asyncio.sleep(0.01)
        assert [actor.asked for actor in actors] == [2, 3, 2]
        for actor in actors:
            actor.release.set()
        answers = await asyncio.gather(*tasks)
        assert sorted(answer.value for answer in answers) == [0, 0, 1, 1, 1, 2, 2]
    assert all(actor.closed and actor.killed for actor in actors)


async def test_a_session_stays_with_its_actor() -> None:
    async with playing(Cluster(), 3) as (actors, place):
        tasks = await asking(place, 4, session="a dialogue")
        assert sorted(actor.asked for actor in actors) == [0, 0, 1]
        for actor in actors:
            actor.release.set()
        assert len({answer.value for answer in await asyncio.gather(*tasks)}) == 1


async def test_a_lost_actor_loses_what_it_had_and_is_replaced() -> None:
    async with playing(Cluster(), 2) as (actors, place):
        first, second = await asking(place, 2)
        actors[0].dead = True
        actors[0].release.set()
        lost = await first
        assert (lost.outcome, lost.text) == (
            "lost",
            "the Ray actor on node0 was lost: the process is gone",
        )
        await asyncio.sleep(0.01)
        assert [pid for _, pid in place.actors] == [2, 1]
        actors[1].release.set()
        actors[2].release.set()
        assert (await second).value == 1
        values = {answer.value for answer in await asyncio.gather(*await asking(place, 2))}
        assert values == {1, 2}


async def test_an_actor_that_does_not_say_that_it_lives_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PING_SECONDS", 0.02)
    monkeypatch.setattr(module, "_DEAD_SECONDS", 0.05)
    async with playing(Cluster(), 1) as (actors, place):
        (slow,) = await asking(place, 1)
        await asyncio.sleep(0.2)
        assert not slow.done(), "one that answers pings may take its time"
        actors[0].silent = True
        assert (await slow).outcome == "lost"
        assert actors[0].killed


async def test_no_actor_in_time_is_an_answer_and_not_an_endless_wait() -> None:
    async with playing(Cluster({}, {"wait": 60}, {"wait": 60}), 1, start=0.3) as (actors, place):
        (first,) = await asking(place, 1)
        actors[0].dead = True
        actors[0].release.set()
        assert (await first).outcome == "lost"
        answer = await place.ask(request(), seconds=1)
        assert answer.outcome == "lost"
        assert "no Ray actor could be started in time" in answer.text


@pytest.mark.parametrize(
    ("openings", "message"),
    [
        ([{}, {"differing": "grpo-core 9 instead of 1"}], "node node1 has grpo-core 9 instead of"),
        ([{"fault": "no file"}, {"fault": "no file"}], "no actor can verify 'toy': no file"),
        ([{"wait": 60}, {"wait": 60}], "did not start within 0.3 s; the cluster has 1 node with 2"),
    ],
)
async def test_what_cannot_verify_ends_the_run_before_it_begins(
    openings: list[dict[str, Any]], message: str
) -> None:
    cluster = Cluster(*openings)
    place = place_of(cluster, 2, start=0.3)
    try:
        with pytest.raises(ConfigError, match=message):
            await place.open()
    finally:
        await place.close()
    assert all(actor.killed for actor in cluster.actors)


async def test_a_cancelled_request_is_cancelled_in_the_actor_and_frees_it(ray: list[Any]) -> None:
    async with playing(Cluster(), 1) as (actors, place):
        first, second = await asking(place, 2)
        first.cancel()
        await asyncio.sleep(0.01)
        assert len(ray) == 1
        assert actors[0].asked == 2
        actors[0].release.set()
        assert (await second).value == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "ray://there:10001"}, "set verify.executor.settings.address=HOST:PORT"),
        ({"actors": 0}, "at least 1 actor"),
        ({"environments": {"toy": {"num_cpus": -1}}}, "at least 1 actor of 'toy' and amounts"),
        ({"environments": {"toy": {"cpus": 1}}}, "verify.executor.settings.environments.toy.cpus"),
        ({"num_cpu": 1}, "verify.executor.settings.num_cpus"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_executor(PluginHost(), ExecutorConfig(name="ray", settings=settings))


def test_an_environment_may_have_actors_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    config = RayConfig(num_cpus=0.5, environments={"toy": Actors(2, resources={"docker": 1.0})})
    assert config.actors_of("other").needs() == {"CPU": 0.5}
    assert config.actors_of("toy").needs() == {"CPU": 1.0, "docker": 1.0}
    assert config.cluster_address() == "head:6379"
    assert RayConfig("here:1").cluster_address() == "here:1"


def test_a_json_schema_travels_to_the_actor_and_a_refusal_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    asked = sampling.Request(
        (1, 2), [0.25], sampling.SamplingParams(stop=("x",)), 7, {"enum": ["a", 1]}
    )

    class Inner:
        """A sampler in an actor."""

        async def generate(self, request: sampling.Request) -> sampling.Completion:
            assert request == asked or request.json_schema is None
            if request.json_schema is None:
                raise GrpoError("no schema")
            if request.seed == 7:
                raise sampling.UnsupportedSchemaError("too hard")
            return sampling.Completion((3,), (-1.0,))

    drawing = RayDrawing("{}")
    drawing._sampler, drawing._version = Inner(), 4  # type: ignore[assignment]
    model = sampling.ModelToSample(tmp_path, False, "float32", "cpu", 9, frozenset({3}), 8, str)
    sampler = RaySampler(RaySamplerConfig(), model)
    sampler._weights = (None, True, 4)
    sampler._pool = SimpleNamespace(  # type: ignore[assignment]
        call=lambda method, *arguments: getattr(drawing, method)(*arguments)
    )
    with pytest.raises(sampling.UnsupportedSchemaError, match="too hard"):
        asyncio.run(sampler.generate(asked))
    with pytest.raises(GrpoError, match="no schema") as raised:
        asyncio.run(sampler.generate(replace(asked, json_schema=None)))
    assert type(raised.value) is GrpoError
    assert sampling.follows_schemas(sampler)
    assert not sampling.follows_schemas(RaySampler(RaySamplerConfig("vllm"), model))


def test_a_missing_ray_is_named_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_core.verify.sources import Sources

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = build_config([{"environment": "arithmetic", "verify": {"executor": {"name": "ray"}}}])
    with pytest.raises(MissingExtraError, match=r"pip install 'grpo-core\[ray\]'"):
        Sources.of(config, {})


def test_a_cluster_of_a_run_has_a_private_folder_short_enough_for_sockets_and_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for temporary files whose path is too long is passed over."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the user's cluster")
    own = OwnCluster()
    private = own.folder.parent
    socket = own.folder / "session_2026-01-01_00-00-00_000000_4194304" / "sockets" / "plasma_store"
    assert len(str(socket)) <= 107
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    own.close()
    assert not private.exists()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert os.environ["RAY_AUTH_TOKEN"] == "of the user's cluster"
    assert list(long.iterdir()) == []
