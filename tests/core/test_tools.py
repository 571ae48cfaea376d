"""Test functions as tools: their descriptions, their calls, and the errors that the policy sees."""

import json
import os
import time
from typing import Annotated

import pytest
from pydantic import Field

from grpo_core import ConfigError, GrpoError, Message, Reward, Rollout, Spec, Task, TaskKey, Verdict
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.tools import MAX_CALLS, MAX_RESULT, answers, schemas
from grpo_core.testing import check_environment
from grpo_core.verify.engine import Verifier


def add(a: int, b: Annotated[int, Field(description="the second number", ge=0)] = 1) -> int:
    """Add two
    numbers.

    Of no interest to the policy.
    """
    return a + b


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper() * (10_000 if text == "long" else 1)


def broken() -> None:
    """Fails."""
    raise RuntimeError("no luck")


TOOLS = (add, shout, broken)


def call(text: str) -> list[str]:
    return [message.content for message in answers(TOOLS, text) or []]


def test_a_function_is_described_by_name_first_paragraph_and_schema() -> None:
    description = schemas(TOOLS)[0]
    assert description["type"] == "function"
    assert description["function"]["name"] == "add"
    assert description["function"]["description"] == "Add two numbers."
    parameters = description["function"]["parameters"]
    assert parameters["required"] == ["a"]
    assert parameters["properties"]["b"] == {
        "type": "integer",
        "default": 1,
        "description": "the second number",
        "minimum": 0,
    }


class Shelf:
    """An object whose method is a tool."""

    books = ("Emma", "Ulysses")

    def title(self, place: Annotated[int, Field(description="from the left", ge=1, le=2)]) -> str:
        """Return the title of a book."""
        return self.books[place - 1]


def test_a_method_is_described_and_called_as_a_function_is() -> None:
    tools = (Shelf().title,)
    assert schemas(tools)[0]["function"]["parameters"]["properties"]["place"] == {
        "type": "integer",
        "description": "from the left",
        "minimum": 1,
        "maximum": 2,
    }
    call = '<tool_call>{"name": "title", "arguments": {"place": %d}}</tool_call>'
    told = [message.content for message in answers(tools, call % 2 + call % 3) or []]
    assert told[0] == "Ulysses"
    assert "less than or equal to 2" in told[1]


@pytest.mark.parametrize(
    ("call_body", "message"),
    [
        ("{", "error: the call is not valid JSON"),
        ("[" * 100_000, "error: the call is not valid JSON"),
        ("7", "error: a call is an object"),
        ('{"name": "ad"}', "error: there is no tool 'ad'; there are add, broken, shout"),
        ('{"name": "add"}', "error: add was called wrongly: a: missing required argument"),
        (
            '{"name": "add", "arguments": {"a": "x"}}',
            "error: add was called wrongly: a: input should be a valid integer",
        ),
        ('{"name": "broken", "arguments": {}}', "error: RuntimeError: no luck"),
    ],
)
def test_the_policy_is_told_what_is_wrong_with_a_call(call_body: str, message: str) -> None:
    (result,) = call(f"<tool_call>{call_body}</tool_call>")
    assert result.startswith(message)


def test_results_are_bounded_and_no_more_calls_are_made_than_are_answered() -> None:
    long = call('<tool_call>{"name": "shout", "arguments": {"text": "long"}}</tool_call>')
    assert len(long[0]) == MAX_RESULT
    made: list[int] = []

    def note(number: int) -> int:
        """Note a number."""
        made.append(number)
        return number

    many = [{"name": "note", "arguments": {"number": n}} for n in range(3 * MAX_CALLS)]
    in_one_block = f"<tool_call>{json.dumps(many)}</tool_call>" * 3
    in_blocks = "".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in many)
    for text in (in_one_block, in_blocks):
        made.clear()
        told = [message.content for message in answers([note], text) or []]
        assert told == list(map(str, range(MAX_CALLS)))
        assert made == list(range(MAX_CALLS))
    assert answers(TOOLS, "add 2 and 3") is None


class Calculator(Environment[int]):
    max_turns = 3

    def tools(self):  # type: ignore[no-untyped-def]
        def where() -> int:
            """Return the id of this process."""
            return os.getpid()

        def hang() -> None:
            """Never ends."""
            time.sleep(60)

        return (add, where, hang)

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", "What is 2 + 3?"),), 5)

    def verify(self, task: Task[int], rollout: object) -> Verdict:
        return Verdict({"reward": Reward(1.0)})


class TrustedCalculator(Calculator):
    trusted = True


@pytest.mark.parametrize("env", [Calculator(), TrustedCalculator()])
async def test_tools_run_where_the_verifier_runs_and_keep_its_deadline(env: Calculator) -> None:
    def ask(name: str, arguments: str = "{}") -> Message:
        return Message(
            "assistant", f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
        )

    settings = VerifyConfig(timeout_seconds=0.5 if env.trusted else 3, retries=0)
    spec = Spec("calculator", f"{__file__}:Calculator")
    async with Verifier(env, spec=spec, settings=settings) as verifier:
        (task,) = await verifier.tasks([TaskKey("calculator", "train", 0)])
        said = await verifier.reply(task, [ask("add", '{"a": 2, "b": 3}')])
        assert list(said or ()) == [Message("tool", "5")]
        assert await verifier.reply(task, [Message("assistant", "It is 5.")]) is None
        (pid,) = await verifier.reply(task, [ask("where")]) or ()
        assert (int(pid.content) == os.getpid()) == env.trusted
        with pytest.raises(GrpoError, match="deadline"):
            await verifier.reply(task, [ask("hang")])


def test_a_result_that_is_not_json_is_an_error_and_any_text_can_be_tokenised() -> None:
    def odd() -> dict[tuple[int, int], int]:
        return {(1, 2): 3}

    def half() -> str:
        return "a" + chr(0xD800)

    text = '<tool_call>{"name": "odd"}</tool_call><tool_call>{"name": "half"}</tool_call>'
    first, second = answers((odd, half), text) or []
    assert first.content.startswith("error: TypeError")
    assert second.content == "a?"


def test_an_async_tool_is_refused_when_it_is_described() -> None:
    async def later() -> int:
        return 1

    with pytest.raises(ConfigError, match="'later' is an async function; write it as a plain one"):
        schemas((later,))


class Letters(Environment[str]):
    """Asks for a secret word, of which a tool tells the length and one letter."""

    max_turns = 3
    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        word = "".join(key.rng().choices("bcdfghklmnpr", k=6))
        return Task(key, (Message("user", f"Find word {key.index}."),), word)

    def tools(self):  # type: ignore[no-untyped-def]
        def letter(place: Annotated[int, Field(ge=1, le=6)], task: Task[str]) -> str:
            """Return the letter at a place, counted from 1."""
            return task.data[place - 1]

        return (letter,)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == task.data
        return Verdict({"reward": Reward(right)}, passed=right)

    def reference(self, task: Task[str]) -> str:
        return task.data


class Gossip(Letters):
    def tools(self):  # type: ignore[no-untyped-def]
        def word(task: Task[str], loudly: bool = False) -> str:
            """Return something about the word."""
            return task.data

        return (word,)


class Unbound(Letters):
    def tools(self):  # type: ignore[no-untyped-def]
        return (Unbound.letter,)

    def letter(self, place: int) -> str:
        """Return a letter."""
        return ""


def results_of(env: Environment[str]) -> dict[str, tuple[str, str]]:
    report = check_environment(env, tasks=16, isolation="inline", only=["tool.form", "tool.secret"])
    return {result.check: (result.status, result.message) for result in report.results}


def test_the_kit_calls_tools_that_get_the_task_and_finds_one_that_tells_the_answer() -> None:
    assert {status for status, _ in results_of(Letters()).values()} == {"valid"}
    gossip = results_of(Gossip())
    assert gossip["tool.form"][0] == "valid"
    assert gossip["tool.secret"][0] == "invalid"
    assert "whatever is asked" in gossip["tool.secret"][1]
    assert "method without its object" in results_of(Unbound())["tool.form"][1]
