"""`grpo eval --endpoint`: the statistics of a model of this machine, for one behind a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.runs.lines import read_lines

from ..plugins.endpoint import Endpoint
from .evaluated import (
    FRAIL,
    GUESS,
    HERE,
    RANKED,
    SHOP,
    TALE,
    begin,
    chat,
    evaluate,
    index_of,
    invoke,
    passed,
    results,
    says,
    scripted,
    serving,
)

pytestmark = pytest.mark.usefixtures("quick")
KEY = "sk-abcdef0123456789"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "env",
    [
        *("arithmetic", GUESS, SHOP, TALE, RANKED),
        *(pytest.param(name, marks=pytest.mark.heavy) for name in ("wordle", "sql")),
    ],
    ids=lambda env: env.rpartition(":")[2],
)
def test_a_server_that_answers_rightly_gets_all_of_it(env: str, tmp_path: Path) -> None:
    """One turn, dialogues, tools of episodes, raw text, groups that are judged together, episodes."""
    with serving(scripted(env, tasks=4, samples=2), tmp_path / "server") as server:
        found = evaluate(env, server.url, tmp_path / "out")
        assert set(server.answered().values()) == {1}
    assert passed(found) == 1.0
    assert found["complete"]
    assert found["results"][0]["attempts"] == 8
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["results"] == found["results"]


def test_a_dialogue_goes_on_after_a_wrong_guess(tmp_path: Path) -> None:
    """The history that the server sees is the dialogue; what it costs is the sum over its turns."""
    script = scripted(GUESS, tasks=4, samples=2, turns=lambda turns, task: ("0", "0", *turns))
    with serving(script, tmp_path / "server") as server:
        more = ("--price-in", 1, "--price-out", 2)
        found = evaluate(GUESS, server.url, tmp_path / "out", *more)
    assert passed(found) == 1.0
    assert found["usage"] == {
        "requests": 24,
        "cached": 0,
        "retries": 0,
        "prompt_tokens": 240,
        "completion_tokens": 72,
        "cost": pytest.approx((240 + 2 * 72) / 1e6),
    }
    assert found["results"][0]["tokens"] == 72
    for line in read_lines(tmp_path / "out" / "attempts.jsonl"):
        assert [m["content"] for m in line["messages"][:-1]] == ["0", "one number"] * 2
        assert line["turn_lengths"] == [3, 3, 3]


def test_the_history_holds_structured_calls_and_results_that_name_them(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Calls of one turn are answered in their order, and the example's server writes their ids."""
    script = scripted(SHOP, tasks=1, samples=1)
    endpoint.reply = lambda asked: (200, chat(script[str(asked["seed"])]))
    found = evaluate(SHOP, endpoint.url, tmp_path / "out", "--tasks", 1, "--samples", 1)
    assert passed(found) == 1.0
    first, second, third = endpoint.asked
    assert [tool["function"]["name"] for tool in first["tools"]] == ["put", "look"]
    assert [m["role"] for m in first["messages"]] == ["user", "user"]
    assistant, *answers = second["messages"][2:]
    assert assistant == script[str(first["seed"])] | {"content": ""}
    assert {m["role"] for m in answers} == {"tool"}
    assert [m["tool_call_id"] for m in answers] == ["call-0", "call-1"]
    assert answers[1]["content"] == "2 x pear"
    assert third["messages"][: len(second["messages"])] == second["messages"]
    (line,) = read_lines(tmp_path / "out" / "attempts.jsonl")
    assert [call["name"] for call in line["messages"][1]["tool_calls"]] == ["put", "put"]


def test_what_a_request_holds_is_what_the_options_say(endpoint: Endpoint, tmp_path: Path) -> None:
    words = ["--temperature", 0.5, "--top-p", 0.9, "--stop", "END", "--max-new-tokens", 7]
    words += ["--set", "sampling.top_k=4", "--seed", 3]
    words += ["--request", "reasoning_effort=low", "--request", "seed=null"]
    words += ["--request", 'chat_template_kwargs={"enable_thinking": false}']
    evaluate(FRAIL, endpoint.url, tmp_path / "out", *words)
    asked = [request["messages"][0]["content"] for request in endpoint.asked]
    assert endpoint.asked[asked.index("Say 0.")] == {
        "model": "any",
        "messages": [{"role": "user", "content": "Say 0."}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["END"],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_more_attempts_continue_and_other_settings_are_refused(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    evaluate(FRAIL, endpoint.url, out)
    endpoint.asked.clear()
    found = evaluate(FRAIL, endpoint.url, out, "--tasks", 5, "--samples", 3)
    assert len(endpoint.asked) == 15 - 8
    assert found["results"][0]["attempts"] == 15
    for more, message in (
        (("--temperature", 0.5), "temperature was 1.0 and is 0.5"),
        (("--model-name", "b"), 'model was "any" and is "b"'),
        (("--request", "user=me"), 'request.user was not set and is "me"'),
        (("--env", SHOP), "fingerprint was not set"),
        (("--seed", 4), "seed was 0 and is 4"),
    ):
        done = invoke(FRAIL, endpoint.url, out, *more)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
        assert "holds an evaluation with other settings" in done.stderr
        assert len(done.output.strip().splitlines()) == 1
    text = (out / "evaluation.json").read_text()
    (out / "evaluation.json").write_text(text.replace('"any"', '"other"'))
    assert "is damaged" in invoke(FRAIL, endpoint.url, out).output


def test_a_group_is_judged_again_where_an_attempt_was_added(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Of three attempts another one is the longest."""
    endpoint.reply = lambda asked: (200, chat(says("x" * (1 + endpoint.asked.index(asked)))))
    counts = ("--tasks", 1, "--concurrency", 1)
    assert passed(evaluate(RANKED, endpoint.url, tmp_path / "out", *counts)) == 0.5
    found = evaluate(RANKED, endpoint.url, tmp_path / "out", *counts, "--samples", 3)
    assert passed(found) == pytest.approx(1 / 3)
    assert found["usage"]["requests"] == 3
    assert evaluate(RANKED, endpoint.url, tmp_path / "out", *counts, "--samples", 3) == {
        **found,
        "seconds": pytest.approx(0, abs=10),
    }


def test_evaluations_share_a_cache_of_answers(endpoint: Endpoint, tmp_path: Path) -> None:
    """Each attempt has an answer of its own, and an answer from the cache costs nothing."""
    endpoint.reply = lambda asked: (200, chat(says(f"answer {len(endpoint.asked)}")))
    cache = ("--cache", tmp_path / "cache.sqlite")
    first = evaluate(FRAIL, endpoint.url, tmp_path / "a", *cache)
    assert len(endpoint.asked) == 8
    second = evaluate(FRAIL, endpoint.url, tmp_path / "b", *cache)
    assert len(endpoint.asked) == 8
    said = [
        {(line["key"]["index"], line["attempt"]): line["messages"] for line in read_lines(path)}
        for path in sorted(tmp_path.glob("*/attempts.jsonl"))
    ]
    assert said[0] == said[1]
    assert len({str(messages) for messages in said[0].values()}) == 8
    assert second["results"] == first["results"]
    assert (second["usage"]["requests"], second["usage"]["cached"]) == (0, 8)
    evaluate(FRAIL, endpoint.url, tmp_path / "c", *cache, "--temperature", 0)
    assert len(endpoint.asked) == 16


def test_the_key_is_sent_and_written_nowhere(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level("DEBUG")
    done = invoke(FRAIL, endpoint.url, tmp_path / "out", "--cache", tmp_path / "cache.sqlite")
    assert done.exit_code == 0
    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.output + caplog.text


def test_it_needs_no_torch(tmp_path: Path) -> None:
    """A user with the extra judge and without train: what is not installed cannot be imported."""
    away = ("torch", "transformers", "peft", "accelerate", "datasets", "numpy", "safetensors")
    block = f"import sys\nsys.modules.update(dict.fromkeys({away!r}))\n"
    with serving(scripted("arithmetic", tasks=2, samples=1), tmp_path / "server") as server:
        counts = ("--tasks", 2, "--samples", 1)
        found = results(begin("arithmetic", server.url, tmp_path / "out", *counts, code=block))
    assert passed(found) == 1.0


def test_without_the_package_openai_the_message_names_the_extra(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['openai'] = None\n"
    process = begin("arithmetic", "http://127.0.0.1:9/v1", tmp_path / "out", code=code)
    _, remarks = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "pip install 'grpo-core[judge]'" in remarks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--endpoint http://h/v1", "add --model-name NAME"),
        ("--endpoint ftp://h --model-name a", "begins with http:// or https://"),
        ("--endpoint http://u:p@h/v1 --model-name a", "takes no user name or password"),
        ("--endpoint http://h/v1?api_key=1 --model-name a", "takes no key in the query"),
        ("--endpoint http://h/v1 --model-name a --run runs/x", "--run is for a model on this"),
        ("--endpoint http://h/v1 --model-name a --key-env sk-1", "never the key itself"),
        ("--endpoint http://h/v1 --model-name a --request n=2", "--request n cannot be changed"),
        ("--endpoint http://h/v1 --model-name a --set model.dtype=float32", "changes nothing"),
        ("--endpoint http://h/v1 --model-name a --set eval.tasks=3", "give --tasks 3 instead"),
        ("--model-name a", "--model-name is for a model behind an endpoint"),
    ],
)
def test_wrong_options_are_one_line(words: str, message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["eval", "--env", FRAIL, *words.split()])
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_two_evaluations_at_endpoints_are_compared_by_task(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Of an attempt that failed first, and of one that was judged with others, the last line counts."""
    right = {"0", "3"}

    def reply(asked: dict[str, Any]) -> Any:
        index = index_of(asked)
        if index == "2" and len(endpoint.asked) < 10:
            return 503, {"error": {"message": "down"}}
        return 200, chat(says(index if index in right else "no"))

    endpoint.reply = reply
    more = ("--retries", 0, "--set", "verify.max_error_rate=1")
    for name in ("a", "b"):
        for _ in range(2):
            evaluate(FRAIL, endpoint.url, tmp_path / name, *more)
        right |= {"1", "2"}
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["pass_rate"]
    assert (found["before"], found["after"]) == (0.5, 1.0), found


def test_an_agent_drives_the_model_behind_the_endpoint(endpoint: Endpoint, tmp_path: Path) -> None:
    """Its requests pass on, with histories and limits; what it returned is judged, and kept for later."""

    def reply(asked: dict[str, Any]) -> Any:
        index = asked["messages"][0]["content"].split()[-1]
        said = ["wrong", "right" if index != "1" else "wrong", "end"]
        return 200, chat(says(said[len(asked["messages"]) // 2]))

    endpoint.reply = reply
    agent = f"{HERE.parent / 'core' / 'agent_envs.py'}:Asking"
    found = evaluate(agent, endpoint.url, tmp_path / "out", "--max-new-tokens", 9)
    assert passed(found) == 0.75
    assert found["usage"]["requests"] == 24 == len(endpoint.asked)
    assert {asked["max_tokens"] for asked in endpoint.asked} == {9}
    assert len({asked["seed"] for asked in endpoint.asked}) == 24
    lines = list(read_lines(tmp_path / "out" / "attempts.jsonl"))
    assert len(lines) == 8
    for line in lines:
        assert len(line["returned"]["heard"]) == 3
        assert [m["role"] for m in line["messages"]] == ["assistant", "user"] * 2 + ["assistant"]
        assert line["turn_lengths"] == [20, 20, 20]
    endpoint.asked.clear()
    assert evaluate(agent, endpoint.url, tmp_path / "out", "--max-new-tokens", 9) == {
        **found,
        "seconds": pytest.approx(0, abs=100),
    }
    assert endpoint.asked == []


@pytest.mark.slow
def test_an_agent_without_answers_is_an_error_and_a_wrong_key_ends_all(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    agent = f"{HERE.parent / 'core' / 'agent_envs.py'}:Asking"
    endpoint.reply = lambda asked: (503, {"error": {"message": "down"}})
    few = ("--tasks", 1, "--samples", 1, "--retries", 0, "--set", "verify.retries=0")
    found = evaluate(agent, endpoint.url, tmp_path / "a", *few)
    assert found["results"][0]["unscored"] == 1
    assert "the endpoint failed: HTTP status 503: down" in next(iter(found["errors"]))
    endpoint.reply = lambda asked: (401, {"error": {"message": "no"}})
    done = invoke(agent, endpoint.url, tmp_path / "b", *few)
    assert done.exit_code == 2
    assert "refuses the request: HTTP status 401: no" in done.stderr
    long = {"error": {"message": "maximum context length is 8"}}
    endpoint.reply = lambda asked: (
        (400, long) if len(asked["messages"]) > 2 else (200, chat(says("x")))
    )
    found = evaluate(agent, endpoint.url, tmp_path / "c", *few)
    assert found["results"][0]["refused"] == {"context": 1}
    assert found["results"][0]["clipped"] == 1.0
