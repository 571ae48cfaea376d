"""Bodies of all kinds: none of them is a failure of the server, and each answer is as the OpenAPI document says."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from psutil import Process

from grpo_endpoint.openapi import document
from grpo_endpoint.policy import PolicyCompleter

from ..train.test_tool_formats import policy_of
from .hostile_requests import CHAT, USER, exchanged, hostile
from .served import served
from .served_policy import scripted_completer, tiny_actor


def is_as_documented(answer: Any, status: int) -> bool:
    """Whether an answer fits its schema in the OpenAPI document."""
    found = document("policy", 128)
    content = found["paths"][CHAT]["post"]["responses"][str(status)]["content"]
    schema = {**content["application/json"]["schema"], "components": found["components"]}
    return jsonschema.Draft202012Validator(schema).is_valid(answer)


CHECKS = ",".join(
    (
        *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
        *("response_schema_conformance", "negative_data_rejection", "ignored_auth"),
        *("unsupported_method", "missing_required_header"),
    )
)
"""All but those that take every refusal of a body that fits its schema for a fault."""


ASKED: list[object] = []


def script(prompt: str) -> str:
    """A call of a tool, whose parameters the client describes as it likes."""
    ASKED.append(prompt)
    return "<tool_call><function=add><parameter=a>\n1\n</parameter></function></tool_call>"


@pytest.mark.heavy
def test_schemathesis_finds_no_failure_of_the_server(tmp_path: Path) -> None:
    """The fuzzer of OpenAPI documents, as its users run it."""
    completer = scripted_completer(policy_of("qwen3_6"), script)
    ASKED.clear()
    with served() as server:
        access = server.admit(completer)
        command = [
            *(Path(sys.executable).with_name("schemathesis"), "run"),
            access.base_url.removesuffix("/v1") + "/openapi.json",
            *("--header", f"Authorization: Bearer {access.key}"),
            *("--checks", CHECKS, "--max-examples", "200", "--no-color"),
        ]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]
    assert len(ASKED) > 100


SOME = int(os.environ.get("GRPO_STORM_REQUESTS", "25"))
SEED = int(os.environ.get("GRPO_STORM_SEED", "0"))
"""Of the storm in the default run; others find what these do not."""


def storm(folder: Path, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> Counter[int]:
    """Send hostile requests to a real policy, and an honest one beside every 25th; return how often each status came."""
    rng = random.Random(f"storm {seed}")
    statuses: Counter[int] = Counter()
    honest = {"model": "policy", "messages": [USER], "max_tokens": 8, "temperature": 0, "seed": 1}
    completer = PolicyCompleter(tiny_actor(folder / "model"))
    with caplog.at_level("WARNING"), served(io_seconds=2, body_mb=4) as server:
        access = server.admit(completer)
        port = server.endpoint._port
        with server.http(access) as client:
            answer = client.post(CHAT, json=honest).json()
            refused = client.post(CHAT, json={**honest, "n": 0}).json()
            assert is_as_documented(answer, 200)
            assert is_as_documented(refused, 400)
            first = answer["choices"]
            before = Process().memory_info().rss
            for number in range(count):
                asked = hostile(rng, port, access.key)
                started = time.monotonic()
                status, text = exchanged(port, asked.data, seconds=20, leaves=rng.random() < 0.03)
                case = f"request {number} of seed {seed}: status {status}, {text[:300]!r}"
                statuses[status] += 1
                assert status < 500, case
                assert time.monotonic() - started < 20, case
                assert status != 200 or not asked.is_refusable or b"HEAD" in asked.data[:9] or b"GET" in asked.data[:9], case  # fmt: skip
                if status >= 400 and text and b"HEAD" not in asked.data[:9]:
                    message = json.loads(text)["error"]["message"]
                    assert 10 < len(message) < 2000, case
                    assert "\n" not in message, case
                if number % 25 == 24:
                    again = client.post(CHAT, json=honest)
                    assert again.status_code == 200, case
                    assert again.json()["choices"] == first, case
                assert Process().memory_info().rss - before < 500 * 2**20, case
    assert not [record for record in caplog.records if record.exc_info]
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "seed", "expected"),
    [
        (SOME, SEED, {400}),
        pytest.param(5000, 1, {200, 400, 401, 403, 404, 405, 413, 415}, marks=pytest.mark.heavy),
    ],
    ids=["some", "thousands"],
)
def test_hostile_requests_leave_an_honest_client_its_answers(
    count: int,
    seed: int,
    expected: set[int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert expected <= set(storm(tmp_path, count, seed, caplog))
