"""Define the sections of a run's config: each setting with its type, bounds, default and meaning.

`grpo_core.config.config` combines them. The docstring under a setting is what `grpo config
explain` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import core_schema

from grpo_core.config.chat_templates import check_template
from grpo_core.protocol.consent import Harmless, Names, NamesFile, NeedsConsent, SettingsOf
from grpo_core.protocol.sampler import SamplingParams
from grpo_core.protocol.tool_calls import ToolFormat

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]

Isolation = Literal["auto", "process", "inline"]
"""Where verifiers run; see `VerifyConfig.isolation`."""
PLUGIN = "plugin:"
"""Prefix of a name that refers to a plugin's component."""
K_ESTIMATORS = ("passk", "maxk", "pkpo")
"""The advantage estimators that need advantage.k."""


@dataclass(frozen=True)
class Named:
    """Validate a name: one of `names`, or plugin:NAME for a component that a plugin offers.

    The form plugin:NAME is all that is checked; the installed plugins are not known here.
    """

    names: tuple[str, ...]
    """The built-in names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._check_name, handler(source))

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "string", "enum": list(self.names)},
                {"type": "string", "pattern": f"^{PLUGIN}.+", "examples": [f"{PLUGIN}NAME"]},
            ]
        }

    def _check_name(self, name: str) -> str:
        if name not in self.names and not (name.startswith(PLUGIN) and name != PLUGIN):
            raise ValueError(f"it has to be {', '.join(self.names)} or {PLUGIN}NAME")
        return name


class Section(BaseModel):
    """Make settings immutable and refuse unknown keys and numbers that JSON does not have."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Listed = BeforeValidator(
    lambda value: (
        [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str)
        else value
    )
)
"""Accepts a list, or a text whose items are separated by commas, as written after --set."""
OnWhereUnset = Annotated[bool, BeforeValidator(lambda value: True if value is None else value)]
"""A switch that runs of earlier versions recorded as unset where they left it to the device."""


def _check_tags(tags: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the tags of thoughts without white space around them, which turns may have or not.

    Raise ValueError unless there are two, or none.
    """
    tags = None if tags is None else tuple(tag.strip() for tag in tags)
    if tags and not (len(tags) == 2 and all(tags) and tags[0] != tags[1]):
        raise ValueError(
            "it has to be the opening and the closing tag, two different texts that are not empty, "
            "or an empty list, with which nothing counts as thoughts"
        )
    return tags


OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Accepts a list, or one text, which may hold commas."""


class ModelConfig(Section):
    """Select the model to train and how its weights are loaded."""

    name: Annotated[str, Field(min_length=1), Harmless] = "smollm2-135m"
    """A hub id (with @revision), a folder, or an alias (`grpo model list`)."""
    kind: Literal["auto", "causal", "masked"] = "auto"
    """causal: continues a text; masked: fills all gaps of an input at once; auto: decided by the
    model's config."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to compute on; auto uses the accelerator if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Type of the frozen weights; auto uses bfloat16 where the hardware multiplies matrices faster
    in it, else float32."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Keep the frozen weights in 8 bits (LLM.int8()) or 4 bits (NF4, as in QLoRA), with
    bitsandbytes; the adapter stays in float32."""
    offload: bool = False
    """Keep the frozen weights in the CPU's memory and copy each layer's weights to the accelerator
    while it computes, with accelerate; slow, and only with trainer.gradient_checkpointing."""
    trust_remote_code: Annotated[bool, NeedsConsent("name")] = False
    """Run the Python code that comes with the model."""
    revision: Annotated[str | None, Harmless] = None
    """Branch, tag or commit of a hub id; equivalent to @revision after its name."""
    chat_template: Annotated[str | None, AfterValidator(check_template), NamesFile] = None
    """A Jinja chat template, for a tokenizer that has none or to replace the tokenizer's: a file
    with one, which is read at once; its text; or a name. chatml, llama3: the turns of these models;
    plain: "User: ..." and "Assistant:", for base models; chatml-tools: write chats with tools as
    ChatML with the calls of Hermes, and others as the tokenizer's template does; smollm2-135m takes
    it by itself."""
    chat_template_args: Annotated[dict[str, Any], Harmless] = Field(default_factory=dict)
    """Additional arguments of the chat template, such as enable_thinking=false."""
    tool_format: Literal["auto"] | ToolFormat = "auto"
    """How the model writes tool calls; auto: as its chat template teaches, else as hermes does."""
    thought_tags: Annotated[
        tuple[str, ...] | None, Listed, AfterValidator(_check_tags), Harmless
    ] = None
    """The texts that open and close the model's thoughts; an empty list: nothing counts as
    thoughts. Unset: those that its chat template shows, else <think> and </think>."""
    system_prompt: Annotated[str | None, Harmless] = None
    """System message of every chat prompt; it replaces the environment's system message. An empty
    text removes that; unset: the environment's is kept."""
    system_role: Literal["auto", "keep", "fold"] = "auto"
    """How a system message is given to the chat template. keep: as a message of its own; fold: at
    the beginning of the first user message; auto: folded where the template refuses a system
    message or leaves it out."""


class SamplingConfig(Section):
    """Set how completions are sampled and how many are decoded at the same time."""

    max_new_tokens: Positive | None = None
    """Maximum tokens of a completion (of each turn of a dialogue); unset: the environment's
    recommendation."""
    max_dialogue_tokens: Positive | None = None
    """Maximum tokens of a dialogue after its prompt, including the environment's turns; unset: the
    rest of the model's context."""
    temperature: NotNegative = 1.0
    """The logits are divided by this before sampling and wherever a log-probability is computed."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from the k most likely tokens; 0: off."""
    min_p: Fraction = 0.0
    """Sample from tokens at least this fraction as likely as the most likely token; 0: off."""
    stop: Annotated[tuple[str, ...], OneOrMore, Harmless] = ()
    """Stop strings: a completion ends with the token that completes one of them."""
    refills: Annotated[int, Field(ge=0)] = 0
    """Replace groups whose advantages are all 0 by groups of other prompts, at most this many times
    in a step (DAPO's dynamic sampling)."""
    max_rows: Positive | None = None
    """Maximum number of completions decoded at the same time; when a quarter of them has ended,
    waiting ones take their places. Unset: by the device; 256 on a CPU, on a GPU 1024 from 70 GiB of
    memory and else 256 (never measured on a GPU)."""
    kv_mb: Positive | None = None
    """Maximum memory, in MB, for the keys and values of the completions decoded at the same time,
    computed from the greatest length that they can reach. Unset: by the device; 4096 on a CPU, a
    quarter of the memory of a GPU (never measured)."""
    cuda_graphs: bool | None = None
    """Decode on a GPU by replaying a recorded step (a CUDA graph) instead of launching each of its
    operations: 15 times as fast on an H200. Every completion then has a cache of its own, and
    waiting ones take places only when all have ended. A model that cannot be recorded is computed
    as usual, with a warning. Unset: on for a GPU and off for a CPU, where it changes only how the
    cache is laid out."""
    gather_ms: NotNegative | None = None
    """How long the built-in engine waits for further requests before it begins a batch, where
    programs send them at about the same time: until none came for so many milliseconds, but no
    longer than ten times that or a tenth of the time that the last batch took. 0: a batch holds
    what is there. Unset: 5 where agents make the attempts, and in `grpo serve`, else 0."""
    prepack: bool = True
    """Decode with a copy of the weights: in the layout that a CPU multiplies fastest, where that is
    faster, and in the type of the forward pass (model.dtype) where the weights are kept in another,
    since they would be cast again for each token. It needs as much memory as weights of that
    type."""

    def params(self, temperature: float | None = None) -> SamplingParams:
        """Return what decides how a completion is drawn.

        Args:
            temperature: instead of the configured one.
        """
        return SamplingParams(
            self.temperature if temperature is None else temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.stop,
        )


class RolloutConfig(Section):
    """Set how dialogues are played."""

    overlap_turns: bool | None = None
    """Request the next turn of a dialogue as soon as its environment has replied, whatever the
    others do. Off: the next turns of all dialogues are requested together, so that equal runs have
    equal batches; each waits for the slowest, and all episodes have to be open at once. Draws are
    the same, but the log-probabilities of other batches may be rounded otherwise. Unset: on for
    environments with episodes, off for others."""


class SamplerConfig(Section):
    """Select the engine that draws completions."""

    name: Annotated[str, Names] = "builtin"
    """Engine that draws completions: builtin (in this process, with the policy's own weights), or
    one that a plugin offers."""
    settings: Annotated[dict[str, Any], SettingsOf("sampler", "name")] = Field(default_factory=dict)
    """Settings of an engine that a plugin offers."""


class EndpointConfig(Section):
    """Select the server through which programs that speak the OpenAI API reach the policy: agents
    of a run, and the clients of `grpo serve`."""

    name: Annotated[str, Names] = "http"
    """Endpoint, which a plugin offers."""
    settings: Annotated[dict[str, Any], SettingsOf("endpoint", "name")] = Field(
        default_factory=dict
    )
    """Settings of the endpoint."""


class OptimizerConfig(Section):
    """Set the optimizer and its learning rate."""

    name: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw (torch) or adamw8bit (bitsandbytes: a quarter of the optimizer's memory)."""
    lr: NotNegative | None = None
    """Peak learning rate; unset: by the size of the model. For an adapter 3e-4 up to 0.2 billion
    weights, 5e-5 up to 1, 1e-5 up to 4 and 5e-6 above; where all weights are trained 1e-5, 5e-6,
    1e-6 and 1e-6. `grpo sft`: for an adapter 3e-4 up to 0.2 billion and 2e-4 above, else 2e-5."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of Adam's two running means."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 0.25
    """The gradient norm is clipped to this value. Late in a run the rewards of few groups still
    differ; normalised advantages give these groups large gradients."""


class ScheduleConfig(Section):
    """Set how the learning rate changes during the run."""

    name: Literal["constant", "linear", "cosine"] = "linear"
    """Shape of the learning rate after the warm-up; linear and cosine end at 0."""
    warmup: NotNegative = 0.1
    """Length of the warm-up: below 1 a fraction of all optimizer steps, else a number of steps."""


class KLConfig(Section):
    """Set the KL penalty that keeps the policy close to the reference policy."""

    beta: NotNegative | None = None
    """Weight in the loss of the KL to the reference policy; 0 omits the reference policy's forward
    pass; unset: 0.12 for models up to 0.2 billion weights, 0.04 above."""
    estimator: Literal["k1", "k2", "k3", "k3_reverse", "k3_st", "full"] = "k3_st"
    """k3 = exp(-d) + d - 1 with d = log pi - log pi_ref (Schulman), never negative. k3_st has the
    value of k3 and the gradient of the KL itself. The gradient of k3 is not that of the KL: where
    the policy's probability of a token has become small, k3 pulls it back with an unbounded
    weight. k2 = d^2 / 2 has the gradient of the KL, but not its value; k3_reverse has neither. k1 =
    d has its value and is the only one for a KL in the reward; in the loss it has no gradient on
    average without kl.importance. full: no estimate, but the KL of the distributions that tokens
    are drawn from, over the whole vocabulary, with its own gradient; not with sampling.top_p, top_k
    or min_p, which draw from another distribution. No gradient of a KL in the loss includes how a
    token changes what comes after it; that of a KL in the reward does."""
    importance: bool | None = None
    """Weight the KL in the loss by the importance ratio of each token to the policy that sampled,
    whatever loss.level is. When a batch gets several optimizer steps (trainer.mu,
    trainer.minibatches), only this keeps value and gradient those of the KL (at the prefixes that
    were sampled). k1 and k3 have the gradient of the KL only with it, from the first step on.
    unset: on for k1, and with several steps for k2 and k3_st; full needs none."""
    placement: Literal["loss", "reward"] = "loss"
    """loss: add the KL to the loss; reward: subtract beta times the KL of each completion (summed
    over its tokens, before the update) from its reward, with kl.estimator=k1: the gradient of the
    others would not be the KL's there, and that of k3 would be nearly none. Dead groups are
    refilled by their rewards before this."""
    target: Annotated[float, Field(gt=0)] | None = None
    """Adapt beta so that the KL per token stays near this value."""
    horizon: Positive = 10_000
    """Number of completions in which an adaptive beta may change by 20 %, which is also the most in
    one step."""
    refresh_every: Positive | None = None
    """Make the current policy the reference every this many steps."""
    refresh_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """How far a refresh moves the reference towards the policy; below 1, with refresh_every=1, the
    reference is a running mean of the policy."""

    @property
    def is_used(self) -> bool:
        """Return whether the KL has a weight; every default of beta is above 0."""
        return self.beta is None or self.beta > 0


class LoraConfig(Section):
    """Set the LoRA adapter, or train all weights."""

    enabled: bool = True
    """Train an adapter; false trains all weights (and copies the model as the reference)."""
    r: Positive = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The adapter's output is scaled by alpha / r."""
    targets: Annotated[tuple[str, ...], Listed, Harmless] = ("all-linear",)
    """Modules that get an adapter: all-linear, or names such as q_proj; a list, or separated by
    commas."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapter, in `grpo sft` only: in GRPO it would make every importance ratio
    and KL a random number."""


class AdvantageConfig(Section):
    """Set how the rewards of a group become advantages."""

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
                "turns",
            )
        ),
        Names,
    ] = "gdpo"
    """Estimator. mean_only = r - mean; grpo = (r - mean) / (std + eps); gdpo normalises each reward
    part in this way, adds the parts by their weights and divides by the standard deviation of the
    batch. With one part, gdpo equals grpo up to that factor, which groups without a signal raise to
    at most 2. With several parts, grpo weighs a group that differs only in a detail as
    much as a group that differs in the main part, and the policy converges to answers that are
    nearly right. passk, maxk and pkpo train the best of k. turns compares what the policy earned
    from each of its turns on, for environments that say what each turn earned; it needs
    loss.aggregation=sequence_sum or constant. plugin:NAME uses an estimator that a plugin
    offers."""
    k: Positive | None = None
    """The k of passk, maxk and pkpo, below group_size."""
    ddof: Literal[0, 1] = 0
    """0 divides a variance by the number of values, 1 by one less: that of a group, and of gdpo's
    batch."""
    eps: NotNegative = 1e-6
    """Added to the standard deviation."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Clamp advantages to [-clip, clip] after normalisation."""
    whiten: bool = False
    """Subtract the mean of all advantages of the step and divide by their standard deviation,
    before clipping."""
    keep: Annotated[int, Field(ge=2)] | None = None
    """Train only on this many completions of each group, chosen for the largest variance of their
    rewards (PODS)."""
    overlong_buffer: Annotated[int, Field(ge=0)] = 0
    """Penalise completions that reach the last this many tokens of their budget, by up to 1 at its
    end (DAPO); 0: off. Not with gdpo, passk and maxrl."""
    overlong_weight: NotNegative = 1.0
    """Weight in the reward of the penalty of overlong_buffer."""


class LossConfig(Section):
    """Set the policy loss."""

    name: Annotated[str, Named(("clip", "reinforce", "cispo", "sapo")), Names] = "clip"
    """Policy surrogate: clip (PPO, GRPO), reinforce, cispo, sapo, or plugin:NAME for a surrogate
    that a plugin offers."""
    level: Literal["token", "sequence_mean", "sequence"] = "token"
    """What the importance ratio is computed for: token: each token; sequence_mean: the completion,
    as the mean of the log-ratios over its tokens (GSPO); sequence: the whole completion. After
    several optimizer steps on a batch only sequence has the gradient of the expected reward, as far
    as nothing is clipped, with loss.aggregation=sequence_mean (cispo: sequence_sum)."""
    anchor: Literal["old", "reference"] = "old"
    """The policy in the denominator of the importance ratio: old: the policy that sampled;
    reference: the reference policy."""
    clip_low: Fraction = 0.2
    """The importance ratio is clipped at 1 - clip_low."""
    clip_high: NotNegative = 0.2
    """The importance ratio is clipped at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Only for loss.name=clip: where the advantage is negative, bound the loss at this value times
    the size of the advantage."""
    sapo_positive: Annotated[float, Field(gt=0)] = 1.0
    """Only for loss.name=sapo: temperature where the advantage is positive."""
    sapo_negative: Annotated[float, Field(gt=0)] = 1.05
    """Only for loss.name=sapo: temperature where the advantage is not positive."""
    tis_cap: NotNegative | None = None
    """Weight each token by the ratio of the training engine's probability to the sampler's, capped
    at this value; 0: off. Unset: off with the built-in sampler, whose probabilities are the
    trainer's up to rounding, and 2 with samplers that draw with generators of their own and with
    pipeline.max_staleness above 0."""
    tis_floor: NotNegative = 0.0
    """Lower bound of the weight that tis_cap caps."""
    entropy: NotNegative = 0.0
    """Weight of the policy's entropy, which is added to the objective that is maximised."""
    mask_truncated: bool = False
    """Exclude truncated completions from the loss and its denominators; they still count in their
    group's mean and standard deviation."""
    aggregation: Literal["sequence_mean", "token_mean", "sequence_sum", "constant"] = (
        "sequence_mean"
    )
    """How token losses are aggregated; sequence_mean is GRPO's, token_mean DAPO's, constant Dr.
    GRPO's."""


class TrainerConfig(Section):
    """Set how a rollout batch becomes optimizer steps, and what that may cost in memory."""

    mu: Positive = 1
    """Passes over each rollout batch."""
    minibatches: Positive = 1
    """Optimizer steps in each pass; the batch is split by prompts."""
    micro_batch_tokens: Positive | None = None
    """Maximum tokens in one forward pass (gradients are accumulated; the result does not depend on
    it). Unset: by the device; 2048, but 32768 on a GPU with at least 70 GiB of memory for a model
    of at most 1 billion weights (measured on an H200)."""
    logits_mb: Annotated[int, Field(ge=0)] | None = None
    """Maximum memory for logits at a time, in MB, wherever log-probabilities are computed; 0: the
    logits of a whole forward pass at once. Unset: by the device; 64 on a CPU, an 80th of the memory
    of a GPU and at least 64 (measured on
    an H200: four times as much gained nothing)."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass and compute the layer again there:
    less memory, about a third more time."""
    memory_check: Literal["refuse", "warn", "off"] = "refuse"
    """What to do with a run that is estimated to need more memory than is free (refuse: only if it
    is clearly more)."""
    self_check: Literal["once", "always"] = "once"
    """When to check that the fast ways to compute a model agree with the plain one. once: the
    result is kept in the cache, for the same weights, versions, device and type; always: at each
    start."""
    shared_prefix: bool = True
    """Compute each prompt once for all its completions instead of once per completion."""
    stacked_layers: OnWhereUnset = True
    """Compute layers that get the same input, such as queries, keys and values, as one product with
    their adapters, where the frozen weights are in half precision. Without it a token took 1.4
    times as long on an H200, and an update up to 1.08 times as long on two cores."""
    shard: bool = False
    """With several processes: shard weights, gradients and the optimizer's state across them
    instead of keeping all of them in each process (FSDP)."""
    meeting_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """With several processes: how long they wait for the slowest one before each update."""
    shuffle_rewards: bool = False
    """Control experiment: permute the rewards within each group. If the run still learns, it has a
    leak."""


class ExecutorConfig(Section):
    """Select where verifiers run."""

    name: Annotated[str, Names] = "local"
    """Where verifiers run: local (on this machine), or a place that a plugin offers."""
    settings: Annotated[dict[str, Any], SettingsOf("executor", "name")] = Field(
        default_factory=dict
    )
    """Settings of an executor that a plugin offers."""


class PipelineConfig(Section):
    """Set whether rollouts of later steps are made while a step updates (`grpo sft` makes none)."""

    max_staleness: Annotated[int, Field(ge=0)] = 0
    """By how many steps the weights that sample may be older than those that the rollouts train. 0:
    each step samples with its own weights, then updates. Above 0 the rollouts of later steps are
    made while this one updates, for which one process has to train; with the built-in sampler only
    their verification overlaps with the update."""


class VerifyConfig(Section):
    """Set how verifiers run: where, workers, timeouts, retries and the verdict cache."""

    executor: ExecutorConfig = ExecutorConfig()

    workers: Positive | None = None
    """Worker processes for synchronous verifiers, and as many for episodes; unset: one per core, at
    most 4."""
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """Timeout of one verdict (of each group, if groups are judged); unset: the environment's."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How many times judging a completion is retried after a failure."""
    isolation: Isolation = "auto"
    """process: in a worker that is killed at the timeout; inline: in the trainer; auto: inline only
    if the environment is trusted, or its verifier is asynchronous and no episode."""
    max_concurrency: Positive = 32
    """Maximum number of asynchronous verdicts, or calls of episodes, in progress at the same
    time."""
    task_timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Timeout of task() and reference()."""
    worker_start_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Timeout of a worker's start, including imports."""
    worker_memory_mb: Annotated[float, Field(gt=0)] = 2048.0
    """A worker that uses more memory than this after a verdict is replaced."""
    worker_environment: Annotated[tuple[str, ...], Listed] = ()
    """Names of additional environment variables that workers inherit; keys and most other variables
    stay in the trainer."""
    namespace: Annotated[Literal["auto", "required", "off"], NeedsConsent()] = "auto"
    """auto: workers get a process namespace of their own, in which they cannot see the trainer,
    where bubblewrap is installed and the system allows it; required: no run without; off: none."""
    max_error_rate: Fraction = 0.2
    """The run stops when more than this share of recent completions could not be judged."""
    max_raised_rate: Fraction = 0.2
    """The run stops when, in one step, more than this share of completions got the floor because
    the verifier raises at them, where an environment declares raises_at_answers."""
    cache: Literal["off", "memory", "disk"] = "memory"
    """Where verdicts are cached, so that equal completions of a task are judged once; disk: also
    for later runs. Verdicts of environments that judge whole groups, that are declared stateful or
    not deterministic, or whose episodes are not replayable, are never cached."""
    cache_entries: Positive = 100_000
    """How many verdicts are cached; the oldest are removed first."""
    overlap: bool = True
    """Judge a completion as soon as it has ended, while others are generated; environments that are
    stateful or judge whole groups wait for the batch. An episode is always judged when it ends."""


class SandboxConfig(Section):
    """Select the sandbox for code that the model wrote."""

    name: Annotated[str, Names] = "auto"
    """Sandbox that runs code that the model wrote: docker, bubblewrap, or one that a plugin offers;
    auto: Docker where it is ready, else bubblewrap."""
    settings: Annotated[dict[str, Any], SettingsOf("sandbox", "name")] = Field(default_factory=dict)
    """Settings of the sandbox."""


class JudgeConfig(Section):
    """Select a judge model."""

    name: Annotated[str, Names]
    """Kind of judge: scorer, likelihood, llm, or one that a plugin offers."""
    settings: Annotated[dict[str, Any], SettingsOf("judge", "name")] = Field(default_factory=dict)
    """Settings of the judge."""


class CheckpointConfig(Section):
    """Set when checkpoints are saved and how many are kept."""

    every: Annotated[int, Field(ge=0)] = 50
    """Save every this many steps; 0: only at the end and when interrupted."""
    keep: Positive = 2
    """How many checkpoints are kept."""


class EvalConfig(Section):
    """Set how the policy is evaluated on held-out tasks."""

    every: Annotated[int, Field(ge=0)] = 0
    """Evaluate on held-out tasks every this many steps; 0: only before and after training."""
    tasks: Annotated[int, Field(ge=0)] = 128
    """Number of held-out tasks; 0: no evaluation."""
    temperature: NotNegative | None = None
    """Sampling temperature of evaluation; unset: sampling.temperature; 0: greedy."""
    also: Annotated[tuple[str, ...], Listed, Names] = ()
    """Environments that are only evaluated, to see what the model forgets while it is trained on
    the others."""


class StopConfig(Section):
    """Set when the run stops early."""

    patience: Positive | None = None
    """Stop after this many evaluations in a row (every eval.every steps) without a better held-out
    reward."""
    max_kl: Annotated[float, Field(gt=0)] | None = None
    """Stop when the KL to the reference policy, as a mean over the last 5 steps, is above this
    value."""
    max_logprob_gap: Annotated[float, Field(gt=0)] = 1.0
    """Stop when the log-probs of sampler and trainer differ by more than this many nats per token,
    as a mean over the last 5 steps: the policy then learns from tokens that it did not draw.
    Steps whose rollouts older weights have sampled (pipeline.max_staleness) do not count."""
    reward: float | None = None
    """Stop when the reward reaches this value: the held-out reward if eval.every is set, else the
    mean reward over the last 10 steps."""
    cut_off: Positive | None = None
    """Stop after this many steps in a row in which every completion was cut off at
    sampling.max_new_tokens."""
    no_signal: Positive | None = None
    """Stop after this many steps in a row in which no group had different rewards, so that nothing
    was learned from them."""


class AlarmConfig(Section):
    """Set how the listener `alarms` looks for reward hacking and collapse while a run goes on."""

    enabled: bool = True
    """Look for reward hacking and collapse at every step. Weights, tasks and random numbers of the
    run are the same with and without alarms."""
    every: Annotated[int, Field(ge=0)] = 10
    """In the first step and every this many steps, judge answers that must not be paid (canaries),
    audit the step's attempts, and measure the log-probability of reference answers; 0: never, and
    look only at the attempts of each step. For 8 tasks of arithmetic that is 200 verdicts, so where
    a verdict is slow or is paid for, a larger number or fewer alarms.tasks save most of it."""
    tasks: Positive = 16
    """Most tasks of a step on which each canary is tried, and held-out tasks whose reference
    answers are measured."""
    chance: Annotated[float, Field(gt=0, le=0.1)] = 0.001
    """The chance of a false alarm of each comparison in a whole run; for canaries and duplicates, 1
    over it is the least expected number of looks until a false alarm."""
    stop: bool = False
    """Stop with a checkpoint after the step in which an alarm begins, as on a requested stop."""


class MemberConfig(Section):
    """Configure one environment of a mixture."""

    share: NotNegative = 1.0
    """Its share of the prompts, relative to the other shares; 0: it is only evaluated."""
    level: Fraction | None = None
    """Difficulty of its tasks; unset: the run's level."""
    env: Annotated[dict[str, Any], SettingsOf("environment", "")] = Field(default_factory=dict)
    """Its settings."""
    weights: Annotated[dict[str, float], Harmless] = Field(default_factory=dict)
    """New weights for its reward parts."""


class CurriculumConfig(Section):
    """Set how the difficulty follows the pass rate."""

    enabled: bool = False
    """Adapt the level of each environment to its pass rate, starting at `level`. Held-out tasks
    keep the initial level."""
    low: Fraction = 0.3
    """The level falls when a smaller share of recent attempts passes."""
    high: Fraction = 0.7
    """The level rises when a larger share of recent attempts passes."""
    attempts: Positive = 128
    """Number of recent completions at a level from which the pass rate is computed."""
    step: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How much the level changes at a time."""


class SftConfig(Section):
    """Set the warm start, `grpo sft` (`grpo run` ignores this section)."""

    data: str | None = None
    """JSONL file of examples: prompt and completion, each a text or messages, or messages that end
    with the assistant's; unset: the environment's reference answers."""
    batch_size: Positive = 32
    """Examples per optimizer step."""
    max_length: Positive | None = None
    """Examples with more tokens than this, including the prompt, are left out; unset: the model's
    context length."""


class LogConfig(Section):
    """Set what a run logs and where metrics are sent."""

    rollouts: Literal["all", "sample", "none"] = "all"
    """Rollouts in rollouts.jsonl: all; sample: log.sample_groups groups of each training step,
    chosen by the run's seed, and all of the evaluations; none: only the verdicts of the
    evaluations, without prompts and completions, so that gains and `grpo compare` still work."""
    sample_groups: Positive = 2
    """Groups of each training step that log.rollouts=sample keeps."""
    tokens: bool = False
    """Log the ids and log-probabilities of the tokens that the policy wrote."""
    ratios: bool = False
    """After each update, log the importance ratio and the entropy of each token that was trained
    on, as they entered the loss in the last pass over it."""
    compress: bool = True
    """At a checkpoint, compress the content of rollouts.jsonl, once it is larger than log.part_mb,
    into rollouts-000001.jsonl.gz and so on."""
    part_mb: Annotated[float, Field(gt=0)] = 64
    """Size of rollouts.jsonl, in MB, above which it is compressed."""
    samples_every: Annotated[int, Field(ge=0)] = 10
    """Write one group with its verdicts to log.txt every this many steps; 0: never."""
    trackers: Annotated[
        tuple[Annotated[str, Named(("tensorboard", "wandb", "mlflow", "trackio")), Names], ...],
        Listed,
    ] = ()
    """Where metrics are sent in addition to metrics.jsonl: tensorboard, wandb, mlflow, trackio or
    plugin:NAME; a list, or separated by commas. Each tracker is configured by its own environment
    variables, such as WANDB_MODE=offline."""
    project: Annotated[str, Harmless] = "grpo"
    """Name under which trackers store the run: the project in wandb and trackio, the experiment in
    mlflow."""
