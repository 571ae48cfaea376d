"""A JSON schema that is too large, too deep, slow or wrong ends its own request, and no request beside it."""

import asyncio
import time
from typing import Any

import pytest
from openai import BadRequestError

from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import builtin_sampler
from grpo_core.engine.policy.constrained import Constraint
from grpo_core.protocol.sampler import UnsupportedSchemaError

from .arrange import sampled
from .test_agents import POLICY, Talking, by_agent
from .test_constrained import NO_SCHEMA, requests, results
from .tiny import tiny_model, tiny_tokenizer


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def alternatives(count: int) -> dict[str, Any]:
    named = [
        [{"properties": {f"{i}{j}": {"type": "string"}}, "required": [f"{i}{j}"]} for j in range(2)]
        for i in range(count)
    ]
    return {"allOf": [{"anyOf": pair} for pair in named]}


HANGING = "patterns that hold at once"
REFUSED: dict[str, Any] = {
    **{f"depth {depth}": nested(depth) for depth in (40, 71, 130, 5000)},
    HANGING: {"allOf": [{"type": "string", "pattern": f".*[a-z].{{{10 + i}}}"} for i in range(50)]},
    "multiples that hold at once": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7, 11, 13, 17, 19, 23, 29)]},
    "a large multiple": {"type": "integer", "multipleOf": 99991},
    "a product of alternatives": alternatives(30),
    "a million names": {"enum": [f"value {i}" for i in range(200_000)]},
    "many optional fields": {"type": "object", "properties": {f"p{i}": {} for i in range(10_000)}},
    "a billion items": {"type": "array", "minItems": 10**9},
    "a long number": {"const": 10**5000},
    "no number": {"const": float("inf")},
    "no JSON": {"const": {1, 2}},
    "half a pair": {"const": "\ud83d"},
    "a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "another address": {"$ref": "http://127.0.0.1:1/x"},
    "brackets": {"type": "string", "pattern": "(" * 2000 + ")" * 2000},
    "options of the library": {"type": "string", "x-guidance": {"whitespace_pattern": "x"}},
    "letters that the model has not": {"const": "\u4e00"},
}  # fmt: skip


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(tiny_model(), tiny_tokenizer())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == HANGING else []) for n in REFUSED]
)
def test_a_hostile_schema_is_refused_and_four_honest_requests_are_answered(policy, name):
    honest = requests(policy, [None, {"type": "boolean"}, None, {"type": "boolean"}], length=5)
    (hostile,) = requests(policy, [REFUSED[name]], length=5, seed=9)
    alone = sampled(policy, honest)
    started = time.monotonic()
    first, second, refusal, *others = results(policy, [*honest[:2], hostile, *honest[2:]])
    assert time.monotonic() - started < 20
    assert isinstance(refusal, UnsupportedSchemaError)
    assert len(str(refusal)) < 400
    tokens = [completion.token_ids for completion in (first, second, *others)]
    assert tokens == [completion.token_ids for completion in alone]


@pytest.mark.slow
async def test_requests_without_a_schema_do_not_wait_for_one_that_hangs(policy):
    honest, hostile = requests(policy, [None, REFUSED[HANGING]], length=3)
    sampler = builtin_sampler(policy, NO_SCHEMA)
    slow = asyncio.create_task(sampler.generate(hostile))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    await sampler.generate(honest)
    waited = time.monotonic() - started
    assert not slow.done()
    with pytest.raises(UnsupportedSchemaError, match="3 s to compile"):
        await slow
    assert waited < 2


class Panic(BaseException):
    """What a panic of native code looks like: no Exception."""


class Failing:
    def consume_token(self, token: int) -> None:
        raise Panic("index out of bounds")


def test_a_grammar_that_fails_in_the_middle_ends_its_request_alone(policy, monkeypatch):
    honest = requests(policy, [None, {"enum": [True]}], length=6)
    (failing,) = requests(policy, [{"type": "array", "minItems": 9}], length=6)
    alone = sampled(policy, honest)
    step, steps = Constraint._next_mask, []
    bracket = policy.tokenizer.convert_tokens_to_ids("[")

    def next_mask(self: Constraint) -> Any:
        mask = step(self)
        if mask[bracket]:
            steps.append(1)
            self._matcher = Failing()  # type: ignore[assignment]
        return mask

    monkeypatch.setattr(Constraint, "_next_mask", next_mask)
    first, refusal, second = results(policy, [honest[0], failing, honest[1]])
    assert steps == [1]
    assert isinstance(refusal, UnsupportedSchemaError)
    assert "index out of bounds" in str(refusal)
    assert [first.token_ids, second.token_ids] == [done.token_ids for done in alone]


class AsksStrangely(Talking):
    """Asks for a schema that nothing follows, and goes on when it is refused."""

    async def agent(self, task: Any, client: Any) -> Any:
        deep: dict[str, Any] = nested(25 if task.key.index else 100)
        schema = {"name": "deep", "schema": {**deep, "$ref": "#/nowhere"}}
        with pytest.raises(BadRequestError, match=r"JSON schema|too complex"):
            await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": "Hi"}],
                response_format={"type": "json_schema", "json_schema": schema},
            )
        return await super().agent(task, client)


def test_an_agent_hears_that_its_schema_is_refused_and_its_attempt_is_no_error():
    rollouts = by_agent(AsksStrangely, builtin_sampler(POLICY, NO_SCHEMA), attempts=1)
    assert [rollout.error for (rollout,) in rollouts] == ["", ""]
    assert all(rollout.token_ids for (rollout,) in rollouts)
