"""Count the operations, and the calls that make the host wait, of a decode step and of an update.

    python examples/benchmarks/operations.py [--layers 24] [--vocabulary 152000]

A GPU waits for the host to launch one operation after the other (see `counting`), which is what a
decode step of a small model takes most of its time for. The model is a Qwen2 with tiny matrices,
random weights in bfloat16 and a LoRA adapter on every linear layer, since the number of operations
does not depend on the size of the matrices. It is computed as on a GPU of 80 GB, once with the
setting trainer.stacked_layers=false and once with true, the default. It needs no GPU, and
does not measure one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from counting import Counted, counting
from tokenizers import Tokenizer, models
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import SamplingConfig
from grpo_core.config.sizes import with_defaults
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.tuning import gpu_tuning
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Request
from grpo_core.protocol.types import Segment
from grpo_core.train.update.sums import Sums
from grpo_core.train.update.updater import Updater

PROMPTS, GROUP, PROMPT = 4, 4, 12
WEIGHTS = 500_000_000
"""Weights of the model that the tiny one stands for."""
TUNING = replace(gpu_tuning(80 * 2**30, weights=WEIGHTS), operations_per_byte=None)
"""That of a GPU, but these matrices are so narrow that reading keys and values would cost most."""
PAIR_COST = 1.2e-4
"""Cost of a pair of nodes in a model of `WEIGHTS` weights (see `tree.pair_cost`)."""
DECODED = 512
"""Vocabulary while decoding; the number of operations does not depend on it."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of a few words."""
    words = {"<pad>": 0, "<end>": 1, "<unk>": 2, "a": 3}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        eos_token="<end>",
        pad_token="<pad>",
    )


def plain_model(layers: int, vocabulary: int) -> Any:
    """Return a Qwen2 with tiny matrices of random weights in bfloat16."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16).eval()


def settings() -> RunConfig:
    """Return the settings of a run with an adapter and a KL."""
    config = build_config([{"environment": "prompts", "kl": {"beta": 0.04}}])
    return with_defaults(config, 0)[0]


def make_policy(
    layers: int, vocabulary: int, *, stacked: bool, logits_bytes: int | None = None
) -> Policy:
    """Return a policy with an adapter on every linear layer.

    Args:
        layers: layers of the model.
        vocabulary: tokens of its vocabulary.
        stacked: as trainer.stacked_layers.
        logits_bytes: most bytes for logits at a time; that of a GPU if None.
    """
    config = settings()
    model = add_adapter(plain_model(layers, vocabulary), config.lora, ModelSource("tiny", "tiny"))
    policy = Policy(model, tokenizer(), logits_bytes=logits_bytes, tuning=TUNING, stacked=stacked)
    policy.end_ids = ()  # so that every completion has its full length
    policy.pair_cost = PAIR_COST
    return policy


@contextmanager
def counting_in(policy: Policy) -> Iterator[Counted]:
    """Count what the policy's thread computes inside the context."""
    context = counting()
    counted = policy.thread.submit(context.__enter__).result()
    try:
        yield counted
    finally:
        policy.thread.submit(lambda: context.__exit__(None, None, None)).result()


def count_decoding(policy: Policy, limits: SamplingConfig, tokens: int) -> Counted:
    """Count a whole generation of `tokens` tokens."""
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(4, 500) for _ in range(PROMPT)) for _ in range(PROMPTS)]
    requests = [
        Request(prompt, tuple(rng.random() for _ in range(tokens)))
        for prompt in prompts
        for _ in range(GROUP)
    ]

    async def generate() -> None:
        engine = Engine(policy, limits)
        await asyncio.gather(*map(engine.generate, requests))

    with counting_in(policy) as counted:
        asyncio.run(generate())
    return counted


def decode_step(policy: Policy) -> tuple[float, float]:
    """Return the operations and waits of a decode step, as a mean over 32 steps."""
    limits = SamplingConfig(prepack=False)  # on a GPU no layout of the weights is known as faster
    longer, shorter = (count_decoding(policy, limits, tokens) for tokens in (48, 16))
    operations, waits = longer - shorter
    return operations / 32, waits / 32


def plain_step(layers: int) -> int:
    """Return the operations of a forward pass of transformers for one token, with a cache.

    The model has no adapter.
    """
    model = plain_model(layers, DECODED)
    cache = DynamicCache(config=model.config)
    tokens = torch.full((PROMPTS * GROUP, PROMPT), 3)
    with torch.no_grad():
        model(input_ids=tokens, cache=cache, use_cache=True)
        with counting() as counted:
            model(input_ids=tokens[:, :1], cache=cache, use_cache=True)
    return counted.operations.total()


def rows(vocabulary: int, tokens: int) -> list[Row]:
    """Return the rows of a prompt with 8 completions, `tokens` tokens in all."""
    rng = random.Random(0)
    prompt = tuple(rng.randrange(4, vocabulary) for _ in range(tokens // 4))
    each = (tokens - len(prompt)) // 8
    return [
        Row(
            Segment(
                prompt,
                tuple(rng.randrange(4, vocabulary) for _ in range(each)),
                (-5.0,) * each,
                (1,) * each,
            ),
            1.0 if i % 2 else -1.0,
            1 / each,
        )
        for i in range(8)
    ]


def micro_batch(policy: Policy, config: RunConfig, tokens: int) -> dict[str, tuple[int, int]]:
    """Return the operations and waits of a micro-batch of the update, by part."""
    updater = Updater(policy, config, steps=1)
    counts: dict[str, tuple[int, int]] = {}

    def part(name: str, compute: Callable[[], Any]) -> Any:
        with counting() as counted:
            result = compute()
        counts[name] = counted.operations.total(), counted.waits.total()
        return result

    (micro,) = part(
        "tensors",
        lambda: list(
            policy.micro_batches(
                rows(policy.model.config.vocab_size, tokens),
                max_tokens=tokens,
                dtype=torch.float32,
            )
        ),
    )
    reference = part("reference", lambda: policy.reference_states(micro))
    sums = Sums()
    loss, _ = part("forward", lambda: updater.loss(micro, None, reference, sums))
    part("backward", loss.backward)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=152_000)
    parser.add_argument("--tokens", type=int, default=2048, help="of the micro-batch")
    options = parser.parse_args()
    plain = plain_step(options.layers)
    print(f"forward pass of transformers for one token, no adapter: {plain:,} operations")
    for stacked in (False, True):
        print(f"trainer.stacked_layers={str(stacked).lower()}:")
        operations, waits = decode_step(make_policy(options.layers, DECODED, stacked=stacked))
        times = operations / plain
        print(f"  decode step: {operations:,.0f} operations ({times:.2f} times), {waits:.1f} waits")
        policy = make_policy(options.layers, options.vocabulary, stacked=stacked)
        counts = micro_batch(policy, settings(), options.tokens)
        print(f"  micro-batch of {options.tokens:,} tokens, vocabulary {options.vocabulary:,}:")
        for name, (operations, waits) in [*counts.items(), ("sum", total(counts))]:
            print(f"    {name}: {operations:,} operations, {waits} waits")


def total(counts: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the sums of the operations and of the waits."""
    operations, waits = zip(*counts.values(), strict=True)
    return sum(operations), sum(waits)


if __name__ == "__main__":
    main()
