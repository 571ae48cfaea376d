"""Define RunConfig, the complete and validated description of a run.

`grpo_core.config.overrides` builds it from recipes, command-line options and `--set`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grpo_core.config import settings
from grpo_core.protocol.consent import Harmless, Names, SettingsOf


class RunConfig(settings.Section):
    """Hold every setting that decides a run. `grpo run --recipe config.json` replays one."""

    method: Literal["grpo", "sft"] = "grpo"
    """Training method: grpo (`grpo run`) or sft (`grpo sft`, supervised fine-tuning on given
    answers)."""
    environment: Annotated[str | None, Names] = None
    """Name of the environment (`grpo envs`), or FILE.py:CLASS."""
    mixture: dict[Annotated[str, Names], settings.MemberConfig] = Field(default_factory=dict)
    """Several environments by name, instead of one, each with a share, level, env and weights of
    its own (`grpo config explain mixture`); all completions of a group come from the same
    environment."""
    env: Annotated[dict[str, Any], SettingsOf("environment", "environment")] = Field(
        default_factory=dict
    )
    """Settings of the environment."""
    weights: dict[Annotated[str, Harmless], Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    """New weights for the environment's reward parts, by name."""
    level: settings.Fraction = 0.0
    """Difficulty of the tasks, from 0 to 1."""
    steps: settings.Positive | None = None
    """Number of batches to train on; unset: 150, or the number that epochs gives (for a file of
    examples, epochs is then 3)."""
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Passes over an environment of finite size or over a file of examples; replaces steps."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Completions per prompt; their rewards are compared with one another."""
    prompts_per_step: settings.Positive = 8
    """Prompts per step."""
    seed: int = 0
    """Random seed of the tasks, of all random draws and of the initial adapter."""
    plugins: Annotated[tuple[str, ...], settings.Listed, Harmless] = ()
    """Plugins whose listeners hear this run, besides the alarms; a list, or separated by commas."""
    model: settings.ModelConfig = settings.ModelConfig()
    sampling: settings.SamplingConfig = settings.SamplingConfig()
    sampler: settings.SamplerConfig = settings.SamplerConfig()
    endpoint: settings.EndpointConfig = settings.EndpointConfig()
    rollout: settings.RolloutConfig = settings.RolloutConfig()
    optimizer: settings.OptimizerConfig = settings.OptimizerConfig()
    schedule: settings.ScheduleConfig = settings.ScheduleConfig()
    kl: settings.KLConfig = settings.KLConfig()
    lora: settings.LoraConfig = settings.LoraConfig()
    advantage: settings.AdvantageConfig = settings.AdvantageConfig()
    loss: settings.LossConfig = settings.LossConfig()
    trainer: settings.TrainerConfig = settings.TrainerConfig()
    pipeline: settings.PipelineConfig = settings.PipelineConfig()
    verify: settings.VerifyConfig = settings.VerifyConfig()
    sandbox: settings.SandboxConfig = settings.SandboxConfig()
    judges: dict[Annotated[str, Harmless], settings.JudgeConfig] = Field(default_factory=dict)
    """Judge models, by the name under which environments request them, as in
    judges.default.name=scorer."""
    checkpoint: settings.CheckpointConfig = settings.CheckpointConfig()
    eval: settings.EvalConfig = settings.EvalConfig()
    stop: settings.StopConfig = settings.StopConfig()
    alarms: settings.AlarmConfig = settings.AlarmConfig()
    curriculum: settings.CurriculumConfig = settings.CurriculumConfig()
    sft: settings.SftConfig = settings.SftConfig()
    log: settings.LogConfig = settings.LogConfig()
    provenance: Annotated[dict[str, Any], Harmless] = Field(default_factory=dict)
    """Versions and fingerprints that a run recorded; a replay ignores them."""

    @model_validator(mode="after")
    def _check_consistency(self) -> RunConfig:
        data_option = ", or --data FILE for rows of your own"
        _refuse(
            (
                self.steps is not None and self.epochs is not None,
                "steps and epochs exclude each other; set only one",
            ),
            (
                not self.has_data
                and self.environment is None
                and not any(member.share for member in self.mixture.values()),
                f"no environment is named; use --env NAME (`grpo envs` lists them){data_option}",
            ),
            (
                self.mixture and (self.environment is not None or self.env or self.weights),
                "mixture replaces environment, env and weights; "
                "write mixture.NAME.env and mixture.NAME.weights",
            ),
            (
                self.stop.patience is not None and not (self.eval.every and self.eval.tasks),
                "stop.patience counts evaluations; set eval.every as well (--eval-every)",
            ),
            (
                self.stop.max_kl is not None and not self.kl.is_used,
                "stop.max_kl needs the reference policy, which kl.beta=0 leaves out; "
                "set kl.beta above 0 or remove stop.max_kl",
            ),
            (
                self.method == "grpo" and self.lora.dropout,
                "lora.dropout is for `grpo sft` only: in GRPO it would make every importance ratio "
                "and KL a random number; set it to 0",
            ),
        )
        self._check_algorithm()
        self._check_weights()
        _refuse(
            (
                self.curriculum.low >= self.curriculum.high,
                f"curriculum.low is {self.curriculum.low:g}; "
                f"it has to be below curriculum.high, {self.curriculum.high:g}",
            ),
            (
                self.trainer.minibatches > self.prompts_per_step,
                f"trainer.minibatches is {self.trainer.minibatches}, "
                f"but there are only {self.prompts_per_step} prompts per step; lower it, or raise "
                "prompts_per_step",
            ),
            (
                self.sampler.name == "builtin" and self.sampler.settings,
                "sampler.settings are for an engine that a plugin offers; set sampler.name, or use "
                "the settings under sampling",
            ),
            (
                self.verify.executor.name == "local" and self.verify.executor.settings,
                "verify.executor.settings are for an executor that a plugin offers; set "
                "verify.executor.name, or use the other settings under verify",
            ),
            (
                self.sampling.temperature == 0,
                "sampling.temperature is 0: all completions of a group would be equal; "
                "set it above 0 (eval.temperature may be 0)",
            ),
        )
        return self

    def _check_algorithm(self) -> None:
        advantage, kept_count = self.advantage, self.advantage.keep or self.group_size
        has_k = advantage.name in settings.K_ESTIMATORS
        smallest_k = 2 if advantage.name == "pkpo" else 1
        biasing = self._settings_that_bias() if advantage.name == "turns" else []
        _refuse(
            (
                kept_count > self.group_size,
                f"advantage.keep is {kept_count}, "
                f"but a group has only {self.group_size} completions; lower it, or raise "
                "group_size",
            ),
            (
                has_k and not smallest_k <= (advantage.k or 0) < kept_count,
                f"advantage.name={advantage.name} needs advantage.k "
                f"from {smallest_k} to {kept_count - 1}; found {advantage.k}",
            ),
            (
                not (has_k or advantage.k is None or advantage.name.startswith(settings.PLUGIN)),
                f"advantage.k is {advantage.k}, but the estimator {advantage.name!r} has no k; "
                "remove advantage.k",
            ),
            (
                self.loss.dual_clip is not None and self.loss.name != "clip",
                f"loss.dual_clip belongs to loss.name=clip; found {self.loss.name}",
            ),
            (
                (self.kl.target is not None or self.kl.refresh_every is not None)
                and not self.needs_reference,
                "kl.target and kl.refresh_every need the reference policy, which kl.beta=0 leaves "
                "out; set kl.beta above 0",
            ),
            (
                self.kl.placement == "reward" and self.kl.is_used and self.kl.estimator != "k1",
                f"kl.estimator={self.kl.estimator} in the reward does not have the gradient of the "
                "KL (k3's is nearly none); set kl.estimator=k1, or kl.placement=loss",
            ),
            *self._faults_of_full_kl(),
            *self._faults_of_added_rewards(),
            (
                biasing,
                "advantage.name=turns has the gradient of the expected reward, which these "
                f"settings would bias: {'; '.join(biasing)}",
            ),
        )

    def _faults_of_full_kl(self) -> Iterator[tuple[bool, str]]:
        """Yield the settings with which a KL over the whole vocabulary is not what it says."""
        is_full, sampling = self.kl.estimator == "full", self.sampling
        for setting, is_set in (
            (f"sampling.top_p={sampling.top_p:g}", sampling.top_p < 1),
            (f"sampling.top_k={sampling.top_k}", sampling.top_k > 0),
            (f"sampling.min_p={sampling.min_p:g}", sampling.min_p > 0),
        ):
            yield (
                is_full and is_set,
                "kl.estimator=full is the KL of whole distributions, and "
                f"{setting} draws from a part of them; remove it, or set kl.estimator=k3_st",
            )
        yield (
            is_full and self.kl.importance is True,
            "kl.importance=true weights an estimate by the tokens that were drawn, and "
            "kl.estimator=full does not depend on them; remove kl.importance",
        )

    def _settings_that_bias(self) -> list[str]:
        """Return the settings that would bias the gradient of `turns`, and what to do."""
        loss, advantage = self.loss, self.advantage
        faults = (
            (
                loss.aggregation not in ("sequence_sum", "constant"),
                f"loss.aggregation={loss.aggregation} weighs tokens by lengths (set it to "
                "sequence_sum or constant)",
            ),
            (loss.mask_truncated, "loss.mask_truncated leaves out long attempts (set it to false)"),
            (
                loss.level != "token",
                f"loss.level={loss.level} mixes the turns' advantages (set it to token)",
            ),
            (
                loss.anchor != "old",
                f"loss.anchor={loss.anchor} weighs tokens by another policy (set it to old)",
            ),
            (
                advantage.keep is not None,
                f"advantage.keep={advantage.keep} selects attempts by reward (remove it)",
            ),
            (advantage.whiten, "advantage.whiten divides by a spread (set it to false)"),
        )
        return [message for found, message in faults if found]

    def _faults_of_added_rewards(self) -> Iterator[tuple[bool, str]]:
        """Yield the reward changes that the advantage estimator would ignore or distort."""
        ignoring = {
            "passk": "uses only whether a completion passed",
            "maxrl": "is for rewards that are never negative",
        }
        rescaling = "normalises each part of the reward separately, so that "
        for setting, enabled, rescaled in (
            (
                "kl.placement=reward",
                self.kl.placement == "reward" and self.kl.is_used,
                "a KL of any size would have the same weight",
            ),
            (
                "advantage.overlong_buffer",
                self.advantage.overlong_buffer > 0,
                "a few tokens more would count as much as a right answer",
            ),
        ):
            reasons = {**ignoring, "gdpo": rescaling + rescaled}
            yield (
                enabled and self.advantage.name in reasons,
                f"{setting} changes the reward, but advantage.name={self.advantage.name} "
                f"{reasons.get(self.advantage.name)}; remove one of the two, or set advantage.name "
                "to grpo, mean_only, rloo, maxk, pkpo or best_minus_second",
            )

    def _check_weights(self) -> None:
        """Refuse ways of storing the weights that do not work together."""
        quantized, offload = self.model.quantization != "none", self.model.offload
        of_frozen_weights = {"model.quantization": quantized, "model.offload": offload}
        never_sharded = {
            "optimizer.name=adamw8bit": self.optimizer.name == "adamw8bit",
            "kl.refresh_every": self.kl.refresh_every is not None,
            "model.dtype=float16": self.model.dtype == "float16",
            **of_frozen_weights,
        }
        _refuse(
            *(
                (
                    self.trainer.shard and enabled,
                    f"trainer.shard does not work with {setting}; remove one of the two",
                )
                for setting, enabled in never_sharded.items()
            ),
            *(
                (
                    enabled and not self.lora.enabled,
                    f"{setting} is for frozen weights, but lora.enabled=false trains all of them; "
                    "remove one of the two",
                )
                for setting, enabled in of_frozen_weights.items()
            ),
            (
                offload and not self.trainer.gradient_checkpointing,
                "model.offload needs trainer.gradient_checkpointing=true: without it the backward "
                "pass keeps every layer's weights in memory",
            ),
            (
                offload and quantized,
                "model.offload and model.quantization do not work together; "
                "use model.quantization, which is faster",
            ),
        )

    @property
    def needs_reference(self) -> bool:
        """Return whether the loss needs log-probabilities of the reference policy."""
        return self.kl.is_used or self.loss.anchor == "reference"

    @property
    def kl_importance(self) -> bool:
        """Return whether the KL in the loss is weighted by the importance ratio."""
        if self.kl.importance is not None:
            return self.kl.importance
        several_steps = self.trainer.mu * self.trainer.minibatches > 1
        return self.kl.estimator == "k1" or (self.kl.estimator in ("k2", "k3_st") and several_steps)

    @property
    def has_data(self) -> bool:
        """Return whether the examples come from a file, so that no environment is needed."""
        return self.method == "sft" and self.sft.data is not None

    def members(self) -> dict[str, settings.MemberConfig]:
        """Return the environments of the run by name; those of share 0 are only evaluated."""
        members = (
            self.mixture
            if self.environment is None
            else {self.environment: settings.MemberConfig(env=self.env, weights=self.weights)}
        )
        evaluated = {
            name: settings.MemberConfig(share=0.0) for name in self.eval.also if name not in members
        }
        return {
            name: (
                member
                if member.level is not None
                else member.model_copy(update={"level": self.level})
            )
            for name, member in (members | evaluated).items()
        }


def _refuse(*faults: tuple[object, str]) -> None:
    """Raise ValueError with the message of the first fault that is there.

    Args:
        faults: whether the fault is there, by its truth value, and the message.
    """
    for found, message in faults:
        if found:
            raise ValueError(message)
