"""The sampler `vllm` with a server that answers as vLLM does: what it hands over, asks, repairs and leaves behind."""

import asyncio
import contextlib
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core import ConfigError, GrpoError
from grpo_core.protocol.sampler import (
    Completion,
    ModelToSample,
    Request,
    SamplingParams,
    UnsupportedSchemaError,
    follows_schemas,
)
from grpo_vllm.sampler import VLLM

from . import fake_vllm

END = 2000


class Adapter:
    """Weights that make the fake server add `number` to every token."""

    def __init__(self, number: int, *, is_adapter: bool = True) -> None:
        self.number, self.is_adapter = number, is_adapter
        self.folders: list[Path] = []

    async def save(self, folder: Path) -> None:
        self.folders.append(folder)
        (folder / "weights.safetensors").write_text(str(self.number))


class Fake:
    """The fake server's folder, and samplers that start it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        script = shlex.join([sys.executable, fake_vllm.__file__])
        # As an interpreter that has vLLM: `-c` asks whether it has it.
        self.python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nshift 2\nexec {script} "$@"\n')
        self.python.chmod(0o755)
        self.model = ModelToSample(
            path=folder,
            trust_remote_code=False,
            dtype="float32",
            device="cpu",
            context=4000,
            end_ids=frozenset({END}),
            adapter_rank=12,
            decode=lambda token_ids: "".join(map(chr, token_ids)),
        )

    def sampler(self, *, model: dict[str, Any] | None = None, **settings: Any) -> VLLM:
        config = VLLM.Config(**{"python": str(self.python), "folder": str(self.folder), **settings})
        return VLLM(config, replace(self.model, **(model or {})))

    def say(self, name: str) -> None:
        """Tell the server what to do."""
        (self.folder / name).touch()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        file = self.folder / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for event in map(json.loads, lines) if event["event"].startswith(name)]

    def asked(self) -> list[dict[str, Any]]:
        return [event["asked"] for event in self.events("/v1/completions")]

    def names(self) -> list[str]:
        return [event["asked"]["lora_name"] for event in self.events("/v1/load")]

    def pids(self) -> list[int]:
        return [event["pid"] for event in self.events("start")]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("FAKE_VLLM", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/packages/of/the/trainer")
    return Fake(tmp_path)


@contextlib.asynccontextmanager
async def using(sampler: VLLM, *, number: int = 0) -> AsyncIterator[VLLM]:
    """Yield the sampler while it runs, with weights of version 7."""
    try:
        await sampler.sync(Adapter(number), 7)
        yield sampler
    finally:
        await sampler.close()


def drawn(sampler: VLLM, *requests: Request, number: int = 0) -> list[Completion]:
    async def run() -> list[Completion]:
        async with using(sampler, number=number):
            return await asyncio.gather(*map(sampler.generate, requests))

    return asyncio.run(run())


async def until(event: Callable[[], object]) -> None:
    while not event():  # noqa: ASYNC110 - it happens in another process
        await asyncio.sleep(0.01)


def asks(*prefix: int, count: int = 5, seed: int = 0, **params: Any) -> Request:
    return Request(prefix, [0.5] * count, SamplingParams(**params), seed)


def test_tokens_log_probs_and_version_are_those_of_the_server(fake: Fake) -> None:
    (found,) = drawn(fake.sampler(), asks(5, 10, count=3), number=1)
    assert found == Completion((12, 14, 16), (-0.12, -0.14, -0.16), "length", 1.0, 7)


def test_a_request_says_everything_that_decides_a_draw(fake: Fake) -> None:
    drawn(fake.sampler(), asks(5, 10, seed=2**64 - 1, temperature=0.7, stop=("a", "b")))
    (asked,) = fake.asked()
    wanted = {
        "prompt": [5, 10],
        "max_tokens": 5,
        "temperature": 0.7,
        "seed": 2**63 - 1,
        "stop": ["a", "b"],
        "include_stop_str_in_output": True,
        "stop_token_ids": [END],
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }
    assert {key: asked[key] for key in wanted} == wanted
    assert not asked.keys() & {"top_p", "top_k", "min_p"}


def test_a_completion_ends_with_the_end_token_the_stop_string_or_the_budget(fake: Fake) -> None:
    start = ord("a") - 1
    ended, stopped, cut, empty = drawn(
        fake.sampler(),
        asks(END - 3, count=9),
        asks(start, count=9, stop=("cd", "z")),
        asks(start, count=3, stop=("z",)),
        asks(start, count=0),
    )
    assert (ended.token_ids, ended.finish) == ((END - 2, END - 1, END), "stop")
    assert ("".join(map(chr, stopped.token_ids)), stopped.finish) == ("abcd", "stop")
    assert ("".join(map(chr, cut.token_ids)), cut.finish) == ("abc", "length")
    assert empty == Completion(version=7)


def test_a_stop_string_that_only_the_trainer_reads_ends_the_completion(fake: Fake) -> None:
    model = {"decode": lambda token_ids: "".join(map(chr, token_ids)).upper()}
    (found,) = drawn(fake.sampler(model=model), asks(ord("a") - 1, count=9, stop=("BC",)))
    assert ("".join(map(chr, found.token_ids)), found.finish) == ("abc", "stop")
    assert len(found.logprobs) == 3


def test_log_probs_are_of_the_full_distribution_where_few_tokens_may_be_drawn(fake: Fake) -> None:
    params = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1}
    (found,) = drawn(fake.sampler(), asks(5, 10, count=70, **params))
    tokens = range(11, 81)
    assert found.logprobs == pytest.approx([-token / 100 for token in tokens])
    assert found.kept_mass == pytest.approx(math.exp(-1))
    asked, scored, rest = fake.asked()
    assert {key: asked[key] for key in params} == params
    assert scored["prompt"][:3] == [[5, 10], [5, 10, 11], [5, 10, 11, 12]]
    assert rest["prompt"][-1] == [5, 10, *tokens[:-1]]
    assert (rest["temperature"], rest["max_tokens"]) == (0.5, 1)
    assert not rest.keys() & {"top_p", "top_k", "min_p"}
    (greedy,) = drawn(fake.sampler(), asks(1, temperature=0, top_p=0.9))
    assert greedy.kept_mass == 1.0


def test_a_json_schema_is_the_servers_business_and_the_log_probs_are_of_the_full_distribution(
    fake: Fake,
) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    for params in ({}, {"temperature": 0}):
        (found,) = drawn(fake.sampler(), replace(asks(5, 10, **params), json_schema=schema))
        assert found.logprobs == pytest.approx([-token / 100 for token in range(11, 16)])
        assert found.kept_mass == pytest.approx(math.exp(-1))
        asked, scored = fake.asked()[-2:]
        sent = asked["structured_outputs"]["json"]
        assert sent.pop("x-guidance").keys() == {"whitespace_pattern"}
        assert sent == schema
        assert list(sent["properties"]) == ["b", "a"]
        assert "structured_outputs" not in scored
    assert follows_schemas(fake.sampler())


async def test_each_version_has_a_name_of_its_own_and_the_one_before_is_removed(fake: Fake) -> None:
    weights = [Adapter(number) for number in range(3)]
    sampler, found = fake.sampler(), []
    for version, adapter in zip((0, 1, 0), weights, strict=True):  # the last: as after a resume
        await sampler.sync(adapter, version)
        found.append(await sampler.generate(asks(10, count=1)))
    kept = [folder.exists() for adapter in weights for folder in adapter.folders]
    assert kept == [False, False, True]
    await sampler.close()
    assert [(c.token_ids, c.version) for c in found] == [((11,), 0), ((12,), 1), ((13,), 0)]
    names = fake.names()
    assert len(set(names)) == 3
    assert [event["asked"]["lora_name"] for event in fake.events("/v1/unload")] == names[:2]
    assert len(fake.pids()) == 1


def test_where_all_weights_are_trained_all_are_reloaded_and_no_cache_stays(fake: Fake) -> None:
    (found,) = drawn(fake.sampler(model={"adapter_rank": None}), asks(10, count=1), number=4)
    assert found.token_ids == (15,)
    first = [event["event"] for event in fake.events("/")][:2]
    assert first == ["/collective_rpc", "/reset_prefix_cache"]
    assert "--enable-lora" not in fake.events("start")[0]["arguments"]


def test_a_server_that_dies_is_started_again_with_the_present_weights(fake: Fake) -> None:
    others = [asks(10, seed=seed, count=2) for seed in range(8)]
    found = drawn(fake.sampler(), asks(fake_vllm.DIES, 10, count=2), *others, number=3)
    assert [completion.token_ids for completion in found] == [(14, 18)] * 9
    assert len(set(fake.pids())) == 2
    assert all(not psutil.pid_exists(pid) for pid in fake.pids())


def test_a_completion_that_the_server_gives_up_as_it_ends_is_asked_for_again(fake: Fake) -> None:
    (found,) = drawn(fake.sampler(), asks(fake_vllm.GIVES_UP, 10, count=2))
    assert found.token_ids == (11, 12)


@pytest.mark.parametrize(
    ("asked", "settings", "message", "starts"),
    [
        (asks(fake_vllm.FAILS), {"retries": 1}, r"failed 2 times: HTTP status 500.*loading the weights", 2),
        (asks(fake_vllm.WAITS), {"retries": 1, "request_seconds": 0.3}, "failed 2 times: ReadTimeout", 2),
        (asks(fake_vllm.REFUSED), {}, "refuses /v1/completions: HTTP status 400: the prompt is too long", 1),
        (replace(asks(5), json_schema={"uniqueItems": True}), {}, "followed: .* the grammar is not supported", 1),
    ],
    ids=["fails each time", "hangs", "is refused", "has a schema that is refused"],
)  # fmt: skip
def test_a_request_that_the_server_does_not_answer_ends_with_its_words(
    fake: Fake, asked: Request, settings: dict[str, Any], message: str, starts: int
) -> None:
    """After the server was started again, where that may help."""
    with pytest.raises(GrpoError, match=f"(?s){message}") as raised:
        drawn(fake.sampler(**settings), asked)
    assert isinstance(raised.value, UnsupportedSchemaError) == (asked.json_schema is not None)
    assert len(fake.pids()) == starts


def test_weights_that_the_server_refuses_are_an_error_in_its_words(fake: Fake) -> None:
    with pytest.raises(ConfigError, match=r"rank 512 at most, and lora\.r is 600"):
        fake.sampler(model={"adapter_rank": 600})
    fake.say("no_adapters")
    with pytest.raises(GrpoError, match="LoRA rank 64 is greater than max_lora_rank 16"):
        drawn(fake.sampler())


async def test_a_cancelled_request_is_given_up_by_the_server_too(fake: Fake) -> None:
    async with using(fake.sampler()) as sampler:
        waiting = asyncio.create_task(sampler.generate(asks(fake_vllm.WAITS)))
        await until(fake.asked)
        waiting.cancel()
        await until(lambda: fake.events("cancelled"))
        assert (await sampler.generate(asks(10, count=1))).token_ids == (11,)


def test_a_server_that_does_not_start_is_one_error_with_its_reason(fake: Fake) -> None:
    fake.say("does_not_start")
    with pytest.raises(ConfigError) as error:
        drawn(fake.sampler())
    assert str(error.value).splitlines()[:2] == [
        "the vLLM server ended before it was ready; its log says:",
        "  ValueError: Model architectures ['Odd'] are not supported",
    ]
    assert "RuntimeError: Engine core initialization failed." in str(error.value)


def test_a_server_that_starts_too_slowly_is_ended(fake: Fake) -> None:
    fake.say("is_slow")
    with pytest.raises(ConfigError, match=r"not ready after \d+ s .*start_seconds"):
        drawn(fake.sampler(start_seconds=0.5))
    assert not any(map(psutil.pid_exists, fake.pids()))


def test_a_closed_sampler_leaves_nothing(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    sampler, log = fake.sampler(log=str(fake.folder / "log.txt")), fake.folder / "log.txt"
    drawn(sampler)
    assert not psutil.pid_exists(fake.pids()[0])
    assert not list(fake.folder.glob("grpo-vllm-*"))
    (found,) = drawn(sampler, asks(10, count=1))
    assert found.token_ids == (11,)
    assert log.read_text().count("loading the weights") == 2
    said = capsys.readouterr().err
    assert f"vllm: starting a vLLM server for {fake.folder}" in said
    assert "the vLLM server is ready after " in said


def test_the_server_knows_the_model_and_nothing_of_the_trainers_packages(fake: Fake) -> None:
    drawn(fake.sampler(args=["--tensor-parallel-size=2"], at_once=9))
    (start,) = fake.events("start")
    assert {
        "--dtype=float32",
        "--logprobs-mode=processed_logprobs",
        "--structured-outputs-config.backend=guidance",
        "--enable-prefix-caching",
        "--no-enable-chunked-prefill",  # on a CPU
        "--enable-lora",
        "--max-lora-rank=16",
        "--max-num-seqs=9",
        "--tensor-parallel-size=2",
    } <= {*start["arguments"]}
    assert start["environment"] == {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",
        "PYTHONPATH": None,
    }


async def test_a_connection_that_was_idle_is_replaced(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes it at a time of its own; a request that crosses that looks like its failure."""
    monkeypatch.setattr("grpo_vllm.client.IDLE_SECONDS", 0.3)
    connections: list[int] = []
    async with using(fake.sampler()) as sampler:
        for pause in (0.0, 0.0, 0.6):
            await asyncio.sleep(pause)
            await sampler.generate(asks(10))
            connections.append(len(fake.events("connects")))
    first, soon, late = connections
    assert (soon, late) == (first, first + 1)


@contextlib.contextmanager
def served(fake: Fake, port: int) -> Iterator[None]:
    """A server that somebody else runs."""
    before = len(fake.events("listens"))
    command = [sys.executable, fake_vllm.__file__, f"--port={port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while len(fake.events("listens")) == before:
                time.sleep(0.01)
            yield
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_a_server_that_others_run_is_used_also_after_they_started_it_again(
    fake: Fake,
) -> None:
    port = free_port()
    url = {"url": f"http://127.0.0.1:{port}", "python": ""}
    with pytest.raises(
        ConfigError, match=f"no vLLM server at sampler.settings.url={url['url']}: Co"
    ):
        async with using(fake.sampler(**url)):
            pass
    with contextlib.ExitStack() as servers:
        servers.enter_context(served(fake, port))
        async with using(fake.sampler(**url), number=1) as sampler:
            first = await sampler.generate(asks(10, count=1))
            servers.close()
            second = asyncio.create_task(sampler.generate(asks(10, count=1)))
            await asyncio.sleep(0.2)
            servers.enter_context(served(fake, port))
            assert [first.token_ids, (await second).token_ids] == [(12,), (12,)]
    assert len(set(fake.names())) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"python": "no/such/python"}, "python is 'no/such/python', which is not a program"),
        (
            {"python": "/bin/false"},
            "needs vLLM, which /bin/false does not have. .*pip install vllm",
        ),
        ({"url": "http://localhost:1"}, "either url or python, not both"),
        ({"url": "localhost:8000", "python": ""}, "a url such as"),
        ({"sleep": True}, "can sleep only on a CUDA device"),
        ({"at_once": 0}, "at_once of at least 1"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_before_anything_starts(
    fake: Fake, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fake.sampler(**settings)


async def test_folders_of_runs_that_were_killed_are_removed(fake: Fake) -> None:
    ours = fake.folder / "left"
    async with using(fake.sampler()):
        (folder,) = fake.folder.glob("grpo-vllm-*")
        prefix, pid, _ = folder.name.rsplit("-", 2)
        assert int(pid) == os.getpid()
        (fake.folder / f"{prefix}-999999999-abc").mkdir()
        ours.mkdir()
    async with using(fake.sampler()):
        pass
    assert not list(fake.folder.glob("grpo-vllm-*"))
    assert ours.exists()


KILLED = """
import asyncio, sys
from pathlib import Path
from grpo_core.protocol.sampler import ModelToSample
from grpo_vllm.sampler import VLLM

class Adapter:
    is_adapter = True
    async def save(self, folder):
        (folder / "weights.safetensors").write_text("0")

folder = Path(sys.argv[1])
model = ModelToSample(folder, False, "float32", "cpu", 4000, frozenset({2}), 8, str)

async def main():
    sampler = VLLM(VLLM.Config(python=str(folder / "python"), folder=str(folder)), model)
    await sampler.sync(Adapter(), 0)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the death of a parent")
def test_no_server_outlives_a_run_that_is_killed(fake: Fake) -> None:
    command = [sys.executable, "-c", KILLED, str(fake.folder)]
    environment = {**os.environ, "PYTHONPATH": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        (server,) = map(psutil.Process, fake.pids())
        run.kill()
    server.wait(5)


async def test_a_server_on_the_trainers_gpu_sleeps_while_the_policy_is_trained(fake: Fake) -> None:
    async with using(fake.sampler()) as undisturbed:
        assert undisturbed.samples_during_updates
        await undisturbed.rest()
    assert not fake.events("/sleep")
    (fake.folder / "events.jsonl").unlink()
    async with using(fake.sampler(sleep=True, model={"device": "cuda"})) as sampler:
        assert not sampler.samples_during_updates
        await sampler.rest()
        await sampler.sync(Adapter(2), 8)
        assert (await sampler.generate(asks(10, count=1))).token_ids == (13,)
    calls = [event["event"] for event in fake.events("/")]
    assert calls[1:4] == ["/sleep?level=1", "/wake_up", "/v1/load_lora_adapter"]
    assert {"--enable-sleep-mode", "--gpu-memory-utilization=0.4"} <= {
        *fake.events("start")[0]["arguments"]
    }
