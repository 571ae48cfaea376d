"""Trainer and sampler give the log-probs of a plain forward pass, for every architecture of transformers, or refuse it."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import cache_utils

from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.kv import keeps_everything, open_cache
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.masked import MaskedPolicy
from grpo_core.engine.policy.ways import DecodingWay, Training
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Request
from grpo_core.protocol.types import Segment, TaskKey
from grpo_core.train.rollout.draws import Draws

from . import architectures
from .arrange import sampled
from .tiny import tiny_tokenizer
from .tiny_masked import masked_tokenizer

TOLERANCE = 1e-4  # nats, in float32
STATE_TOLERANCE = 1e-3
"""The same for layers that carry a state: they sum over a text in chunks, and token by token while
they decode, in float32 whatever the type of the weights, so these two orders round differently."""
SOME = [
    "llama", "mistral", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "exaone4", "mpt", "qwen3_5_text",
    "qwen3_next", "lfm2", "mamba", "qwen3_moe", "cohere2", "recurrent_gemma", "deepseek_v32",
]  # fmt: skip
"""Each of the ways to compute, and each architecture that was once wrong."""


def all_types() -> list[Any]:
    types = architectures.causal_types()
    if not hasattr(cache_utils, "DummyLayer"):  # before 5.23: some architectures came later
        assert set(SOME) - set(types) <= {"deepseek_v32"}
    else:
        assert set(SOME) <= set(types)
    return [t if t in SOME else pytest.param(t, marks=pytest.mark.heavy) for t in types]


def tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(8, 100) for _ in range(count))


def plain(model: Any, prefix: tuple[int, ...], completion: tuple[int, ...]) -> torch.Tensor:
    """The log-probs of a completion by a forward pass of its text alone, as anyone would compute them."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prefix, *completion]]), use_cache=False).logits
    logprobs = logits[0, len(prefix) - 1 : -1].float().log_softmax(dim=-1)
    return logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model_type", all_types())
def test_log_probs_are_those_of_a_plain_forward_pass_or_the_model_is_refused(model_type):
    """Windows of 8 tokens; prompts of 12 to 45 tokens, four with a common start; completions that end at
    different times; a second turn of each dialogue after tokens of the environment."""
    try:
        model, reference = (architectures.tiny_model(model_type) for _ in range(2))
    except Exception as error:
        if model_type in SOME:
            raise
        pytest.skip(f"it cannot be built: {error}")
    try:
        policy: Policy | None = Policy(model, tiny_tokenizer())
    except ConfigError as error:
        policy, refusal = None, str(error)
    if policy is None:
        assert "\n" not in refusal
        assert "use another model" in refusal
        return
    tolerance = STATE_TOLERANCE if _carries_a_state(model) else TOLERANCE
    rng = random.Random(1)
    start = tokens(rng, 10)
    prompts = [start + tokens(rng, count) for count in (9, 14, 22, 35)] + [tokens(rng, 12)]
    requests = [
        Request(
            prompt,
            Draws(TaskKey("t", "train", i), seed=0, step=1, attempt=g, turn=0).uniforms(4 + 4 * g),
        )
        for i, prompt in enumerate(prompts)
        for g in range(3)
    ]
    first = sampled(policy, requests, max_rows=8)
    replies = [tokens(rng, 5) for _ in requests]
    again = [
        replace(request, prefix=request.prefix + completion.token_ids + reply)
        for request, completion, reply in zip(requests, first, replies, strict=True)
    ]
    second = sampled(policy, again)
    for request, completion in zip(requests + again, first + second, strict=True):
        assert len(completion.token_ids) > 0
        expected = plain(reference, request.prefix, completion.token_ids)
        assert torch.tensor(completion.logprobs) == pytest.approx(expected, abs=tolerance)
    rows = [
        Row(_segment(request.prefix, a.token_ids + reply + b.token_ids), 1.0, 1.0)
        for request, a, reply, b in zip(requests, first, replies, second, strict=True)
    ]
    micros = list(policy.micro_batches(rows, max_tokens=300, dtype=torch.float32))
    assert sum(len(micro.rows) for micro in micros) == len(rows)
    for micro in micros:
        with torch.no_grad():
            logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
        for row, logprob_T in zip(micro.rows, logprob_BT, strict=True):
            expected = plain(reference, row.segment.prompt_ids, row.segment.token_ids)
            assert logprob_T[: len(expected)] == pytest.approx(expected, abs=tolerance)


def _carries_a_state(model: Any) -> bool:
    try:
        return not keeps_everything(open_cache(model))
    except AttributeError:  # blt has no such cache
        return False


def _segment(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Segment:
    count = len(completion)
    return Segment(prompt, completion, (0.0,) * count, (1,) * count)


@pytest.mark.slow
def test_the_ways_are_the_fastest_that_are_right():
    ways = {
        "llama": (Training.TREES, DecodingWay.TREES),
        "gemma3_text": (Training.TREES, DecodingWay.TREES),
        "mpt": (Training.PADDED, DecodingWay.PADDED),
        "mamba": (Training.PADDED, DecodingWay.EQUAL),
        "roberta": (Training.ALONE, DecodingWay.UNCACHED),
    }
    for model_type, expected in ways.items():
        policy = Policy(architectures.tiny_model(model_type), tiny_tokenizer())
        assert (policy.training, policy.sampling) == expected, model_type


@pytest.mark.parametrize("model_type", architectures.masked_types()[:6])
def test_masked_models_give_the_log_probs_of_a_plain_forward_pass(model_type):
    policy = MaskedPolicy(architectures.tiny_masked(model_type), masked_tokenizer())
    reference = architectures.tiny_masked(model_type)
    rng = random.Random(1)
    rows = []
    for length, gaps in ((9, 3), (17, 5), (30, 2)):
        prompt = list(tokens(rng, length + gaps))
        for place in rng.sample(range(len(prompt)), gaps):
            prompt[place] = policy.mask_id
        rows += [Row(_segment(tuple(prompt), tokens(rng, gaps)), 1.0, 1.0) for _ in range(2)]
    for micro in policy.micro_batches(rows, max_tokens=100, dtype=torch.float32):
        with torch.no_grad():
            logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
        for row, logprob_T in zip(micro.rows, logprob_BT, strict=True):
            prompt_ids = torch.tensor([row.segment.prompt_ids])
            with torch.no_grad():
                logits_NV = reference(input_ids=prompt_ids).logits[0].float().log_softmax(dim=-1)
            gaps = policy.slots(row.segment.prompt_ids)
            expected = [
                float(logits_NV[gap, token])
                for gap, token in zip(gaps, row.segment.token_ids, strict=True)
            ]
            assert logprob_T[: len(expected)].tolist() == pytest.approx(expected, abs=TOLERANCE)
