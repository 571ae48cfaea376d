"""`grpo eval --endpoint`: the statistics of a model of this machine, for one behind a server."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app

from ..plugins.endpoint import failed
from .evaluated import (
    AGENT,
    FRAIL,
    GUESS,
    RANKED,
    SHOP,
    TALE,
    Evaluated,
    index_of,
    passed,
    results,
    scripted,
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
def test_a_server_that_answers_rightly_gets_all_of_it(env: str, endpoint: Evaluated) -> None:
    """One turn, dialogues, tools of episodes, raw text, groups that are judged together, episodes."""
    answered = endpoint.follow(scripted(env, tasks=4, samples=2))
    found = endpoint.evaluate(env)
    assert set(answered.values()) == {1}
    assert passed(found) == 1.0
    assert found["complete"]
    assert found["results"][0]["attempts"] == 8
    written = json.loads((endpoint.out / "results.json").read_text())
    assert written["results"] == found["results"]


def test_a_dialogue_goes_on_after_a_wrong_guess(endpoint: Evaluated) -> None:
    """The history that the server sees is the dialogue; what it costs is the sum over its turns."""
    script = scripted(GUESS, tasks=4, samples=2, turns=lambda turns, task: ("0", "0", *turns))
    endpoint.follow(script)
    found = endpoint.evaluate(GUESS, "--price-in", 1, "--price-out", 2)
    assert passed(found) == 1.0
    assert found["usage"] == {
        "requests": 24,
        "cached": 0,
        "retries": 0,
        "prompt_tokens": 2400,
        "completion_tokens": 480,
        "cost": pytest.approx((2400 + 2 * 480) / 1e6),
    }
    assert found["results"][0]["tokens"] == 480
    for line in endpoint.lines():
        assert [m["content"] for m in line["messages"][:-1]] == ["0", "one number"] * 2
        assert line["turn_lengths"] == [20, 20, 20]


def test_the_history_holds_structured_calls_and_results_that_name_them(endpoint: Evaluated) -> None:
    """Calls of one turn are answered in their order, and the example's server writes their ids."""
    script = scripted(SHOP, tasks=1, samples=1)
    endpoint.follow(script)
    found = endpoint.evaluate(SHOP, "--tasks", 1, "--samples", 1)
    assert passed(found) == 1.0
    first, second, third = endpoint.asked
    assert [tool["function"]["name"] for tool in first["tools"]] == ["put", "look"]
    assert [m["role"] for m in first["messages"]] == ["user", "user"]
    assistant, *answers = second["messages"][2:]
    calls = script[str(first["seed"])]["tool_calls"]
    assert assistant == {"role": "assistant", "content": "", "tool_calls": calls}
    assert {m["role"] for m in answers} == {"tool"}
    assert [m["tool_call_id"] for m in answers] == ["call-0", "call-1"]
    assert answers[1]["content"] == "2 x pear"
    assert third["messages"][: len(second["messages"])] == second["messages"]
    (line,) = endpoint.lines()
    assert [call["name"] for call in line["messages"][1]["tool_calls"]] == ["put", "put"]


def test_what_a_request_holds_is_what_the_options_say(endpoint: Evaluated) -> None:
    words = ["--temperature", 0.5, "--top-p", 0.9, "--stop", "END", "--max-new-tokens", 7]
    words += ["--set", "sampling.top_k=4", "--seed", 3]
    words += ["--request", "reasoning_effort=low", "--request", "seed=null"]
    words += ["--request", 'chat_template_kwargs={"enable_thinking": false}']
    endpoint.evaluate(FRAIL, *words)
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


def test_more_attempts_continue_and_other_settings_are_refused(endpoint: Evaluated) -> None:
    out = endpoint.out
    endpoint.evaluate(FRAIL)
    endpoint.asked.clear()
    found = endpoint.evaluate(FRAIL, "--tasks", 5, "--samples", 3)
    assert len(endpoint.asked) == 15 - 8
    assert found["results"][0]["attempts"] == 15
    for more, message in (
        (("--temperature", 0.5), "temperature was 1.0 and is 0.5"),
        (("--model-name", "b"), 'model was "any" and is "b"'),
        (("--request", "user=me"), 'request.user was not set and is "me"'),
        (("--env", SHOP), "fingerprint was not set"),
        (("--seed", 4), "seed was 0 and is 4"),
    ):
        done = endpoint.invoke(FRAIL, *more)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
        assert "holds an evaluation with other settings" in done.stderr
        assert len(done.output.strip().splitlines()) == 1
    text = (out / "evaluation.json").read_text()
    (out / "evaluation.json").write_text(text.replace('"any"', '"other"'))
    assert "is damaged" in endpoint.invoke(FRAIL).output


def test_a_group_is_judged_again_where_an_attempt_was_added(endpoint: Evaluated) -> None:
    """Of three attempts another one is the longest."""
    endpoint.reply = lambda asked: "x" * (1 + endpoint.asked.index(asked))
    counts = ("--tasks", 1, "--concurrency", 1)
    assert passed(endpoint.evaluate(RANKED, *counts)) == 0.5
    found = endpoint.evaluate(RANKED, *counts, "--samples", 3)
    assert passed(found) == pytest.approx(1 / 3)
    assert found["usage"]["requests"] == 3
    assert endpoint.evaluate(RANKED, *counts, "--samples", 3) == {
        **found,
        "seconds": pytest.approx(0, abs=10),
    }


def test_evaluations_share_a_cache_of_answers(endpoint: Evaluated) -> None:
    """Each attempt has an answer of its own, and an answer from the cache costs nothing."""
    endpoint.reply = lambda asked: f"answer {len(endpoint.asked)}"
    cache = ("--cache", endpoint.folder / "cache.sqlite")
    first = endpoint.evaluate(FRAIL, *cache, out="a")
    assert len(endpoint.asked) == 8
    second = endpoint.evaluate(FRAIL, *cache, out="b")
    assert len(endpoint.asked) == 8
    said = [
        {(line["key"]["index"], line["attempt"]): line["messages"] for line in endpoint.lines(out)}
        for out in ("a", "b")
    ]
    assert said[0] == said[1]
    assert len({str(messages) for messages in said[0].values()}) == 8
    assert second["results"] == first["results"]
    assert (second["usage"]["requests"], second["usage"]["cached"]) == (0, 8)
    endpoint.evaluate(FRAIL, *cache, "--temperature", 0, out="c")
    assert len(endpoint.asked) == 16


def test_the_key_is_sent_and_written_nowhere(
    endpoint: Evaluated, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level("DEBUG")
    done = endpoint.invoke(FRAIL, "--cache", endpoint.folder / "cache.sqlite")
    assert done.exit_code == 0
    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    files = [path for path in endpoint.folder.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.output + caplog.text


@pytest.mark.slow
def test_it_needs_no_torch(endpoint: Evaluated) -> None:
    """A user with the extra judge and without train: what is not installed cannot be imported."""
    away = ("torch", "transformers", "peft", "accelerate", "datasets", "numpy", "safetensors")
    block = f"import sys\nsys.modules.update(dict.fromkeys({away!r}))\n"
    endpoint.follow(scripted("arithmetic", tasks=2, samples=1))
    found = results(endpoint.begin("arithmetic", "--tasks", 2, "--samples", 1, code=block))
    assert passed(found) == 1.0


def test_without_the_package_openai_the_message_names_the_extra(endpoint: Evaluated) -> None:
    process = endpoint.begin("arithmetic", code="import sys\nsys.modules['openai'] = None\n")
    _, remarks = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "pip install 'grpo-core[judge]'" in remarks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--endpoint ftp://h --model-name a", "begins with http:// or https://"),
        ("--endpoint http://u:p@h/v1 --model-name a", "takes no user name or password"),
        ("--endpoint http://h/v1?api_key=1 --model-name a", "takes no key in the query"),
        ("--endpoint http://h/v1 --model-name a --key-env sk-1", "never the key itself"),
        ("--endpoint http://h/v1 --model-name a --request n=2", "--request n cannot be changed"),
        ("--endpoint http://h/v1 --model-name a --set model.dtype=float32", "changes nothing"),
        ("--endpoint http://h/v1 --model-name a --set eval.tasks=3", "give --tasks 3 instead"),
    ],
)
def test_wrong_options_are_one_line(words: str, message: str) -> None:
    done = CliRunner().invoke(app, ["eval", "--env", FRAIL, *words.split()])
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_two_evaluations_at_endpoints_are_compared_by_task(endpoint: Evaluated) -> None:
    """Of an attempt that failed first, and of one that was judged with others, the last line counts."""
    right = {"0", "3"}

    def reply(asked: dict[str, Any]) -> Any:
        index = index_of(asked)
        if index == "2" and len(endpoint.asked) < 10:
            return failed(503, "down")
        return index if index in right else "no"

    endpoint.reply = reply
    more = ("--retries", 0, "--set", "verify.max_error_rate=1")
    for name in ("a", "b"):
        for _ in range(2):
            endpoint.evaluate(FRAIL, *more, out=name)
        right |= {"1", "2"}
    folders = [str(endpoint.folder / name) for name in ("a", "b")]
    done = CliRunner().invoke(app, ["compare", *folders, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["pass_rate"]
    assert (found["before"], found["after"]) == (0.5, 1.0), found


@pytest.mark.slow
def test_an_agent_drives_the_model_behind_the_endpoint(endpoint: Evaluated) -> None:
    """Its requests pass on, with histories and limits; what it returned is judged, and kept for later."""

    def reply(asked: dict[str, Any]) -> Any:
        index = asked["messages"][0]["content"].split()[-1]
        said = ["wrong", "right" if index != "1" else "wrong", "end"]
        return said[len(asked["messages"]) // 2]

    endpoint.reply = reply
    found = endpoint.evaluate(AGENT, "--max-new-tokens", 9)
    assert passed(found) == 0.75
    assert found["usage"]["requests"] == 24 == len(endpoint.asked)
    assert {asked["max_tokens"] for asked in endpoint.asked} == {9}
    assert len({asked["seed"] for asked in endpoint.asked}) == 24
    lines = endpoint.lines()
    assert len(lines) == 8
    for line in lines:
        assert len(line["returned"]["heard"]) == 3
        assert [m["role"] for m in line["messages"]] == ["assistant", "user"] * 2 + ["assistant"]
        assert line["turn_lengths"] == [20, 20, 20]
    endpoint.asked.clear()
    assert endpoint.evaluate(AGENT, "--max-new-tokens", 9) == {
        **found,
        "seconds": pytest.approx(0, abs=100),
    }
    assert endpoint.asked == []


@pytest.mark.slow
def test_an_agent_without_answers_is_an_error_and_a_wrong_key_ends_all(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: failed(503, "down")
    few = ("--tasks", 1, "--samples", 1, "--retries", 0, "--set", "verify.retries=0")
    found = endpoint.evaluate(AGENT, *few, out="a")
    assert found["results"][0]["unscored"] == 1
    assert "the endpoint failed: HTTP status 503: down" in next(iter(found["errors"]))
    endpoint.reply = lambda asked: failed(401, "no")
    done = endpoint.invoke(AGENT, *few, out="b")
    assert done.exit_code == 2
    assert "refuses the request: HTTP status 401: no" in done.stderr
    long = failed(400, "maximum context length is 8")
    endpoint.reply = lambda asked: long if len(asked["messages"]) > 2 else "x"
    found = endpoint.evaluate(AGENT, *few, out="c")
    assert found["results"][0]["refused"] == {"context": 1}
    assert found["results"][0]["clipped"] == 1.0
