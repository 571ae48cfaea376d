"""Completions that have to be JSON of a schema: what is drawn, with which log-probs, and what a schema that cannot be followed does."""

import asyncio
import json
import math
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import builtin_sampler
from grpo_core.engine.policy.drawing import draw, draw_allowed
from grpo_core.engine.policy.masked import MaskedPolicy
from grpo_core.protocol import sampler as protocol
from grpo_core.protocol.errors import ConfigError, GrpoError, MissingExtraError
from grpo_core.protocol.sampler import Completion, Request, SamplingParams, UnsupportedSchemaError

from .arrange import sampled
from .tiny import SPECIAL, tiny_model, tiny_tokenizer
from .tiny_masked import masked_model, masked_tokenizer

NO_SCHEMA = SamplingConfig()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, as of GPT-2, with tokens that span what JSON keeps apart, such as `":` and `},`."""
    values = [{f"k{i}": [i, i / 7, True, None, "ab"], "x": {"y": "é\n"}} for i in range(200)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=4,
    )
    tokenizer.train_from_iterator(map(json.dumps, values), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[2], eos_token=SPECIAL[3], pad_token=SPECIAL[0]
    )


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Of characters; the model has more logits than the tokenizer has tokens."""
    return Policy(tiny_model(vocab=130), tiny_tokenizer())


@pytest.fixture(scope="module")
def byte_policy() -> Policy:
    tokenizer = byte_tokenizer()
    return Policy(tiny_model(vocab=len(tokenizer)), tokenizer)


def requests(
    policy: Policy, schemas: Sequence[Mapping[str, Any] | None], *, length: int, seed: int = 0
) -> list[Request]:
    """A request for each schema, with equal prefixes and numbers of their own."""
    prefix = tuple(policy.tokenizer("write: ", add_special_tokens=False)["input_ids"])
    numbers = random.Random(seed)
    return [
        Request(prefix, [numbers.random() for _ in range(length)], json_schema=schema)
        for schema in schemas
    ]


def words(policy: Policy, completion: Completion) -> str:
    """The text without the end token."""
    ended = completion.finish == "stop"
    assert (completion.token_ids[-1] in policy.end_ids) == ended
    return policy.decode(completion.token_ids[: len(completion.token_ids) - ended])


# What is drawn


def schemas_of(characters: str) -> st.SearchStrategy[Any]:
    """Schemas of values, lists and objects; texts have these characters."""
    values = st.one_of(
        st.none(), st.booleans(), st.integers(-20, 20), st.text(characters, max_size=4)
    )
    bounds = st.lists(st.integers(-99, 99), min_size=2, max_size=2).map(sorted)
    leaves = st.one_of(
        st.sampled_from([{"type": kind} for kind in ("null", "boolean", "integer", "number")]),
        st.builds(
            lambda kind, low_high: {"type": kind, "minimum": low_high[0], "maximum": low_high[1]},
            st.sampled_from(["integer", "number"]),
            bounds,
        ),
        st.integers(0, 4).map(lambda n: {"type": "string", "maxLength": n}),
        st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
        st.lists(values, min_size=1, max_size=3).map(lambda given: {"enum": given}),
        values.map(lambda given: {"const": given}),
    )
    return st.recursive(leaves, lambda inner: combined(inner, characters), max_leaves=6)


def combined(inner: st.SearchStrategy[Any], characters: str) -> st.SearchStrategy[Any]:
    def make_object(properties: dict[str, Any], needed: int) -> dict[str, Any]:
        required = sorted(properties)[:needed]
        closed = {"type": "object", "additionalProperties": False}
        return {**closed, "properties": properties, "required": required}

    def make_array(items: Any, least: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}

    names = st.text(characters, min_size=1, max_size=3)
    return st.one_of(
        st.builds(make_object, st.dictionaries(names, inner, max_size=3), st.integers(0, 3)),
        st.builds(make_array, inner, st.integers(0, 2), st.integers(0, 1)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "characters"), [("policy", 'ab"\\ {0\n'), ("byte_policy", 'abé"\\ {0\n')]
)
def test_every_completion_that_ended_by_itself_is_json_of_its_schema(tokens, characters, request):
    policy, ended = request.getfixturevalue(tokens), [0, 0]

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(st.lists(schemas_of(characters), min_size=8, max_size=8), st.integers(0, 2**32))
    def check(schemas: list[dict[str, Any]], seed: int) -> None:
        asked = requests(policy, schemas, length=40, seed=seed)
        for schema, completion in zip(schemas, sampled(policy, asked), strict=True):
            ended[completion.finish == "stop"] += 1
            if completion.finish == "stop":
                Draft202012Validator(schema).validate(json.loads(words(policy, completion)))

    check()
    assert ended[1] > ended[0], "few completions ended, so little was shown"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "settings_",
    [{}, {"temperature": 0.0}, {"temperature": 1.7, "top_p": 0.8}, {"top_k": 2}, {"min_p": 0.2}],
    ids=str,
)
def test_tokens_and_probabilities_are_those_of_the_allowed_ones_by_hand(policy, settings_):
    """Of a few words, for which one can say which characters may follow; the log-probs are the trainer's."""
    values = ["abc", "abd", "x", "", 'q"', 10, 105, -3, True, None]
    texts = [json.dumps(value) for value in values]
    asked = requests(policy, [{"enum": values}] * 20, length=12)
    completions = sampled(policy, asked, **settings_)
    params = SamplingConfig(**settings_).params()
    for query, completion in zip(asked, completions, strict=True):
        prefix, least = list(query.prefix), 1.0
        assert words(policy, completion) in texts
        for t, token in enumerate(completion.token_ids):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([prefix])).logits[0, -1]
            whole = torch.softmax(logits / (params.temperature or 1.0), dim=-1)
            so_far = policy.decode(completion.token_ids[:t])
            longer = [text[t] for text in texts if text.startswith(so_far) and len(text) > t]
            allowed = set(policy.tokenizer.convert_tokens_to_ids(longer))
            allowed |= {*policy.end_ids} if so_far in texts else set()
            left = {i: float(whole[i]) / sum(float(whole[j]) for j in allowed) for i in allowed}
            kept = narrowed(left, params)
            least = min(least, sum(float(whole[i]) for i in kept))
            if params.temperature == 0:
                assert token == max(left, key=left.__getitem__)
            else:
                assert token == inverse(kept, query.uniforms[t])
            assert completion.logprobs[t] == pytest.approx(math.log(float(whole[token])), abs=1e-9)
            prefix.append(token)
        assert completion.kept_mass == pytest.approx(least, rel=1e-9)


def narrowed(left: dict[int, float], params: SamplingParams) -> dict[int, float]:
    """What top-k, min-p and top-p leave of a distribution."""
    order = sorted(left, key=lambda i: -left[i])
    kept = set(order[: params.top_k] if params.top_k else order)
    kept &= {i for i in order if left[i] >= params.min_p * left[order[0]]}
    before = 0.0
    for i in order:
        if before >= params.top_p:
            kept.discard(i)
        before += left[i]
    return {i: left[i] for i in sorted(kept)}


def inverse(kept: dict[int, float], uniform: float) -> int:
    """The first token whose cumulative probability exceeds the uniform number."""
    total, reached = sum(kept.values()), 0.0
    for token, share in kept.items():
        reached += share
        if reached > uniform * total:
            return token
    return token


def test_between_the_parts_of_json_there_is_little_space(policy):
    """Nothing, a space, or a line break with an indentation: a policy that likes whitespace has no end otherwise."""
    schema = {"type": "array", "items": {"enum": [1]}, "minItems": 2, "maxItems": 2}
    texts = {
        words(policy, completion)
        for completion in sampled(policy, requests(policy, [schema] * 60, length=60))
        if completion.finish == "stop"
    }
    assert len(texts) > 5
    for text in texts:
        parts = re.split(r"[\[\],1]", text)
        assert all(re.fullmatch(r" ?|\n {0,40}", part) for part in parts)


def test_equal_numbers_give_equal_tokens_whatever_else_is_asked(policy):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    alone = sampled(policy, requests(policy, [schema] * 3, length=30))
    more = [schema, schema, schema, None, {"enum": [1]}]
    again = sampled(policy, requests(policy, more, length=30))
    assert [c.token_ids for c in again[:3]] == [c.token_ids for c in alone]
    assert len({c.token_ids for c in alone}) == 3
    few_rows = sampled(policy, requests(policy, [schema] * 3, length=30), max_rows=2)
    assert [c.token_ids for c in few_rows] == [c.token_ids for c in alone]


def test_requests_without_a_schema_are_unchanged_to_the_bit(policy):
    """Beside others that have one or not, and are as long: batches of another shape are rounded otherwise."""
    free = requests(policy, [None] * 6, length=12)
    text = {"type": "string", "minLength": 30}
    held = requests(policy, [text] * 6, length=12, seed=2)
    held = [replace(query, prefix=(*query.prefix, 4 + n)) for n, query in enumerate(held)]
    mixed = [query for pair in zip(free, held, strict=True) for query in pair]
    for limits in ({}, {"temperature": 0.7, "top_p": 0.9}):
        plain = sampled(policy, [replace(query, json_schema=None) for query in mixed], **limits)
        found = sampled(policy, mixed, **limits)
        assert [c.finish for c in plain[1::2]] == ["length"] * 6, "choose another seed"
        assert found[::2] == plain[::2]
        pairs = zip(found[1::2], plain[1::2], strict=True)
        assert all(ours.token_ids != theirs.token_ids for ours, theirs in pairs)
    # Where they share what is computed, and end earlier, the tokens are the same.
    beside = requests(policy, [{"enum": ["abc", 12]}] * 6, length=12, seed=1)
    alone, among = sampled(policy, free), sampled(policy, [*beside, *free])[6:]
    assert [c.token_ids for c in among] == [c.token_ids for c in alone]
    for ours, theirs in zip(among, alone, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-12)
        assert ours.kept_mass == 1.0


def test_tokens_of_almost_no_probability_are_drawn_where_no_other_may_be():
    """In float32, where their share of the whole is 0; and a token that may not be is never drawn."""
    logits_BV = torch.full((3, 50), -300.0)
    logits_BV[:, 7] = 300.0
    allowed_BV = torch.zeros(3, 50, dtype=torch.bool)
    allowed_BV[:, 20:24] = True
    uniform_B = torch.tensor([0.0, 0.6, 1 - 1e-9], dtype=torch.float64)
    for limits in ({}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.5}):
        params = SamplingParams(**limits)
        token_B, logprob_B, kept_B = draw_allowed(logits_BV, allowed_BV, uniform_B, params)
        assert token_B[:2].tolist() == [20, 22]
        assert 20 <= token_B[2] <= 23
        assert logprob_B.tolist() == [-600.0] * 3
        assert kept_B.tolist() == [0.0] * 3
    everything, params = torch.ones(3, 50, dtype=torch.bool), SamplingParams(top_p=0.9)
    own = draw_allowed(logits_BV / 100, everything, uniform_B, params)
    plain = draw(logits_BV / 100, torch.arange(3), uniform_B, params)
    assert own[0].tolist() == plain[0].tolist()
    for ours, theirs in zip(own[1:], plain[1:], strict=True):
        torch.testing.assert_close(ours, theirs)


# Who can, and what cannot be done


def results(policy: Policy, asked: Sequence[Request]) -> list[Any]:
    """Return completions of requests that arrive together, or the errors in their places."""

    async def together() -> list[Any]:
        sampler = builtin_sampler(policy, NO_SCHEMA)
        return await asyncio.gather(*map(sampler.generate, asked), return_exceptions=True)

    return asyncio.run(together())


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nope"}, "Invalid type: nope"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex"),
        ({"enum": []}, "Unsatisfiable"),
        ({"enum": ["é"]}, "doesn't satisfy the grammar"),  # the tokenizer has no such character
    ],
)
def test_a_schema_that_cannot_be_followed_fails_alone(policy, schema, reason):
    asked = requests(policy, [None, schema, {"enum": ["a"]}, schema], length=9)
    free, refused, held, also_refused = results(policy, asked)
    assert [type(refused), type(also_refused)] == [UnsupportedSchemaError] * 2
    assert str(refused).startswith("the JSON schema cannot be followed: ")
    assert reason in str(refused)
    assert free.token_ids == sampled(policy, asked[:1])[0].token_ids
    assert words(policy, held) == '"a"'
    assert [type(result) for result in results(policy, asked[1:2])] == [UnsupportedSchemaError]


def test_without_the_library_the_error_names_the_extra(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    refused, free = results(policy, requests(policy, [{"enum": [1]}, None], length=5))
    assert isinstance(free, Completion)
    assert isinstance(refused, MissingExtraError)
    assert str(refused).startswith("a completion that has to be JSON needs the extra 'serve'")


def test_a_tokenizer_that_the_library_does_not_know_is_an_error_of_the_configuration():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    policy = Policy(tiny_model(), tokenizer)
    (refused,) = results(policy, requests(policy, [{"enum": [1]}], length=5))
    assert isinstance(refused, ConfigError)
    assert "its tokenizer is of a kind that llguidance does not know" in str(refused)


def test_a_request_of_no_tokens_and_one_that_is_cut_off_are_ordinary(policy):
    no_tokens = requests(policy, [{"enum": [1]}], length=0)
    nothing, cut = results(policy, [*no_tokens, *requests(policy, [{"const": "abcdef"}], length=4)])
    assert nothing == Completion()
    assert (words(policy, cut), cut.finish) == ('"abc', "length")


def test_a_completion_ends_with_any_of_the_models_end_tokens(policy):
    several = Policy(tiny_model(vocab=130), tiny_tokenizer())
    several.end_ids = (3, several.tokenizer.convert_tokens_to_ids("~"))
    found = sampled(several, requests(several, [{"enum": [7]}] * 40, length=4))
    assert {policy.decode(completion.token_ids) for completion in found} == {"7", "7~"}
    assert {completion.finish for completion in found} == {"stop"}


def test_a_sampler_follows_schemas_only_if_it_says_so(policy):
    class Old:
        """As samplers were before there were schemas."""

        uses_uniforms = True

    assert protocol.follows_schemas(builtin_sampler(policy, NO_SCHEMA))
    assert not protocol.follows_schemas(Old())  # type: ignore[arg-type]
    masked = MaskedPolicy(masked_model(), masked_tokenizer())
    assert not protocol.follows_schemas(builtin_sampler(masked, NO_SCHEMA))
    assert issubclass(UnsupportedSchemaError, GrpoError)
