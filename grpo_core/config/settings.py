"""The sections of a run's config: every setting with its type, bounds, default and meaning. `config` puts them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import core_schema

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


PLUGIN = "plugin:"
K_ESTIMATORS = ("passk", "maxk", "pkpo")


@dataclass(frozen=True)
class Named:
    """One of `names`, or plugin:NAME for what a plugin offers; which plugins there are is not known here."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "string", "enum": list(self.names)},
                {"type": "string", "pattern": f"^{PLUGIN}.+", "examples": [f"{PLUGIN}NAME"]},
            ]
        }

    def _checked(self, name: str) -> str:
        if name not in self.names and not (name.startswith(PLUGIN) and name != PLUGIN):
            raise ValueError(f"it has to be {', '.join(self.names)} or {PLUGIN}NAME")
        return name


class Section(BaseModel):
    """Frozen, and unknown keys and numbers that JSON does not have are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _names(value: Any) -> Any:
    """A list, or its items separated by commas, as it is written after --set."""
    return (
        [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str)
        else value
    )


Listed = BeforeValidator(_names)


class ModelConfig(Section):
    name: str = "smollm2-135m"
    """A hub id (with @revision), a folder, or an alias (`grpo model list`)."""
    kind: Literal["auto", "causal", "masked"] = "auto"
    """causal: it continues a text; masked: it fills gaps, all of an input at once; auto: what its config says."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes the accelerator if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Type of the frozen weights; auto takes bfloat16 where the hardware computes in it, else float32."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Keep the frozen weights in 8 bits (LLM.int8()) or 4 (NF4, as in QLoRA), by bitsandbytes; the adapter stays in float32."""
    offload: bool = False
    """Keep the frozen weights in the CPU's memory and bring each layer's to the accelerator while it computes, by accelerate; slow, and
    with trainer.gradient_checkpointing only."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; the same as @revision after its name."""
    chat_template: str | None = None
    """A Jinja chat template, for models whose tokenizer has none or to replace it."""
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the chat template, such as enable_thinking=false."""
    system_prompt: str | None = None
    """A system message in front of every chat prompt; it takes the place of the environment's own."""


class SamplingConfig(Section):
    max_new_tokens: Positive | None = None
    """Most tokens of one completion (of each turn of a dialogue); unset takes the environment's recommendation."""
    max_dialogue_tokens: Positive | None = None
    """Most tokens of a dialogue after its prompt, the environment's included; unset: what the model's context leaves."""
    temperature: NotNegative = 1.0
    """Divides the logits before drawing, and wherever a log-prob is computed."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the smallest set of tokens that holds this much probability."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Draw from the k likeliest tokens; 0 is off."""
    min_p: Fraction = 0.0
    """Draw from tokens at least this fraction as likely as the likeliest; 0 is off."""
    stop: tuple[str, ...] = ()
    """A completion ends with the token that completes one of these strings."""
    refills: Annotated[int, Field(ge=0)] = 0
    """Ask other prompts in place of groups whose advantages are all 0, at most so many times in a step (DAPO's dynamic sampling)."""
    max_rows: Positive = 256
    """Most completions that are decoded at the same time; when a quarter has ended, others that wait take their places."""
    kv_mb: Positive = 4096
    """Most memory for keys and values of what is decoded at the same time, in MB, by the longest that it can get."""
    prepack: bool = True
    """Decode with a copy of the weights in the layout that a CPU multiplies fastest, where that pays; it takes as much memory as they."""


class OptimizerConfig(Section):
    name: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw (torch) or adamw8bit (bitsandbytes: a quarter of the optimizer's memory)."""
    lr: NotNegative = 3e-4
    """Peak learning rate; 3e-4 suits LoRA on a small model, full fine-tuning wants about 1e-6."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of Adam's two running means."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 0.25
    """The gradient's norm is clipped to this. Normalised advantages give the few groups that still differ late in a run large gradients."""


class ScheduleConfig(Section):
    name: Literal["constant", "linear", "cosine"] = "linear"
    """Shape of the learning rate after the warm-up; linear and cosine end at 0."""
    warmup: NotNegative = 0.1
    """Warm-up: below 1 a fraction of all optimizer steps, else a number of them."""


class KLConfig(Section):
    beta: NotNegative = 0.12
    """Weight of the KL to the reference in the loss; 0 leaves out the reference pass."""
    estimator: Literal["k1", "k2", "k3", "k3_reverse", "k3_st"] = "k3_st"
    """k3 = exp(-d) + d - 1 with d = log pi - log pi_ref (Schulman), always positive; k3_st has its value and the gradient of the KL itself,
    which that of k3 is not: where the policy has left a token, k3 pulls it back with weights that have no bound."""
    importance: bool = False
    """Multiply by the ratio to the policy that sampled, which keeps the estimate unbiased over several optimizer steps."""
    placement: Literal["loss", "reward"] = "loss"
    """reward: subtract beta times the KL of each completion (summed over its tokens, before the update) from its reward."""
    target: Annotated[float, Field(gt=0)] | None = None
    """Move beta so that the KL per token stays near this."""
    horizon: Positive = 10_000
    """Attempts in which an adaptive beta may change by 20 %."""
    refresh_every: Positive | None = None
    """Make the policy its own reference every so many steps."""
    refresh_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """How far a refresh moves the reference to the policy; below 1, with refresh_every=1, it is a running mean."""


class LoraConfig(Section):
    enabled: bool = True
    """false trains all weights (and copies the model as reference)."""
    r: Positive = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The adapter's output is scaled by alpha / r."""
    targets: Annotated[tuple[str, ...], Listed] = ("all-linear",)
    """Which modules get an adapter: all-linear, or names such as q_proj; a list, or separated by commas."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout in front of the adapter, in `grpo sft` only: in GRPO it would make every ratio and KL a random number."""


class AdvantageConfig(Section):
    name: Annotated[
        str,
        Named(
            (
                "grpo",
                "mean_only",
                "rloo",
                "gdpo",
                "maxk",
                "passk",
                "pkpo",
                "best_minus_second",
                "maxrl",
            )
        ),
    ] = "gdpo"
    """Estimator: mean_only = r - mean; grpo = (r - mean) / (std + eps); gdpo normalises each reward part so and adds them by their weights.
    With one part gdpo is grpo up to one factor for the batch; with several, grpo pushes a group that differs in a detail as hard as one
    that differs in what counts, and the policy settles on answers that are nearly right. passk, maxk and pkpo train the best of k.
    plugin:NAME takes one that a plugin offers."""
    k: Positive | None = None
    """The k of passk, maxk and pkpo, below group_size."""
    ddof: Literal[0, 1] = 0
    """0 divides the variance by G, 1 by G - 1."""
    eps: NotNegative = 1e-6
    """Added to the standard deviation."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Clamp advantages to [-clip, clip] after normalisation."""
    whiten: bool = False
    """Subtract the mean and divide by the standard deviation of all advantages of the step, before the clip."""
    keep: Annotated[int, Field(ge=2)] | None = None
    """Train only on so many attempts of each group, those with the largest variance of rewards (PODS)."""
    overlong_buffer: Annotated[int, Field(ge=0)] = 0
    """Punish completions in the last so many tokens of their budget, by up to 1 at its end (DAPO); 0 is off."""
    overlong_weight: NotNegative = 1.0
    """Weight of that punishment in the reward."""


class LossConfig(Section):
    name: Annotated[str, Named(("clip", "reinforce", "cispo", "sapo"))] = "clip"
    """Policy surrogate: clip (PPO, GRPO), reinforce, cispo, sapo, or plugin:NAME for one that a plugin offers."""
    level: Literal["token", "sequence_mean", "sequence"] = "token"
    """What the ratio is of: each token; the row's mean over its tokens, in logs (GSPO); or the whole completion."""
    anchor: Literal["old", "reference"] = "old"
    """What the ratio compares the policy with: the one that sampled, or the reference."""
    clip_low: Fraction = 0.2
    """The ratio is clipped at 1 - clip_low."""
    clip_high: NotNegative = 0.2
    """The ratio is clipped at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """clip: bound the loss where the advantage is negative, at this times its size."""
    sapo_positive: Annotated[float, Field(gt=0)] = 1.0
    """sapo: temperature where the advantage is positive."""
    sapo_negative: Annotated[float, Field(gt=0)] = 1.05
    """sapo: temperature elsewhere."""
    tis_cap: Annotated[float, Field(gt=0)] | None = None
    """Weigh tokens by the ratio of the training engine's to the sampler's probability, at most this (2 is usual); unset: off."""
    tis_floor: NotNegative = 0.0
    """The least such weight."""
    entropy: NotNegative = 0.0
    """Weight of the policy's entropy, which is added to what is maximised."""
    mask_truncated: bool = False
    """Leave completions that were cut off out of the loss and its denominators; they stay in their group's mean and spread."""
    aggregation: Literal["sequence_mean", "token_mean", "sequence_sum", "constant"] = (
        "sequence_mean"
    )
    """How token losses become one number; sequence_mean is GRPO's, token_mean DAPO's, constant Dr. GRPO's."""


class TrainerConfig(Section):
    mu: Positive = 1
    """Passes over each rollout batch."""
    minibatches: Positive = 1
    """Optimizer steps in each pass; the batch is split by prompts."""
    micro_batch_tokens: Positive = 2048
    """Most tokens in one forward pass (gradients are accumulated; the result does not depend on it)."""
    logits_mb: Annotated[int, Field(ge=0)] = 64
    """Most memory for logits at a time, in MB, wherever log-probs are computed; 0: those of a whole forward pass at once."""
    gradient_checkpointing: bool = False
    """Keep only what enters each layer for the backward pass and compute the layer again there: less memory, about a third more time."""
    memory_check: Literal["refuse", "warn", "off"] = "refuse"
    """What to do with a run that is estimated to need more memory than is free (refuse: where it is clearly more)."""
    shared_prefix: bool = True
    """Compute each prompt once for all its completions instead of once per completion."""
    shard: bool = False
    """Several processes: share out weights, gradients and the optimizer's state instead of keeping all in each (FSDP)."""
    meeting_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """Several processes: how long they wait for the slowest one before each update."""
    shuffle_rewards: bool = False
    """Control experiment: permute the rewards within each group. A run that still learns has a leak."""


class VerifyConfig(Section):
    workers: Positive | None = None
    """Worker processes for synchronous verifiers; unset: one per core, at most 4."""
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """Deadline of one verdict; unset takes the environment's."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often an attempt that could not be judged is tried again."""
    isolation: Literal["auto", "process", "inline"] = "auto"
    """process: in a worker that is killed at the deadline; inline: in the trainer; auto: inline only if the environment is trusted."""
    worker_environment: Annotated[tuple[str, ...], Listed] = ()
    """Names of further environment variables for workers; keys and most others stay here."""
    max_error_rate: Fraction = 0.2
    """The run stops when more than this share of recent attempts could not be judged."""
    cache: Literal["off", "memory", "disk"] = "memory"
    """Where verdicts are kept, so that equal completions of a task are judged once; disk: also for later runs. Environments that declare
    themselves stateful or not deterministic, and those that judge whole groups, are always asked."""
    cache_entries: Positive = 100_000
    """How many verdicts are kept; the oldest go first."""
    overlap: bool = True
    """Judge an attempt as soon as it has ended, while others are generated; environments that are stateful or judge whole groups wait."""


class SandboxConfig(Section):
    name: str = "auto"
    """What runs code that the model wrote: docker, bubblewrap, or what a plugin offers; auto: Docker where it is ready, else bubblewrap."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the sandbox."""


class JudgeConfig(Section):
    name: str
    """What judges: scorer, likelihood, llm, or what a plugin offers."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the judge."""


class CheckpointConfig(Section):
    every: Annotated[int, Field(ge=0)] = 50
    """Save every so many steps; 0 saves only at the end and when interrupted."""
    keep: Positive = 2
    """How many checkpoints are kept."""


class EvalConfig(Section):
    every: Annotated[int, Field(ge=0)] = 0
    """Evaluate on held-out tasks every so many steps; 0: only before and after."""
    tasks: Annotated[int, Field(ge=0)] = 128
    """How many held-out tasks; 0 leaves evaluation out."""
    temperature: NotNegative | None = None
    """Temperature of evaluation; unset takes sampling.temperature, 0 is greedy."""
    also: Annotated[tuple[str, ...], Listed] = ()
    """Environments that are only evaluated, to see what training on the others makes the model forget."""


class StopConfig(Section):
    patience: Positive | None = None
    """Stop after so many evaluations in a row (every eval.every steps) without a better held-out reward."""
    max_kl: Annotated[float, Field(gt=0)] | None = None
    """Stop when the KL to the reference, as a mean over the last 5 steps, is above this."""
    reward: float | None = None
    """Stop when the reward reaches this: the held-out one if eval.every is set, else the mean over the last 10 steps."""


class MemberConfig(Section):
    """One environment of a mixture."""

    share: NotNegative = 1.0
    """Its part of the prompts, relative to the other shares; 0: it is only evaluated."""
    level: Fraction | None = None
    """Difficulty of its tasks; unset takes the run's level."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Its settings."""
    weights: dict[str, float] = Field(default_factory=dict)
    """New weights for its reward parts."""


class CurriculumConfig(Section):
    enabled: bool = False
    """Move the level of each environment with its pass rate, from `level` on. Held-out tasks stay at the level of the start."""
    low: Fraction = 0.3
    """The level falls when a smaller share of recent attempts passes."""
    high: Fraction = 0.7
    """The level rises when a larger share of recent attempts passes."""
    attempts: Positive = 128
    """How many attempts at a level decide."""
    step: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How far the level moves."""


class SftConfig(Section):
    """The warm start: `grpo sft` (a run ignores it)."""

    data: str | None = None
    """JSONL of examples: prompt and completion, each text or messages, or messages that end with the assistant's; unset: the references
    of the environment."""
    batch_size: Positive = 32
    """Examples of each optimizer step."""
    max_length: Positive | None = None
    """Examples of more tokens than this, prompt included, are left out; unset: the model's context."""


class LogConfig(Section):
    compress: bool = True
    """Compress what rollouts.jsonl holds at a checkpoint, once that is more than log.part_mb, into rollouts-000001.jsonl.gz and so on."""
    part_mb: Annotated[float, Field(gt=0)] = 64
    """How large rollouts.jsonl becomes before it is compressed."""
    samples_every: Annotated[int, Field(ge=0)] = 10
    """Write one group with its verdicts to log.txt every so many steps; 0 never."""
    trackers: Annotated[
        tuple[Annotated[str, Named(("tensorboard", "wandb", "mlflow", "trackio"))], ...], Listed
    ] = ()
    """Where metrics go beside metrics.jsonl: tensorboard, wandb, mlflow, trackio or plugin:NAME; a list, or separated by commas. Each is
    set up by its own environment variables, such as WANDB_MODE=offline."""
    project: str = "grpo"
    """Under which they keep the run: wandb's and trackio's project, mlflow's experiment."""
