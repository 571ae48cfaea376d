"""Bodies of all kinds: none of them is a failure of the server, and each answer is as the OpenAPI document says."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psutil import Process

from grpo_core.train.run.serving import PolicyCompleter
from grpo_endpoint.openapi import document

from ..train.test_tool_formats import policy_of
from .hostile_requests import exchanged, hostile
from .served import served
from .served_policy import scripted_completer, tiny_actor

CHAT = "/v1/chat/completions"
DOCUMENT = document("policy", 128)
PARAMETERS = sorted(
    {
        *DOCUMENT["components"]["schemas"]["ChatBody"]["properties"],
        *DOCUMENT["components"]["schemas"]["TextBody"]["properties"],
    }
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["policy", "auto", "none", "user", "tool", "system", "assistant", "text", "\x00", "\ud800", "{}"]),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 300), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, width=32)
)
VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from([*PARAMETERS, "role", "content", "type", "function", "name", "id", "arguments", "parameters", "properties", "tool_call_id", "text", "json_schema", "schema"]), st.text(max_size=5)), inner, max_size=5),
    ),
    max_leaves=12,
)  # fmt: skip
CONTENTS = st.one_of(
    TEXTS, st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=3), VALUES
)  # fmt: skip
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from("abc"),
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": TEXTS, "arguments": st.sampled_from(["{}", '{"a": 1}', "[]", "x", "NaN"])}
            ),
        }
    ),
    max_size=3,
)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS}),
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENTS}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant")}, optional={"content": CONTENTS, "tool_calls": CALLS}
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": CONTENTS, "tool_call_id": st.sampled_from("abc")}
    ),
    VALUES,
)
SCHEMAS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.dictionaries(st.sampled_from(["type", "anyOf", "enum", "description"]), VALUES),
        ),
    },
    optional={"required": VALUES, "$ref": VALUES},
)
TOOL_DEFINITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.sampled_from(["add", "add", "a.b", "a b"])},
                optional={
                    "description": TEXTS,
                    "parameters": st.one_of(SCHEMAS, SCHEMAS, VALUES),
                    "strict": st.booleans(),
                },
            ),
        }
    ),
    max_size=2,
)
USER = {"role": "user", "content": "Hello"}
CHATS = st.builds(
    lambda known, later, more: {**known, "messages": [USER, *later], **more},
    st.fixed_dictionaries(
        {"model": st.just("policy")},
        optional={
            "tools": TOOL_DEFINITIONS,
            "stream": st.booleans(),
            "n": st.integers(1, 3),
            "logprobs": st.booleans(),
        },
    ),
    st.lists(MESSAGES, max_size=3),
    st.one_of(st.just({}), st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=2)),
)
PROMPTS = st.one_of(TEXTS, st.lists(TEXTS, max_size=3), st.lists(st.integers(-1, 99), max_size=3), VALUES)  # fmt: skip
CONTINUATIONS = st.builds(
    lambda known, more: {**known, **more},
    st.fixed_dictionaries({"model": st.just("policy"), "prompt": PROMPTS}),
    st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=2),
)
CHECKS = ",".join(
    (
        *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
        *("response_schema_conformance", "negative_data_rejection", "ignored_auth"),
        *("unsupported_method", "missing_required_header"),
    )
)
"""All but those that take every refusal of a body that fits its schema for a fault."""
EXAMPLES = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


ASKED: list[object] = []


def script(prompt: str) -> str:
    """A call of a tool, whose parameters the client describes as it likes."""
    ASKED.append(prompt)
    return "<tool_call><function=add><parameter=a>\n1\n</parameter></function></tool_call>"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A client of a policy whose chat template shows tools."""
    completer = scripted_completer(policy_of("qwen3_6"), script)
    with served() as server, server.http(server.admit(completer)) as client:
        yield client


def schema_of(path: str, status: int) -> dict[str, Any]:
    """The schema of an answer, as the document has it."""
    found = DOCUMENT["paths"][path]["post"]["responses"][str(status)]
    schema = found["content"]["application/json"]["schema"]
    return {**schema, "components": DOCUMENT["components"]}


def check(http: httpx.Client, path: str, body: bytes) -> None:
    response = http.post(path, content=body)
    assert response.status_code in (200, 400, 404), (response.text, body)
    if response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        return
    jsonschema.validate(response.json(), schema_of(path, response.status_code))


@pytest.mark.slow
@EXAMPLES
@given(body=CHATS)
def test_chats_of_all_kinds(http: httpx.Client, body: Any) -> None:
    check(http, CHAT, json.dumps(body).encode())


@pytest.mark.slow
@EXAMPLES
@given(body=CONTINUATIONS)
def test_texts_of_all_kinds(http: httpx.Client, body: Any) -> None:
    check(http, "/v1/completions", json.dumps(body).encode())


@pytest.mark.slow
@EXAMPLES
@given(body=st.one_of(st.binary(max_size=200), VALUES.map(json.dumps).map(str.encode)))
def test_bytes_of_all_kinds(http: httpx.Client, body: bytes) -> None:
    check(http, CHAT, body)


@pytest.mark.slow
def test_many_of_these_reach_the_policy(http: httpx.Client) -> None:
    """Otherwise the tests above would look at refusals alone."""
    ASKED.clear()

    @settings(EXAMPLES, derandomize=True)
    @given(body=CHATS)
    def ask(body: Any) -> None:
        check(http, CHAT, json.dumps(body).encode())

    ask()
    assert len(ASKED) > 15


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
            first = client.post(CHAT, json=honest).json()["choices"]
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


def test_hostile_requests_leave_an_honest_client_its_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GRPO_STORM_REQUESTS and GRPO_STORM_SEED try others."""
    count = int(os.environ.get("GRPO_STORM_REQUESTS", "100"))
    statuses = storm(tmp_path, count, int(os.environ.get("GRPO_STORM_SEED", "0")), caplog)
    assert {200, 400, 401, 403} <= set(statuses)


@pytest.mark.heavy
def test_five_thousand_hostile_requests_leave_an_honest_client_its_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    statuses = storm(tmp_path, 5000, 1, caplog)
    assert {200, 400, 401, 403, 404, 405, 413, 415} <= set(statuses)
