"""The optimizer step: what it may change, what it refuses and what it leaves out."""

import math
import warnings
import weakref
from pathlib import Path

import peft
import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

from grpo_core.config.config import RunConfig
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.protocol.errors import ConfigError, RunStoppedError
from grpo_core.train.update.optimizer import rate
from grpo_core.train.update.sums import Sums
from grpo_core.train.update.updater import Updater

from .arrange import collate, random_rollouts, run_config, tiny_policy
from .tiny import save_tiny, tiny_model, tiny_tokenizer

P, G = 3, 4


EVERY = torch.ones(P, G, dtype=torch.bool)


def collated(
    advantage_PG: torch.Tensor, *, minibatches: int = 1, scored: torch.Tensor = EVERY
) -> list[list[Row]]:
    return collate(
        random_rollouts(P, G),
        advantage_PG,
        scored,
        aggregation="sequence_mean",
        max_length=9,
        minibatches=minibatches,
    )


def batch(minibatches: int = 1, *, scored: torch.Tensor = EVERY) -> list[list[Row]]:
    generator = torch.Generator().manual_seed(0)
    advantage_PG = torch.randn(P, G, dtype=torch.float64, generator=generator)
    return collated(advantage_PG, minibatches=minibatches, scored=scored)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in policy.trainable()}


def is_unchanged(policy: Policy, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(before[name], tensor) for name, tensor in weights(policy).items())


def test_at_learning_rate_zero_ratio_is_one_and_nothing_is_clipped():
    policy = tiny_policy(scale=0.0)
    config = run_config(optimizer={"lr": 0.0}, trainer={"mu": 3, "minibatches": 2})
    before = weights(policy)
    values = Updater(policy, config, steps=1).update(batch(2))
    assert values["clip_fraction"] == 0
    assert values["kl"] == pytest.approx(0, abs=1e-12)
    assert is_unchanged(policy, before)


def test_old_log_probs_are_those_before_the_first_of_several_updates():
    """With rewards that push hard, a second pass must see ratios away from 1, and clip them."""
    once, twice = (
        Updater(
            tiny_policy(), run_config(optimizer={"lr": 0.05}, trainer={"mu": mu}), steps=1
        ).update(batch())
        for mu in (1, 4)
    )
    assert once["clip_fraction"] == 0
    assert twice["clip_fraction"] > 0.05


def test_what_is_not_finite_in_one_process_is_not_finite_in_all():
    class Two:
        def gather_values(self, values: list[float]) -> list[list[float]]:
            return [values, [1.0] * len(values)]

    sums = Sums(policy_loss=math.nan, kl_loss=2.0, tokens=3.0)
    sums.sum_over_ranks(Two())  # type: ignore[arg-type]
    assert (sums.kl_loss, sums.tokens) == (3.0, 4.0)
    assert math.isnan(sums.policy_loss)
    assert math.isnan(sums.means(beta=0.1)["loss"])


def test_nothing_is_left_of_a_micro_batch_when_the_next_one_is_computed():
    """The nodes of its graph would lie between the large pieces of memory that the next one needs."""
    policy, seen, alive = tiny_policy(), [], weakref.WeakSet()

    class Token:
        pass

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values: torch.Tensor) -> torch.Tensor:
            ctx.token = Token()
            alive.add(ctx.token)
            return values.clone()

        @staticmethod
        def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    token_values = policy.token_values

    def marked(micro, reference, **more):
        seen.append(len(alive))
        values = token_values(micro, reference, **more)
        return values._replace(logprob=Mark.apply(values.logprob))

    policy.token_values = marked
    Updater(policy, run_config(trainer={"micro_batch_tokens": 1}), steps=1).update(batch())
    assert seen == [0] * P * G


def test_only_the_adapter_is_trained():
    policy = tiny_policy()
    before = weights(policy)
    all_before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    Updater(policy, run_config(), steps=1).update(batch())
    assert all("lora_" in name for name in before)
    changed = {n for n, p in policy.model.named_parameters() if not torch.equal(all_before[n], p)}
    assert changed
    assert changed <= before.keys()


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_an_update_raises_the_probability_of_what_was_rewarded(name):
    policy, optimizer = tiny_policy(), {"name": name, "lr": 0.02}
    config = run_config(optimizer=optimizer, kl={"beta": 0.0}, schedule={"warmup": 0.0})
    advantage_PG = torch.zeros(P, G, dtype=torch.float64)
    advantage_PG[0, 1] = 1.0
    rows = collated(advantage_PG)
    updater = Updater(policy, config, steps=10)
    (micro, *_) = updater._make_micros([rows[0][1]])
    before = policy.logprobs(micro, temperature=1.0)[0].sum().item()
    for _ in range(3):
        updater.update(rows)
    assert policy.logprobs(micro, temperature=1.0)[0].sum().item() > before


def test_a_step_in_which_nothing_was_scored_changes_nothing():
    policy = tiny_policy()
    before = weights(policy)
    updater = Updater(policy, run_config(), steps=1)
    with warnings.catch_warnings():
        # torch takes the step that is left out for one that was forgotten.
        warnings.simplefilter("error")
        values = updater.update(batch(scored=torch.zeros(P, G, dtype=torch.bool)))
    assert values["loss"] == 0
    assert math.isnan(values["entropy"]), "a mean over no token was reported as a number"
    assert is_unchanged(policy, before)


def test_a_non_finite_gradient_is_skipped_and_counted_and_the_third_in_a_row_stops_the_run():
    policy = tiny_policy()
    updater = Updater(policy, run_config(), steps=10)
    before = weights(policy)
    poisoned = [[Row(row.segment, float("nan"), row.weight) for row in batch()[0]]]
    updater.update(poisoned)
    updater.update(poisoned)
    assert updater.skipped == 2
    assert is_unchanged(policy, before)
    updater.update(batch())
    assert not is_unchanged(policy, before)
    updater.update(poisoned)
    updater.update(poisoned)
    with pytest.raises(RunStoppedError, match=r"3 optimizer steps in a row.*lower optimizer\.lr"):
        updater.update(poisoned)
    assert all(torch.isfinite(tensor).all() for tensor in weights(policy).values())


def test_a_model_in_which_nothing_is_trainable_is_refused():
    policy = tiny_policy()
    for parameter in policy.model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing in the model is trainable"):
        Updater(policy, run_config(), steps=1)


def test_lora_targets_that_do_not_exist_are_refused():
    config = run_config(lora={"targets": ["no_such_layer"]})
    with pytest.raises(
        ConfigError, match=r"lora\.targets names 'no_such_layer', and the model has no module"
    ):
        add_adapter(tiny_model(), config.lora, ModelSource("tiny", "tiny"))


def assert_reference_stays(policy: Policy, config: RunConfig) -> None:
    """Update the policy, whose reference is what it was before."""
    updater = Updater(policy, config, steps=10)
    (micro, *_) = updater._make_micros(batch()[0])
    start = policy.logprobs(micro, temperature=1.0)[0].detach()
    torch.testing.assert_close(policy.reference_logprobs(micro, temperature=1.0), start)
    updater.update(batch())
    assert (policy.logprobs(micro, temperature=1.0)[0] - start).abs().max() > 1e-6
    torch.testing.assert_close(policy.reference_logprobs(micro, temperature=1.0), start)


def test_a_tuned_adapter_is_its_own_frozen_reference(tmp_path: Path):
    tuned = tiny_policy(scale=0.3)
    tuned.model.save_pretrained(tmp_path / "tuned", selected_adapters=["default"])
    base = str(save_tiny(tmp_path / "base"))
    source = ModelSource("tuned", base, adapter_path=str(tmp_path / "tuned"))
    model = add_adapter(tiny_model(), run_config().lora, source).to(torch.float64)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad(), model.disable_adapter():
        plain = model(ids).logits
    assert (model(ids).logits - plain).abs().max() > 0.01, "the tuned adapter does nothing"
    config = run_config(optimizer={"lr": 0.02}, schedule={"warmup": 0.0})
    assert_reference_stays(Policy(model, tiny_tokenizer()), config)


def test_full_fine_tuning_keeps_a_copied_reference(tmp_path: Path):
    model = {"name": str(save_tiny(tmp_path / "m")), "dtype": "float64"}
    config = run_config(model=model, lora={"enabled": False}, optimizer={"lr": 1e-3})
    assert_reference_stays(load_policy(config, need_reference=True), config)


def test_sampling_leaves_the_weights_bitwise_as_they_were():
    policy = tiny_policy()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    with torch.inference_mode(), policy.merged():
        assert any(not torch.equal(before[name], p) for name, p in policy.model.named_parameters())
    assert all(torch.equal(before[name], p) for name, p in policy.model.named_parameters())
    assert all(not p.is_inference() for p in policy.model.parameters())


@pytest.mark.parametrize("more", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_that_is_more_than_a_product_is_sampled_from_as_it_is(more):
    layers = {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    lora = peft.LoraConfig(r=4, task_type="CAUSAL_LM", **layers, **more)
    policy = Policy(peft.get_peft_model(tiny_model(), lora).to(torch.float64), tiny_tokenizer())
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = policy.model(ids).logits
        with policy.merged():
            torch.testing.assert_close(policy.model(ids).logits, expected)


@pytest.mark.parametrize("stacked", [False, True])
def test_an_adapter_beside_bfloat16_weights_computes_in_their_type_and_is_trained_in_float32(
    stacked,
):
    """With the gradient of the float32 model, but for rounding; and whoever calls the model by itself gets no error of types."""
    found = {}
    rows = [Row(r.segments[0], 1.0, 1.0) for r in random_rollouts(1, 4)[0]]
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        base = tiny_model(dtype=torch.bfloat16).to(dtype)
        model = add_adapter(base, run_config().lora, ModelSource("tiny", "tiny"))
        generator, types = torch.Generator().manual_seed(1), set()
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(std=0.1, generator=generator)
            if name.endswith("lora_A.default.weight"):
                model.get_submodule(name.removesuffix(".weight")).register_forward_hook(
                    lambda _, inputs, out, seen=types: seen.add(out.dtype)
                )
        policy = Policy(model, tiny_tokenizer(), stacked=stacked)
        types.clear()
        (micro,) = policy.micro_batches(rows, max_tokens=10_000, dtype=torch.float32)
        logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
        (logprob_BT * micro.real_BT).sum().backward()
        # In stacks the layers of the adapters are not called.
        assert types == (set() if stacked and dtype == torch.bfloat16 else {dtype})
        assert {p.grad.dtype for _, p in policy.trainable()} == {torch.float32}
        found[dtype] = torch.cat([p.grad.flatten() for _, p in policy.trainable()])
        model(torch.tensor([[5, 6, 7]]))
    plain, half = found.values()
    assert torch.cosine_similarity(plain, half, dim=0) > 0.98
    assert 0.9 < half.norm() / plain.norm() < 1.1


def with_scaler(config: RunConfig, scaler: torch.amp.GradScaler) -> Updater:
    """Return an updater with a scaler, which accelerate makes on CUDA only."""
    updater = Updater(Policy(tiny_policy().model.float(), tiny_tokenizer()), config, steps=10)
    updater.accelerator.scaler = scaler
    updater.optimizer = AcceleratedOptimizer(updater.optimizer.optimizer, scaler=scaler)
    return updater


def test_an_overflow_of_the_float16_scaler_lowers_its_scale_and_is_no_failure():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    updater = with_scaler(run_config(), scaler)
    before = weights(updater.policy)
    # 2^127 times this is infinite.
    large = [Row(row.segment, 1000 * row.advantage, row.weight) for row in batch()[0]]
    updater.update([large])
    assert scaler.get_scale() < 2.0**127
    assert updater.skipped == 0
    assert is_unchanged(updater.policy, before)
    scaler.update(2.0)
    updater.update(batch())
    assert not is_unchanged(updater.policy, before)


def test_the_loss_that_is_logged_is_the_one_that_is_lowered_bonus_included():
    updater = Updater(tiny_policy(), run_config(loss={"entropy": 0.5}), steps=10)
    values = updater.update(batch())
    rows = batch()[0]
    policy, total = tiny_policy(), 0.0
    for micro in policy.micro_batches(rows, max_tokens=10_000, dtype=torch.float64):
        loss, _ = Updater(policy, updater.config, steps=1).loss(
            micro, None, policy.reference_states(micro), Sums()
        )
        total += loss.item()
    assert values["loss"] == pytest.approx(total, rel=1e-12)
    assert values["loss"] < values["policy_loss"] + values["kl_penalty"] - 0.1


def test_a_first_batch_without_rows_is_no_failure_of_the_float16_scaler(monkeypatch):
    updater = with_scaler(run_config(kl={"beta": 0.0}), torch.amp.GradScaler("cpu"))
    updater.accelerator.native_amp = True
    monkeypatch.setitem(updater.accelerator.state._shared_state, "_mixed_precision", "fp16")
    updater.accelerator._optimizers = [updater.optimizer]
    before = weights(updater.policy)
    assert updater.update([[]])["grad_norm"] == 0
    assert updater.skipped == 0
    assert is_unchanged(updater.policy, before)
    updater.update(batch())
    assert not is_unchanged(updater.policy, before)


@pytest.mark.parametrize(
    ("settings", "done", "expected"),
    [
        ({"name": "constant", "warmup": 0}, 0, 1.0),
        ({"name": "constant", "warmup": 0.1}, 0, 1 / 11),
        ({"name": "constant", "warmup": 0.1}, 9, 10 / 11),
        ({"name": "constant", "warmup": 0.1}, 10, 1.0),
        ({"name": "linear", "warmup": 0}, 50, 0.5),
        ({"name": "linear", "warmup": 20}, 60, 0.5),
        ({"name": "cosine", "warmup": 0}, 50, 0.5),
        ({"name": "cosine", "warmup": 0}, 100, 0.0),
    ],
)
def test_schedules_warm_up_and_end_where_they_say(settings, done, expected):
    assert rate(done, 100, run_config(schedule=settings).schedule) == pytest.approx(expected)


@pytest.mark.parametrize("total", [5, 15, 25, 101])
def test_a_warm_up_that_ends_between_two_steps_never_exceeds_the_peak(total):
    plan = run_config(schedule={"warmup": 0.1}).schedule
    assert max(rate(done, total, plan) for done in range(total)) <= 1
