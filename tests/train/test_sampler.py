"""The generation engine against `model.generate`, the trainer's log-probs and the distribution it must draw from."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import DynamicLayer

from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.compute import recorded
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.kv import GrowingLayer, bytes_per_token
from grpo_core.engine.compute.prefix import PrefixLines
from grpo_core.engine.compute.prepack import packed_bytes
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.drawing import draw
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Completion, Request, SamplingParams
from grpo_core.protocol.types import Message, Segment, Task, TaskKey
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.draws import Draws

from . import architectures
from .arrange import CPU, micro_batches, rolled_out, run_config, tiny_policy
from .arrange import sampled as sample
from .tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "unpacked"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny_policy(shared_prefix=request.param)


def prompts(count: int, *, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    common = tuple(rng.randrange(4, 100) for _ in range(9))
    return [
        common + tuple(rng.randrange(4, 100) for _ in range(rng.randint(1, 7)))
        for _ in range(count)
    ]


def requests_for(prefixes: list[tuple[int, ...]], count: int, *, length: int = 12) -> list[Request]:
    return [
        Request(
            prefix,
            Draws(TaskKey("t", "train", i), seed=0, step=1, attempt=g, turn=0).uniforms(length),
        )
        for i, prefix in enumerate(prefixes)
        for g in range(count)
    ]


@contextmanager
def watched(policy: Policy, look: Callable[[dict[str, Any]], Any]) -> Iterator[list[Any]]:
    """Yield a list that gets what `look` sees in the arguments of each forward pass."""
    seen: list[Any] = []
    hook = policy.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(look(kwargs)), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()


def shape(kwargs: dict[str, Any]) -> tuple[int, ...]:
    return tuple(kwargs["input_ids"].shape)


def numel(kwargs: dict[str, Any]) -> int:
    return int(kwargs["input_ids"].numel())


def decoded(kwargs: dict[str, Any]) -> int:
    """Return the places for lines of a pass that decodes; 0 for prompts."""
    cache = kwargs.get("cache") or kwargs["past_key_values"]
    return numel(kwargs) if cache.get_seq_length() else 0


def assert_same(found: list[Completion], expected: list[Completion], *, near: float = 1e-9) -> None:
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=near)
        assert ours.finish == theirs.finish


def randomize(model: torch.nn.Module, *kinds: str) -> None:
    """Give an adapter, which begins as nothing, and what else is named random numbers."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(kind in name for kind in ("lora_B", *kinds)):
                parameter.normal_(std=0.5, generator=generator)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Four attempts at each of five prompts, which end after 1 to 30 tokens."""
    return requests_for(prompts(5), 4, length=30)


@pytest.fixture(scope="module")
def together(policy: Policy, requests: list[Request]) -> list[Completion]:
    """What all of them together give."""
    completions = sample(policy, requests)
    assert len({len(c.token_ids) for c in completions}) > 2, "no row finished early"
    return completions


def test_greedy_tokens_equal_those_of_generate(policy):
    requests = requests_for(prompts(4), 2, length=24)
    found = sample(policy, requests, temperature=0.0)
    for request, *completions in zip(requests[::2], found[::2], found[1::2], strict=True):
        ids = torch.tensor([request.prefix])
        expected = policy.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=policy.pad_id,
            eos_token_id=list(policy.end_ids),
        )
        for completion in completions:
            assert list(completion.token_ids) == expected[0, len(request.prefix) :].tolist()


def test_a_request_alone_gets_what_it_gets_among_others_that_end_before_it(
    policy, requests, together
):
    for place in range(1, 20, 5):
        assert_same(sample(policy, [requests[place]]), [together[place]])


@pytest.mark.parametrize("room", [4, 256])
def test_a_fixed_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """What a GPU records and replays, computed step by step: rows end, and the room is used up."""
    monkeypatch.setattr(recorded, "ROOM", room)
    policy = tiny_policy(shared_prefix=True)
    long, short = (requests_for(prompts(5), 2, length=length) for length in (40, 15))
    requests = [*long, *short]
    plain = sample(policy, requests)
    assert len({len(completion.token_ids) for completion in plain}) > 2
    with watched(policy, shape) as widths:
        fixed = sample(policy, requests, cuda_graphs=True)
    assert (20, 1) in widths  # each row has a cache of its own
    assert any(rows <= 10 for rows, new in widths if new == 1)  # and those that end leave
    assert_same(fixed, plain, near=1e-6)


def test_completions_are_computed_once_until_they_part(policy):
    """The tokens of each forward pass: two for two prompts as long as all say the same, more when they part."""
    requests = requests_for(prompts(2), 8)
    with watched(policy, numel) as while_equal:
        same = sample(policy, requests, temperature=0.0)
    with watched(policy, numel) as when_parted:
        different = sample(policy, requests, temperature=2.0)
    assert len({tuple(c.token_ids) for c in same}) == 2
    assert set(while_equal[1:]) in ({2}, {1, 2})
    both = zip(requests, different, strict=True)
    assert len({(request.prefix, *c.token_ids[:2]) for request, c in both}) > 8
    assert max(when_parted[1:]) > 8


def test_prompts_are_computed_once(policy):
    """Two prompts of 9 common tokens: 9 and what is left of each; padded copies where there is no mask."""
    first, second = prompts(2)
    with watched(policy, numel) as counts:
        sample(policy, requests_for([first, second], 8, length=1))
    rest = [len(first) - 9, len(second) - 9]
    assert counts == ([9 + sum(rest)] if policy.shared_prefix else [2 * (9 + max(rest))])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("trees", ["one", "by prompt", "alone", "the best at each token"])
@pytest.mark.parametrize("max_rows", [20, 7])
def test_how_lines_stand_in_trees_changes_nothing(
    policy, requests, together, monkeypatch, trees, max_rows
):
    monkeypatch.setattr("grpo_core.engine.compute.prefix.PAYS", 1e9 if trees == "one" else 0)
    costs = {"by prompt": lambda _, count, *__: count, "alone": lambda _, __, width, ___: width}
    if trees in costs:
        monkeypatch.setattr(PrefixLines, "_cost", costs[trees])
    with watched(policy, shape) as shapes:
        found = sample(policy, requests, max_rows=max_rows)
    if policy.shared_prefix and max_rows == 20:
        places = [shape for shape in shapes if shape[1] <= 20]  # the others are prompts
        most = {"one": (1, 20), "by prompt": (5, 4), "alone": (20, 1)}.get(trees)
        assert most is None or most in places
    assert_same(found, together)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("most", [0, 2.5, 1000])
@pytest.mark.parametrize("max_rows", [20, 7])
def test_how_prompts_are_computed_changes_nothing(
    policy, requests, together, monkeypatch, max_rows, most
):
    monkeypatch.setattr("grpo_core.engine.compute.prefix.MOST_NODES", most)
    assert_same(sample(policy, requests, max_rows=max_rows), together)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("max_rows", [3, 1, 8, 19])
def test_how_many_rows_are_decoded_at_a_time_changes_nothing(policy, requests, together, max_rows):
    assert_same(sample(policy, requests, max_rows=max_rows), together)


BFLOAT16 = packed_bytes(tiny_model(dtype=torch.bfloat16)) > 0
"""Whether this processor computes with it; without, weights stay as they are."""


@pytest.mark.parametrize(
    ("dtype", "near"),
    [
        (torch.float32, 1e-4),
        pytest.param(
            torch.bfloat16, 0.1, marks=pytest.mark.skipif(not BFLOAT16, reason="needs AVX-512")
        ),
    ],
)
def test_weights_laid_out_for_decoding_compute_the_same(dtype, near, monkeypatch):
    policy = Policy(tiny_model(dtype=dtype), tiny_tokenizer())
    ids, narrow = torch.tensor([[5, 6, 7, 8]] * 3), []
    with torch.inference_mode():
        expected = policy.model(ids).logits
        with policy.prepacked(3), monkeypatch.context() as patched:
            linear = torch.nn.functional.linear
            patched.setattr(
                torch.nn.functional,
                "linear",
                lambda x, w, b: narrow.append(min(w.shape)) or linear(x, w, b),
            )
            torch.testing.assert_close(policy.model(ids).logits, expected, atol=near, rtol=near)
        assert torch.equal(policy.model(ids).logits, expected)
    assert narrow == [16] * 4  # keys and values of two layers
    assert not any("forward" in vars(module) for module in policy.model.modules())


class WeightCasts(TorchDispatchMode):
    """Counts how often each matrix of a model is cast."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.places = {p.data_ptr() for p in model.parameters() if p.ndim == 2}
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::to", "aten::_to_copy"):
            self.count += args[0].data_ptr() in self.places
        return func(*args, **(kwargs or {}))


def cast_policy(*, biased: bool = False) -> Policy:
    """Weights in float32, products in bfloat16, as all weights are trained; the head is tied to the embedding."""
    model: Any = tiny_model(dtype=torch.float32)
    if biased:
        for layer in (m for m in model.modules() if type(m) is torch.nn.Linear):
            layer.bias = torch.nn.Parameter(torch.linspace(-1, 1, layer.out_features))
    return Policy(model, tiny_tokenizer(), compute_dtype=torch.bfloat16)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [None, 3], ids=["cast", "cast and laid out"])
def test_weights_that_are_cast_for_decoding_are_cast_once_and_compute_the_same(rows, biased):
    policy = cast_policy(biased=biased)
    ids = torch.tensor([[5, 6, 7, 8]] * 3)
    sizes = [m.weight.numel() for m in policy.model.modules() if type(m) is torch.nn.Linear]
    with torch.inference_mode(), policy.autocast():
        with WeightCasts(policy.model) as every_time:
            expected = [policy.model(ids).logits for _ in range(3)]
        with WeightCasts(policy.model) as once, policy.prepacked(rows):
            found = [policy.model(ids).logits for _ in range(3)]
        again = policy.model(ids).logits
    assert (every_time.count, once.count) == (3 * len(sizes), len(sizes))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype == torch.bfloat16
        if rows is None:
            assert torch.equal(ours, theirs)
        assert apart(ours.float(), theirs.float()) < 0.15
    assert torch.equal(again, expected[0])
    assert policy.decoding_bytes(copied=True, packed=True) == 2 * sum(sizes)
    assert policy.decoding_bytes(copied=False, packed=False) == 2 * max(sizes)


def test_a_layer_that_a_model_computes_without_autocast_is_not_cast():
    policy, inputs = cast_policy(), torch.linspace(-1, 1, 32)[None]
    layer = policy.model.model.layers[0].mlp.up_proj
    expected = layer(inputs)
    with torch.inference_mode(), policy.autocast(), policy.prepacked(None):
        assert layer(inputs).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(layer(inputs), expected)


def test_a_batch_of_requests_casts_each_weight_once_and_samples_the_same(monkeypatch):
    policy = cast_policy()
    requests = requests_for(prompts(3), 1)  # too few to be laid out
    linears = sum(type(m) is torch.nn.Linear for m in policy.model.modules())
    compute, counts = Engine._compute, []

    def counted(engine: Engine, batch: Any) -> None:
        with WeightCasts(policy.model) as casts:
            compute(engine, batch)
        counts.append(casts.count)

    monkeypatch.setattr(Engine, "_compute", counted)
    found, expected = (sample(policy, requests, prepack=prepack) for prepack in (True, False))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.token_ids, ours.logprobs) == (theirs.token_ids, theirs.logprobs)
    assert counts[0] == linears < counts[1]


@pytest.mark.parametrize("stacked", [False, True])
def test_an_adapter_beside_bfloat16_weights_is_computed_with_them_and_as_it_is_now(stacked: bool):
    base = tiny_model(dtype=torch.bfloat16)
    model = add_adapter(base, run_config().lora, ModelSource("tiny", "tiny"))
    policy = Policy(model, tiny_tokenizer(), stacked=stacked)
    ids, calls = torch.tensor([[5, 6, 7, 8]] * 3), []
    for name, module in model.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))

    def logits(*, packed: bool) -> tuple[torch.Tensor, int]:
        """And how many products peft's own layers made."""
        calls.clear()
        with (
            torch.inference_mode(),
            policy.autocast(),
            policy.prepacked(3) if packed else nullcontext(),
        ):
            return model(ids).logits.float(), len(calls)

    before, _ = logits(packed=True)
    randomize(model)
    (expected, own), (found, narrow) = logits(packed=False), logits(packed=True)
    # Seven layers in each of two blocks; keys and values are too narrow to be laid out.
    by_peft = (14, 4 if BFLOAT16 else 14)
    assert (own, narrow) == ((0, 0) if stacked else by_peft)
    assert apart(found, expected) < 0.15 < 0.5 < apart(before, expected)
    for first, second in (
        (policy.prepacked(3), model.disable_adapter()),
        (model.disable_adapter(), policy.prepacked(3)),
    ):
        with torch.inference_mode(), first, second:
            assert apart(model(ids).logits.float(), before) < 0.15
    with torch.inference_mode():  # as anybody may call it, also without autocast
        assert apart(model(ids).logits.float(), expected) < 0.15


class PackedProducts(TorchDispatchMode):
    """Counts products with packed weights."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name == "mkldnn::_linear_pointwise"
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not BFLOAT16, reason="needs AVX-512")
@pytest.mark.parametrize("biased", [False, True])
def test_layers_with_the_same_input_are_laid_out_as_one(biased):
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    plain = architectures.tiny_model("llama", attention_bias=biased, **sizes).to(torch.bfloat16)
    model = add_adapter(plain, run_config().lora, ModelSource("tiny", "tiny"))
    randomize(model, "bias")
    policy, ids = Policy(model, tiny_tokenizer()), torch.tensor([[5, 6, 7, 8]] * 3)
    for how in (nullcontext, model.disable_adapter):
        with torch.inference_mode():
            with how():
                expected = model(ids).logits.float()
            with policy.prepacked(3), how(), PackedProducts() as products:
                found = model(ids).logits.float()
        assert apart(found, expected) < 0.15
        blocks, inputs = plain.config.num_hidden_layers, 4  # q, k and v; o; gate and up; down
        each = 3 if how is nullcontext else 1
        assert products.count == blocks * inputs * each + 1  # and the head


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error. Over 60 seeds it was at most 0.08 from bfloat16 alone, and 1.1 to 1.6 with the adapter."""
    return float((found - expected).norm() / expected.norm())


def test_weights_are_laid_out_where_it_pays_and_as_they_are_now(monkeypatch):
    base = tiny_model(dtype=torch.float32)
    model = add_adapter(base, run_config().lora, ModelSource("tiny", "tiny"))
    policy = Policy(model, tiny_tokenizer())
    laid_out: list[int] = []
    prepacked = Policy.prepacked

    def counted(policy: Policy, rows: int | None) -> Any:
        laid_out.extend([rows] if rows else [])
        return prepacked(policy, rows)

    monkeypatch.setattr(Policy, "prepacked", counted)
    before = sample(policy, requests_for(prompts(5), 4), max_rows=8)
    for few in (requests_for(prompts(3), 1), requests_for(prompts(5), 4, length=7)):
        sample(policy, few)
    assert laid_out == [8]
    randomize(model)
    after = sample(policy, requests_for(prompts(5), 4))
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert_same(after, sample(policy, requests_for(prompts(5), 4), prepack=False), near=1e-4)
    assert laid_out == [8, 20]


def alone(lines: PrefixLines, trees: int, width: int, nodes: int) -> float:
    """A cost that wants a tree for each line."""
    return trees + 100 * (width - 1)


def row(prefix: tuple[int, ...], tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> Row:
    return Row(Segment(prefix, tokens, logprobs, (1,) * len(tokens)), 0.0, 0.0)


def test_waiting_rows_take_the_places_of_those_that_ended(policy, monkeypatch):
    """Eight of twelve rows at a time: long ones do not keep the places of short ones empty."""
    monkeypatch.setattr(PrefixLines, "_cost", alone)
    monkeypatch.setattr(policy, "end_ids", ())
    lengths = [40, 2, 2, 2, 2, 2, 2, 2, 20, 20, 20, 20]
    both = zip(requests_for(prompts(12), 1, length=40), lengths, strict=True)
    with watched(policy, decoded) as passes:
        sample(policy, [Request(r.prefix, r.uniforms[:n]) for r, n in both], max_rows=8)
    assert max(passes) == 8
    # One after the other, two batches of eight would take 39 + 19 and the prompts.
    assert len(passes) < 40 + 4


def test_the_cache_stays_within_its_memory(policy, monkeypatch):
    """Room for 100 tokens, requests of 34 to 36: two at a time; and one that fits nowhere is decoded alone."""
    monkeypatch.setattr(PrefixLines, "_cost", alone)
    requests = requests_for(prompts(4), 1, length=20)
    assert max(len(r.prefix) for r in requests) in range(14, 17)  # two requests fit, three do not
    expected = sample(policy, requests)
    for token_bytes, lines in ((2**20 // 100, 2), (2**20, 1)):
        monkeypatch.setattr(policy, "cached_bytes", token_bytes)
        with watched(policy, decoded) as passes:
            assert_same(sample(policy, requests, kv_mb=1), expected)
        assert max(passes) == lines


def test_lines_that_join_take_no_more_memory_than_a_cache_for_each(policy, monkeypatch):
    """Eight long completions of one prompt beside prompts that come and go: a tree of all their nodes is much wider than any line."""
    # Nothing but the memory is a reason to set them anew.
    monkeypatch.setattr("grpo_core.engine.compute.prefix.PAYS", 1e9)
    monkeypatch.setattr(policy, "end_ids", ())
    first, *others = prompts(20)
    requests = [*requests_for([first], 8, length=60), *requests_for(others, 1, length=3)]

    def places(kwargs: dict[str, Any]) -> int:
        keys = (kwargs.get("cache") or kwargs["past_key_values"]).layers[0].keys
        return keys.shape[0] * keys.shape[2] if keys is not None and keys.numel() else 0

    with watched(policy, places) as counts:
        found = sample(policy, requests, max_rows=12)
    both = zip(requests, found, strict=True)
    longest = max(len(request.prefix) + len(c.token_ids) for request, c in both)
    assert max(counts) <= 12 * (longest + 1)
    assert_same(found, sample(policy, requests))


def test_a_growing_cache_holds_what_that_of_transformers_holds_and_copies_nothing():
    ours, theirs = GrowingLayer(), DynamicLayer()
    generator = torch.Generator().manual_seed(0)
    places = set()
    for step in range(100):
        states = torch.randn(
            2, len(ours.keys) if step else 4, 2, 5 if step == 0 else 1, 3, generator=generator
        )
        ours.update(*states)
        theirs.update(*states)
        places.add(ours.keys.data_ptr())
        if step in (20, 60):
            chosen = torch.tensor([3, 0, 0, 2]) if step == 20 else torch.tensor([1, 2])
            ours.batch_select_indices(chosen)
            theirs.batch_select_indices(chosen)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
    assert len(places) <= 6


def test_the_memory_of_a_token_is_that_of_its_keys_and_values():
    """Two layers, two heads of eight numbers, keys and values, eight bytes each."""
    model = tiny_model()
    assert bytes_per_token(model, CPU) == 2 * 2 * 2 * 8 * 8


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.6}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {"temperature": 1.3, "top_p": 0.9}],
)  # fmt: skip
def test_sampler_log_probs_equal_the_trainers(policy, settings):
    requests = requests_for(prompts(4), 3)
    both = zip(requests, sample(policy, requests, **settings), strict=True)
    rows = [row(r.prefix, tuple(c.token_ids), tuple(c.logprobs)) for r, c in both]
    for micro in micro_batches(rows, max_tokens=60, device=CPU, dtype=torch.float64):
        found, _ = policy.logprobs(micro, temperature=SamplingConfig(**settings).temperature)
        for one, logprob in zip(micro.rows, found.tolist(), strict=True):
            drawn = one.segment.logprobs
            assert logprob[: len(drawn)] == pytest.approx(drawn, abs=1e-9)


def test_every_end_token_ends_a_completion(policy, monkeypatch):
    plain = sample(policy, requests_for(prompts(3), 4, length=30))
    extra = next(token for c in plain for token in c.token_ids[2:] if token not in policy.end_ids)
    ends = (*policy.end_ids, extra)
    monkeypatch.setattr(policy, "end_ids", ends)
    found = sample(policy, requests_for(prompts(3), 4, length=30))
    for was, now in zip(plain, found, strict=True):
        cut = was.token_ids.index(extra) + 1 if extra in was.token_ids else len(was.token_ids)
        assert now.token_ids == was.token_ids[:cut]
        assert now.finish == ("stop" if now.token_ids[-1] in ends else "length")


def test_a_stop_string_cuts_after_the_token_that_completes_it(policy):
    plain = sample(policy, requests_for(prompts(3), 4, length=30))
    texts = [policy.decode(c.token_ids) for c in plain]
    stop = next(text[3:5] for text in texts if len(text) > 8)
    found = sample(policy, requests_for(prompts(3), 4, length=30), stop=(stop,))
    for text, completion in zip(texts, found, strict=True):
        assert policy.decode(completion.token_ids) == (
            text[: text.index(stop) + len(stop)] if stop in text else text
        )


def drawn(logits: torch.Tensor, numbers: torch.Tensor, **settings: Any) -> tuple[torch.Tensor, ...]:
    """Return tokens, log-probs and kept masses of draws of one distribution."""
    rows = torch.zeros(len(numbers), dtype=torch.long)
    return draw(logits.unsqueeze(0), rows, numbers, SamplingParams(**settings))


def test_the_draw_follows_the_distribution():
    """Chi-square over 8 tokens, 20,000 draws; 24.3 is the 99.9 % point at 7 degrees of freedom."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -0.5, 0.3])
    count, draws = 20_000, Draws(TaskKey("chi", "train", 0), seed=0, step=0, attempt=0, turn=0)
    numbers = torch.tensor(draws.uniforms(count))
    tokens, logprobs, kept = drawn(logits, numbers, temperature=0.8)
    probs = torch.softmax(logits / 0.8, dim=-1)
    observed = torch.bincount(tokens, minlength=8)
    assert float(((observed - count * probs) ** 2 / (count * probs)).sum()) < 24.3
    torch.testing.assert_close(logprobs, probs.log()[tokens])
    assert kept.min() > 0.999


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.7}, {1, 2}),
        ({"min_p": 0.3}, {1, 2}),
        ({"top_k": 100}, {0, 1, 2, 3}),
    ],
)
def test_narrowing_draws_only_from_what_it_keeps_and_says_how_much(settings, allowed):
    probs = torch.tensor([0.1, 0.3, 0.5, 0.1])
    numbers = torch.linspace(0, 1 - 1e-9, 500, dtype=torch.float64)
    tokens, logprobs, kept = drawn(probs.log(), numbers, **settings)
    assert set(tokens.tolist()) == allowed
    assert kept[0].item() == pytest.approx(sum(probs[t].item() for t in allowed))
    torch.testing.assert_close(logprobs, probs.log()[tokens])


def test_a_token_of_probability_zero_is_never_drawn_even_by_the_largest_number():
    logits = torch.zeros(50_000)
    logits[40_000:] = -torch.inf
    token, _, _ = drawn(logits, torch.tensor([1 - 2**-53], dtype=torch.float64))
    assert token.item() < 40_000


def test_what_is_drawn_is_fixed_by_the_place_in_the_run(policy):
    def texts(*indices: int, attempts: int = 4, **place: int) -> list[list[str]]:
        keys = [TaskKey("letters", "train", index) for index in indices]
        tasks = [Task(key, (Message("user", f"say {key.index}"),), None) for key in keys]
        engine, budget = Engine(policy), Budget(8)
        rolled = rolled_out(policy, engine, tasks, attempts=attempts, budget=budget, **place)
        return [[rollout.text for rollout in group] for group in asyncio.run(rolled)]

    everything = texts(0, 1, 2)
    assert texts(2, 0, attempts=2) == [everything[2][:2], everything[0][:2]]
    assert texts(0, step=2)[0] != everything[0]
    assert texts(0, seed=1)[0] != everything[0]
    assert len(set(everything[0])) > 1
    first, second = texts(0, 0)  # equal tasks of one step have draws of their own
    assert first != second
