"""Policies that fill gaps: log-probs against plain transformers, the same draws in any batch, and whole runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer

from grpo_core import (
    MASK,
    ConfigError,
    Environment,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.masked import MaskedPolicy
from grpo_core.protocol.sampler import Request
from grpo_core.protocol.types import Segment
from grpo_core.runs.folder import RunFolder
from grpo_core.train.trainer import Trainer

from .arrange import sampled
from .short_runs import QUICK, grpo, make, ran, run_until, steps_of, untimed
from .tiny import save_tiny, tiny_tokenizer
from .tiny_masked import masked_model, masked_tokenizer, save_masked
from .tokenizer_kinds import finished, metaspace, word_piece

TEXTS = (
    f"the c{MASK}{MASK} sat on {MASK} mat",
    f"{MASK}{MASK}{MASK} dog",
    f"a longer text, with one gap he{MASK}e",
    f"x{MASK}",
)


class Vowels(Environment[int]):
    """Fill the gaps with vowels. Reward: the share of them."""

    trusted = True
    max_new_tokens = 8

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        words = ["".join(rng.choice("bcdfgh") for _ in range(4)) for _ in range(rng.randint(1, 4))]
        gaps = [word[: rng.randint(0, 2)] + MASK * 2 + word[2:] for word in words[:2]]
        return Task(key, " ".join([*gaps, *words[2:]]), len(gaps))

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        fills = json.loads(rollout.text)
        share = sum(letter in "aeiou" for fill in fills for letter in fill) / (2 * task.data)
        is_full = share == 1 and len(fills) == task.data
        return Verdict({"reward": Reward(share)}, passed=is_full, answer=rollout.text[:50])

    def reference(self, task: Task[int]) -> str:
        return json.dumps(["ae"] * task.data)


def vowels_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run with a model in `folder`, which is made if it is not there."""
    if not (folder / "model").exists():
        save_masked(folder / "model", dtype=torch.float64)
    settings = {
        "environment": "vowels",
        "steps": 4,
        "prompts_per_step": 4,
        "group_size": 6,
        "model.name": str(folder / "model"),
        "model.dtype": "float64",
        "optimizer.lr": 3e-3,
        "kl.beta": 0.1,
        "eval.tasks": 4,
        "checkpoint.every": 2,
    }
    return nested(settings)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return vowels_settings(tmp_path)


def policy(**options: Any) -> MaskedPolicy:
    return MaskedPolicy(masked_model(), masked_tokenizer(), **options)


def requests(found: MaskedPolicy, attempts: int, *, seed: int = 0) -> list[Request]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Request(found.encode(text), torch.rand(8, generator=generator).tolist())
        for text in TEXTS
        for _ in range(attempts)
    ]


def rows(found: MaskedPolicy, **settings: Any) -> list[Row]:
    asked = requests(found, 3)
    return [
        Row(Segment(r.prefix, tuple(c.token_ids), tuple(c.logprobs), (1,) * len(c.token_ids)), 0.5, 1.0)
        for r, c in zip(asked, sampled(found, asked, **settings), strict=True)
    ]  # fmt: skip


def plain(found: MaskedPolicy, row: Row, temperature: float) -> list[float]:
    """By transformers alone, one text at a time."""
    ids = torch.tensor([row.segment.prompt_ids])
    logits = found.model(input_ids=ids).logits[0] / temperature
    slots = (ids[0] == found.mask_id).nonzero().flatten()
    return logits.log_softmax(-1)[slots, torch.tensor(row.segment.token_ids)].tolist()


# Exactness


@pytest.mark.sampled(2)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("shared_prefix", [True, False])
@pytest.mark.parametrize("logits_bytes", [2**28, 2**12, 0])
def test_log_probs_are_those_of_the_model_at_the_gaps(temperature, shared_prefix, logits_bytes):
    found = policy(shared_prefix=shared_prefix, logits_bytes=logits_bytes)
    assert (found.shared_prefix, bool(found.logits_bytes)) == (shared_prefix, bool(logits_bytes))
    every = rows(found, temperature=temperature)
    for max_tokens in (40, 10_000):
        for micro in found.micro_batches(every, max_tokens=max_tokens, dtype=torch.float64):
            logprob_BT, entropy_BT = found.logprobs(micro, temperature=temperature)
            for b, row in enumerate(micro.rows):
                count = len(row.segment.token_ids)
                expected = pytest.approx(plain(found, row, temperature), abs=1e-9)
                assert logprob_BT[b, :count].tolist() == expected
                assert row.segment.logprobs == expected
                assert (entropy_BT[b, :count] > 0).all()


def test_the_gradient_of_shared_prompts_is_that_of_each_row_by_itself():
    gradients = []
    weights = torch.arange(1, 4).repeat(4).unsqueeze(1)
    for shared_prefix in (True, False):
        found = policy(shared_prefix=shared_prefix)
        found.model.requires_grad_(True)
        for micro in found.micro_batches(rows(found), max_tokens=10_000, dtype=torch.float64):
            assert len(micro.together) == (4 if shared_prefix else 12)
            logprob_BT, _ = found.logprobs(micro, temperature=1.0)
            (logprob_BT * micro.trainable_BT * weights).sum().backward()
        gradients.append([p.grad for p in found.model.parameters() if p.grad is not None])
    # The passes put longer prompts first, so the rows come in the same order both times.
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def test_what_is_drawn_for_a_row_depends_on_its_own_numbers_alone():
    found = policy()
    asked = requests(found, 4)
    together = sampled(found, asked)
    few = sampled(found, asked, max_rows=2)
    alone = [sampled(found, [request])[0] for request in asked]
    drawn = [[c.token_ids for c in completions] for completions in (together, few, alone)]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({*map(tuple, drawn[0])}) > len(TEXTS)
    for request, completion in zip(asked, together, strict=True):
        assert len(completion.token_ids) == request.prefix.count(found.mask_id)
        assert completion.finish == "stop"


def test_greedy_takes_the_likeliest_and_top_p_keeps_to_its_mass():
    found = policy()
    (greedy,) = sampled(found, requests(found, 1)[:1], temperature=0.0)
    ids = torch.tensor([found.encode(TEXTS[0])])
    best = found.model(input_ids=ids).logits[0].argmax(-1)[ids[0] == found.mask_id]
    assert list(greedy.token_ids) == best.tolist()
    narrow = sampled(found, requests(found, 8), top_p=0.3)
    assert all(0.3 <= completion.kept_mass < 1 for completion in narrow)
    probs_KV = found.gaps(found.model, [found.encode(text) for text in TEXTS]).softmax(-1)
    ranks = [int((probs_KV[0] > probs_KV[0, c.token_ids[0]]).sum()) for c in narrow[:8]]
    widest = int((probs_KV[0].sort(descending=True).values.cumsum(0) < 0.3).sum())
    assert max(ranks) <= widest


def test_what_it_says_is_an_array_with_a_text_for_each_run_of_gaps():
    found = policy()
    prompt_ids = found.encode(TEXTS[0])
    token_ids = found.encode_answer(TEXTS[0], '["at", "a"]')
    assert json.loads(found.completion_text(prompt_ids, token_ids)) == ["at", "a"]
    masks = [place for place, token in enumerate(prompt_ids) if token == found.mask_id]
    assert found.slots(prompt_ids) == tuple(masks)
    with pytest.raises(ConfigError, match=r"gaps of \[2, 1\] tokens with texts of \[3, 1\]"):
        found.encode_answer(TEXTS[0], '["ate", "a"]')
    for answer in ("at, a", '{"at": "a"}', "[1, 2]"):
        with pytest.raises(ConfigError, match="JSON array with a text for each"):
            found.encode_answer(TEXTS[0], answer)


def filling(core: Tokenizer, text_mask: AddedToken) -> MaskedPolicy:
    """A policy whose tokenizer treats the start of a text in its own way."""
    core.add_special_tokens([text_mask])
    tokenizer = finished(core, mask_token=MASK)
    model = masked_model()
    model.resize_token_embeddings(len(tokenizer))
    return MaskedPolicy(model, tokenizer)


@pytest.mark.parametrize("scheme", ["first", "always"])
@pytest.mark.parametrize("takes_space", [True, False])
def test_a_fill_has_the_tokens_of_the_whole_text(scheme, takes_space):
    mask = AddedToken(MASK, lstrip=takes_space, special=True, normalized=False)
    found = filling(metaspace(scheme), mask)
    tokenizer = found.tokenizer

    def names(prompt: str, answer: str) -> list[str]:
        return list(tokenizer.convert_ids_to_tokens(found.encode_answer(prompt, answer)))

    prompt = f"so {MASK} sat x{MASK}{MASK}."
    # A mask that takes the space before it stands for a token with that space.
    first = "\u2581the" if takes_space else "the"
    assert names(prompt, '["the", "Yes2"]') == [first, "Yes", "2"]
    drawn = found.encode_answer(prompt, '["the", "Yes2"]')
    assert json.loads(found.completion_text(found.encode(prompt), drawn)) == ["the", "Yes2"]
    assert names(f"{MASK} sat", '["the"]') == ["\u2581the"]


def test_the_text_of_a_part_of_a_word_is_that_part():
    mask = AddedToken(MASK, special=True, normalized=False)
    found = filling(word_piece(), mask)
    drawn = [found.tokenizer.convert_tokens_to_ids(token) for token in ("##ing", "the")]
    prompt_ids = found.encode(f"Yes{MASK} x {MASK}")
    assert json.loads(found.completion_text(prompt_ids, drawn)) == ["ing", "the"]


# What cannot work


@pytest.mark.parametrize(
    ("prompt", "most", "why"),
    [
        ((Message("user", "hello"),), 8, "fills gaps in raw text"),
        ("no gap", 8, "0 tokens to fill in"),
        (MASK * 9, 8, r"9 tokens to fill in, and at most 8 .* raise sampling.max_new_tokens to 9"),
        (f"{MASK}{'x' * 200}", 8, "exceeds the model's context of 128"),
    ],
)
def test_prompts_that_cannot_be_filled_are_refused(prompt, most, why):
    with pytest.raises(ConfigError, match=why):
        policy().encode_checked(prompt, max_new_tokens=most)


def test_a_tokenizer_without_a_mask_and_an_environment_with_dialogues_are_refused(
    settings, tmp_path
):
    with pytest.raises(ConfigError, match="no mask token"):
        MaskedPolicy(masked_model(), tiny_tokenizer())

    class Talking(Vowels):
        max_turns = 2

    with pytest.raises(ConfigError, match="Talking holds dialogues"):
        make(settings, tmp_path / "run", env=Talking())


# Whole runs


def policy_by(settings: dict[str, Any], **more: Any) -> Any:
    return load_policy(build_config([settings, nested(more)]), need_reference=False)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_a_run_learns_and_stays_measured_against_its_start(settings, tmp_path, lora):
    longer = {"steps": 40, "eval.tasks": 32, "kl.beta": 0.02}
    more = {**longer, "lora.enabled": lora, "optimizer.lr": 1e-2 if lora else 3e-3}
    gain = make(settings, tmp_path / "run", more, env=Vowels()).run()["reward"]
    lines = steps_of(tmp_path / "run")
    assert gain.low > 0.2
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-9)
    assert lines[-1]["kl"] > 0.01
    assert lines[0]["sampling/logprob_gap"] < 1e-9
    trained = {"model.name": str(tmp_path / "run"), "lora.enabled": lora}
    assert isinstance(policy_by(settings, **trained), MaskedPolicy)
    logged = next(iter(RunFolder(tmp_path / "run").rollout_lines()))
    assert isinstance(json.loads(logged["messages"][0]["content"]), list)


def test_an_interrupted_run_goes_on_to_the_bit(settings, tmp_path):
    quick = {**QUICK, "steps": 3, "checkpoint.every": 2}
    ran(settings, tmp_path / "whole", quick, env=Vowels())
    run_until(make(settings, tmp_path / "parts", quick, env=Vowels()), 2)
    Trainer.resumed(tmp_path / "parts", Vowels()).run()
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["references", "a file"])
def test_a_warm_start_lowers_the_loss(settings, tmp_path, source):
    changes = {"method": "sft", "steps": 20, "sft.batch_size": 8, "lora.enabled": False}
    if source == "a file":
        row = json.dumps({"prompt": f"b{MASK}{MASK}d", "completion": '["ae"]'}) + "\n"
        (tmp_path / "shown.jsonl").write_text(row * 4)
        changes["sft.data"] = str(tmp_path / "shown.jsonl")
    ran(settings, tmp_path / "run", changes, env=Vowels())
    first, *_, last = steps_of(tmp_path / "run")
    assert last["loss"] < 0.5 * first["loss"]


def test_the_model_says_what_it_is_and_the_setting_has_the_last_word(settings, tmp_path):
    assert policy_by(settings).fills
    causal = {"model.name": str(save_tiny(tmp_path / "causal"))}
    assert not policy_by(settings, **causal).fills
    with pytest.raises(Exception, match="cannot be loaded as a masked language model"):
        policy_by(settings, **causal, **{"model.kind": "masked"})


def test_generate_fills_a_text(tmp_path):
    done = grpo("generate", f"the c{MASK}t", "--model", save_masked(tmp_path / "model"))
    assert len(json.loads(done.stdout.strip().splitlines()[-1])) == 1


def test_rollouts_know_which_slot_each_token_fills(settings, tmp_path):
    trainer = make(settings, tmp_path / "run", env=Vowels())
    for group in trainer.sample(2, attempts=2):
        for rollout in group.rollouts:
            assert rollout.positions == trainer.actor.policy.slots(rollout.prompt_ids)  # type: ignore[attr-defined]
            assert len(rollout.token_ids) == len(rollout.positions)
    assert replace(rollout, positions=None) != rollout
