"""Count the operations, and the calls that make the host wait, of a decode step and of an update.

    python examples/benchmarks/operations.py [--layers 24] [--vocabulary 152000]

An operation is one that PyTorch's dispatcher hands to a device: on a GPU at least one kernel that
the host has to launch, which is what a decode step of a small model waits for. Views are not
counted. The model is a Qwen2 with tiny matrices, random weights in bfloat16 and a LoRA adapter on
every linear layer, since the number of operations does not depend on the size of the matrices.

It needs no GPU, and does not measure one. Without one, calls that would make the host wait are
counted by their names (see `Counted`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import SamplingConfig
from grpo_core.config.sizes import with_defaults
from grpo_core.protocol.sampler import Request
from grpo_core.protocol.types import Rollout
from grpo_core.train.compute.batch import Row
from grpo_core.train.compute.tuning import GPU
from grpo_core.train.models.adapter import add_adapter
from grpo_core.train.models.load import ModelSource
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.engine import Engine
from grpo_core.train.update.updater import Sums, Updater

PROMPTS, GROUP, PROMPT = 4, 4, 12
TUNING = replace(GPU, operations_per_byte=None)
"""That of a GPU, but these matrices are so narrow that reading keys and values would cost most."""
LOGITS_MB = 1024
"""Memory for logits on a GPU of 80 GB (see `config.devices`)."""
PAIR_COST = 1.2e-4
"""Cost of a pair of nodes in a model of 0.5 billion weights (see `tree.pair_cost`)."""
VIEWS = {
    f"aten::{name}"
    for name in [
        "detach",
        "detach_",
        "alias",
        "_unsafe_view",
        "lift_fresh",
        "empty",
        "new_empty",
        "empty_like",
    ]
}
"""Operations that compute nothing and are not marked as views."""
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique", "equal")
"""Operations whose result the host waits for, by the start of their names."""


class Counted(TorchDispatchMode):
    """Count operations, and what would make the host wait if the tensors were on a GPU.

    The host waits where a number or a shape comes from the device (`item`, `bool`, `nonzero`,
    `unique`, `equal`, an index of booleans, `tolist`, `cpu`), and where a list of Python becomes a
    tensor of the device or an index, since the copy is not asynchronous, unless the code asks for
    it (`non_blocking`, from pinned memory).
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled() and _is_composite(function):
            with self:  # in this mode PyTorch shows the whole instead of its parts
                return function.decompose(*args, **(kwargs or {}))
        name = function.name().partition(".")[0]
        if not function.is_view and name not in VIEWS:
            self.operations[name] += 1
        bare = name.removeprefix("aten::")
        if bare.startswith(WAITS):
            self.waits[bare] += 1
        elif bare.startswith("index") and isinstance(args[1], Sequence):
            booleans = (torch.bool, torch.uint8)
            self.waits["index of booleans"] += any(
                index is not None and index.dtype in booleans for index in args[1]
            )
        return function(*args, **(kwargs or {}))

    def __sub__(self, other: Counted) -> tuple[int, int]:
        """Return by how many operations and waits this count is larger."""
        return (
            self.operations.total() - other.operations.total(),
            self.waits.total() - other.waits.total(),
        )


def _is_composite(function: Any) -> bool:
    """Return True if an operation is only a sequence of others."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(
            function.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        )
    )


class _Functions(TorchFunctionMode):
    """Count calls that read from a device or copy to it, and are no operation on a CPU."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.tolist, Tensor.cpu, Tensor.numpy):
            self._waits[function.__name__] += 1
        elif function in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device"):
            self._waits["tensor of a list"] += 1
        elif function is Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            self._waits["index of a list"] += sum(isinstance(index, list) for index in indices)
        return function(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[Counted]:
    """Count what is computed inside the context, in this thread."""
    counted = Counted()
    with _Functions(counted.waits), counted:
        yield counted


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


def make_policy(layers: int, vocabulary: int) -> Policy:
    """Return a policy with an adapter on every linear layer."""
    config = settings()
    model = add_adapter(plain_model(layers, vocabulary), config.lora, ModelSource("tiny", "tiny"))
    policy = Policy(model, tokenizer(), logits_bytes=LOGITS_MB * 2**20, tuning=TUNING)
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


def decode_step(policy: Policy, limits: SamplingConfig) -> tuple[float, float]:
    """Return the operations and waits of a decode step, as a mean over 32 steps."""
    longer, shorter = (count_decoding(policy, limits, tokens) for tokens in (48, 16))
    operations, waits = longer - shorter
    return operations / 32, waits / 32


def plain_step(layers: int, vocabulary: int) -> int:
    """Return the operations of a forward pass of transformers for one token, with a cache."""
    model = plain_model(layers, vocabulary)
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
            Rollout(
                (),
                "length",
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
    reference = part("reference", lambda: policy.reference_logprobs(micro, temperature=1.0))
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
    plain = plain_step(options.layers, 512)
    print(f"forward pass of transformers for one token: {plain:,} operations")
    policy = make_policy(options.layers, 512)
    # As on a GPU, where no layout is known that is faster.
    operations, waits = decode_step(policy, SamplingConfig(prepack=False))
    print(
        f"decode step: {operations:,.0f} operations ({operations / plain:.2f} times), "
        f"{waits:.1f} waits"
    )
    policy = make_policy(options.layers, options.vocabulary)
    counts = micro_batch(policy, settings(), options.tokens)
    print(f"micro-batch of {options.tokens:,} tokens, vocabulary {options.vocabulary:,}:")
    for name, (operations, waits) in [*counts.items(), ("sum", _sum(counts))]:
        print(f"  {name}: {operations:,} operations, {waits} waits")


def _sum(counts: dict[str, tuple[int, int]]) -> tuple[int, int]:
    operations, waits = zip(*counts.values(), strict=True)
    return sum(operations), sum(waits)


if __name__ == "__main__":
    main()
