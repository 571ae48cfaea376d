"""Keys and passwords stand in no message, whatever an endpoint answers and settings hold."""

import base64
import json
import logging
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError
from grpo_core.calls.redaction import REDACTED, Redactor
from grpo_judge.llm import LLM
from grpo_judge.llm_config import LLMConfig

from .endpoint import Endpoint, choice, failed, judged

KEYS = ("sk-very-secret-1234567890", "qwertyuiop/with+signs=", 'quote"and\\backslash')


def echo(where: str, header: str) -> Any:
    """What an endpoint answers that repeats the request's headers."""
    key = header.removeprefix("Bearer ")
    text = f"your headers were: Authorization: {header} (x-api-key: {key}) {key}"
    return {
        "error": failed(400, text, code="bad"),
        "headers": (500, {"headers": {"authorization": header}, "key": key}),
        "text": (502, text.encode()),
        "malformed": (200, ("x" * 85 + text).encode()),
        "list": (200, [header, text]),
        "no grade": text,
        "refusal": choice(None, refusal=text),
        "reason": json.dumps({"score": 5, "reason": text}),
        "redirect": (307, b"", {"Location": f"http://me:{key}@h/?api_key={key}"}),
    }[where]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "where",
    ["error", "headers", "text", "malformed", "list", "no grade", "refusal", "reason", "redirect"],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_an_endpoint_that_echoes_headers_puts_no_key_into_any_text(
    endpoint: Endpoint, monkeypatch, caplog, tmp_path: Path, key: str, where: str, everywhere: bool
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    cache = tmp_path / "judgements.sqlite"
    judge = endpoint.judge(key="MY_KEY", retries=1, patience_seconds=0.1, cache=str(cache))

    def reply(asked: dict[str, Any]) -> Any:
        fine = "\nhello\n" not in asked["messages"][1]["content"] and not everywhere
        return '{"score": 9, "reason": "so"}' if fine else echo(where, f"Bearer {key}")

    endpoint.reply = reply
    with caplog.at_level(logging.DEBUG, logger="grpo_judge"):
        (judgement,) = judged(judge, "hello")
    assert endpoint.keys[0] == f"Bearer {key}"
    shown = [judgement.error or judgement.explanation, repr(judgement)]
    shown += [record.getMessage() for record in caplog.records]
    shown.append(cache.read_bytes().decode("latin-1"))
    # What the endpoint rejects without naming the text is an error; what repeats for it alone is 0.
    blamed = not everywhere and where not in ("error", "redirect")
    assert (judgement.error is None) == (where == "reason" or blamed)
    for text in shown:
        for form in (key, json.dumps(key)[1:-1], repr(key)[1:-1], key[:15]):
            assert form not in text
    assert len(shown[0]) < 2100


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://me:hunter2@host.example/v1", f"at https://{REDACTED}@host.example/v1"),
        ("postgres://token@host", f"postgres://{REDACTED}@host"),
        ("Authorization: Bearer abcdef123", f"Authorization: Bearer {REDACTED}"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", f"{{'Authorization': 'Basic {REDACTED}'}}"),
        ('{\\"x-api-key\\": \\"abcdef\\"}', f'{{\\"x-api-key\\": \\"{REDACTED}\\"}}'),
        ("?api_key=abc&x=1", f"?api_key={REDACTED}&x=1"),
        ("at https://h/v1?key=abc&sig=de", f"at https://h/v1?key={REDACTED}&sig={REDACTED}"),
        ("Incorrect API key provided: sk-12***9f", f"Incorrect API key provided: {REDACTED}"),
        ("a basic understanding of a token limit", "a basic understanding of a token limit"),
        ("https://host.example/v1?q=a@b", "https://host.example/v1?q=a@b"),
    ],
)
def test_what_is_a_secret_by_its_form_is_redacted(text: str, shown: str) -> None:
    assert Redactor()(text) == shown


def test_known_secrets_are_redacted_in_each_of_their_forms_and_before_a_text_is_cut() -> None:
    key = 'plain"key/öne'
    redact, encoded = Redactor([key, "", "no"]), base64.b64encode(key.encode()).decode()
    for form in (key, json.dumps(key), "plain%22key%2F%C3%B6ne", encoded):
        assert "plain" not in redact(f"x{form}y")
        assert encoded[:8] not in redact(f"x{form}y")
    for length in range(100):
        assert "plai" not in redact("x" * length + key, max_chars=50)
    assert redact("no, not none") == "no, not none"  # a key of 2 characters is none
    assert Redactor(["A" * 50])("A" * 49 + "A" * 10**6).count("A") == 0
    assert redact("a \ud800 b") == "a ? b"
    assert len(redact("x" * 10**7)) == 500
    assert redact('a text that was cut: plain"key/ö') == f"a text that was cut: {REDACTED}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "https://me:hunter2@host/v1"}, "no user name or password in base_url"),
        ({"base_url": "https://me:hun/hunter2@host/v1"}, "no user name or password in base_url"),
        ({"base_url": "//me:hunter2@h"}, "no user name or password in base_url"),
        ({"base_url": "https://host/v1?a=1&access_token=hunter2"}, "base_url"),
        ({"base_url": "ftp://host/v1"}, "base_url that begins with http"),
        ({"base_url": "http://[::1"}, "base_url that begins with http"),
        ({"base_url": "http://host:99999/v1"}, "base_url that begins with http"),
        ({"key": "sk-hunter2"}, "name of a variable, never the key itself"),
        ({"key": "hunter2 w"}, "name of a variable, never the key itself"),
        ({"key": ""}, "name of a variable, never the key itself"),
        ({"key": "MY_KEY"}, "MY_KEY: it holds a space, a line break"),
        ({"key": "NOT_SET"}, "NOT_SET"),
        ({"base_url": "http://host/v1", "key": "sk-hunter2"}, "name of a variable, never the key"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"patience_seconds": -1}, "patience_seconds"),
        ({"per_minute": float("inf")}, "per_minute of at least 0"),
    ],
)
def test_settings_that_hold_a_secret_or_mean_nothing_are_refused_without_repeating_them(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    """Settings are written into run folders."""
    monkeypatch.setenv("MY_KEY", "hunter2\n")
    monkeypatch.setenv("GRPO_JUDGE_KEY", "x")
    LLM(LLMConfig(model="any", base_url="https://host/v1?api-version=2024-06-01", key="NOT_SET"))
    with pytest.raises(ConfigError, match=message) as raised:
        LLM(LLMConfig(**{"model": "any", **settings}))
    assert "hun" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "foo://me:hunter2@host"),
        ("ALL_PROXY", "http://me:hun#ter2@host:80"),
        ("SSL_CERT_FILE", "/hunter2"),
    ],
)
def test_a_proxy_or_certificate_that_cannot_be_used_is_refused_before_any_verdict(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="ALL_PROXY") as raised:
        endpoint.judge()
    assert "hun" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "written",
    [
        "ab-cdef\\/with+signs=",
        "ab-cdef%2fwith%2bsigns%3d",
        "ab-cdef&#x2F;with&#43;signs&#061;",
        "ab%2Dcdef\\\\\\/with+signs%3D",
    ],
)
def test_a_key_is_redacted_however_its_punctuation_is_written(written: str) -> None:
    assert Redactor(["ab-cdef/with+signs="])(f"x {written} y") == f"x {REDACTED} y"


@pytest.mark.parametrize("where", ["header", "reason"])
def test_the_logs_of_the_client_hold_no_key_that_a_response_repeats(
    endpoint: Endpoint, monkeypatch, caplog, where: str
) -> None:
    monkeypatch.setenv("MY_KEY", KEYS[1])

    def reply(handler: BaseHTTPRequestHandler) -> None:
        said = handler.headers["Authorization"].removeprefix("Bearer ")
        handler.send_response(400, said if where == "reason" else None)
        if where == "header":
            handler.send_header("X-Echo", said)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    endpoint.reply = lambda asked: reply
    with caplog.at_level(logging.DEBUG):
        judged(endpoint.judge(key="MY_KEY", retries=0), "hello")
    assert any(record.name.startswith("http") for record in caplog.records)
    assert REDACTED in caplog.text
    assert KEYS[1] not in caplog.text


@pytest.mark.parametrize("text", ["\\" * 10**5, "&#0" * 10**5, "-%2" * 10**5, "a-\\" * 10**5])
def test_no_text_takes_long_to_redact(text: str) -> None:
    started = time.process_time()
    Redactor(["-a-b\\\\/c" * 8])(text)
    assert time.process_time() - started < 1
