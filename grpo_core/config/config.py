"""Define RunConfig, the complete and validated description of a run.

`grpo_core.config.overrides` builds it from recipes, command-line options and `--set`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grpo_core.config import settings


class RunConfig(settings.Section):
    """Hold every setting that decides a run. `grpo run --recipe config.json` replays one."""

    method: Literal["grpo", "sft"] = "grpo"
    """Training method: grpo (`grpo run`) or sft (`grpo sft`, supervised fine-tuning on given
    answers)."""
    environment: str | None = None
    """Name of the environment (`grpo envs`), or FILE.py:CLASS."""
    mixture: dict[str, settings.MemberConfig] = Field(default_factory=dict)
    """Several environments by name, instead of one; all completions of a group come from the same
    environment."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment."""
    weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
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
    plugins: tuple[str, ...] = ()
    """Plugins whose event hooks observe this run."""
    model: settings.ModelConfig = settings.ModelConfig()
    sampling: settings.SamplingConfig = settings.SamplingConfig()
    optimizer: settings.OptimizerConfig = settings.OptimizerConfig()
    schedule: settings.ScheduleConfig = settings.ScheduleConfig()
    kl: settings.KLConfig = settings.KLConfig()
    lora: settings.LoraConfig = settings.LoraConfig()
    advantage: settings.AdvantageConfig = settings.AdvantageConfig()
    loss: settings.LossConfig = settings.LossConfig()
    trainer: settings.TrainerConfig = settings.TrainerConfig()
    verify: settings.VerifyConfig = settings.VerifyConfig()
    sandbox: settings.SandboxConfig = settings.SandboxConfig()
    judges: dict[str, settings.JudgeConfig] = Field(default_factory=dict)
    """Judge models, by the name under which environments request them, as in
    judges.default.name=scorer."""
    checkpoint: settings.CheckpointConfig = settings.CheckpointConfig()
    eval: settings.EvalConfig = settings.EvalConfig()
    stop: settings.StopConfig = settings.StopConfig()
    curriculum: settings.CurriculumConfig = settings.CurriculumConfig()
    sft: settings.SftConfig = settings.SftConfig()
    log: settings.LogConfig = settings.LogConfig()
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Versions and fingerprints that a run recorded; a replay ignores them."""

    @model_validator(mode="after")
    def _check_consistency(self) -> RunConfig:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs exclude each other; set only one")
        if (
            not self.has_data
            and self.environment is None
            and not any(member.share for member in self.mixture.values())
        ):
            data_option = ", or --data FILE" if self.method == "sft" else ""
            raise ValueError(
                f"no environment is named; use --env NAME (`grpo envs` lists them){data_option}"
            )
        if self.mixture and (self.environment is not None or self.env or self.weights):
            raise ValueError(
                "mixture replaces environment, env and weights; "
                "write mixture.NAME.env and mixture.NAME.weights"
            )
        if self.stop.patience is not None and not (self.eval.every and self.eval.tasks):
            raise ValueError(
                "stop.patience counts evaluations; set eval.every as well (--eval-every)"
            )
        if self.stop.max_kl is not None and self.kl.beta == 0:
            raise ValueError(
                "stop.max_kl needs the reference policy, which kl.beta=0 leaves out; "
                "set kl.beta above 0 or remove stop.max_kl"
            )
        if self.method == "grpo" and self.lora.dropout:
            raise ValueError(
                "lora.dropout is for `grpo sft` only: in GRPO it would make every importance ratio "
                "and KL a random number; set it to 0"
            )
        self._check_algorithm()
        self._check_sharding()
        self._check_weights()
        if self.curriculum.low >= self.curriculum.high:
            raise ValueError(
                f"curriculum.low is {self.curriculum.low:g}; "
                f"it has to be below curriculum.high, {self.curriculum.high:g}"
            )
        if self.trainer.minibatches > self.prompts_per_step:
            raise ValueError(
                f"trainer.minibatches is {self.trainer.minibatches}, "
                f"but there are only {self.prompts_per_step} prompts per step; lower it, or raise "
                "prompts_per_step"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0: all completions of a group would be equal; "
                "set it above 0 (eval.temperature may be 0)"
            )
        return self

    def _check_algorithm(self) -> None:
        advantage, kept_count = self.advantage, self.advantage.keep or self.group_size
        if kept_count > self.group_size:
            raise ValueError(
                f"advantage.keep is {kept_count}, "
                f"but a group has only {self.group_size} completions; lower it, or raise "
                "group_size"
            )
        if advantage.name in settings.K_ESTIMATORS:
            smallest_k = 2 if advantage.name == "pkpo" else 1
            if advantage.k is None or not smallest_k <= advantage.k < kept_count:
                raise ValueError(
                    f"advantage.name={advantage.name} needs advantage.k "
                    f"from {smallest_k} to {kept_count - 1}; found {advantage.k}"
                )
        elif advantage.k is not None and not advantage.name.startswith("plugin:"):
            raise ValueError(
                f"advantage.k is {advantage.k}, but the estimator {advantage.name!r} has no k; "
                "remove advantage.k"
            )
        if self.loss.dual_clip is not None and self.loss.name != "clip":
            raise ValueError(f"loss.dual_clip belongs to loss.name=clip; found {self.loss.name}")
        if (
            self.kl.beta == 0
            and (self.kl.target is not None or self.kl.refresh_every is not None)
            and self.loss.anchor == "old"
        ):
            raise ValueError(
                "kl.target and kl.refresh_every need the reference policy, which kl.beta=0 leaves "
                "out; set kl.beta above 0"
            )
        self._check_added_rewards()

    def _check_added_rewards(self) -> None:
        """Refuse reward changes that the advantage estimator would ignore or distort."""
        ignoring = {
            "passk": "uses only whether a completion passed",
            "maxrl": "is for rewards that are never negative",
        }
        rescaling = {
            "gdpo": "normalises each part of the reward separately, so that a KL of any size "
            "would have the same weight"
        }
        for setting, enabled, reasons in (
            (
                "kl.placement=reward",
                self.kl.placement == "reward" and self.kl.beta > 0,
                ignoring | rescaling,
            ),
            ("advantage.overlong_buffer", self.advantage.overlong_buffer > 0, ignoring),
        ):
            if enabled and (reason := reasons.get(self.advantage.name)):
                raise ValueError(
                    f"{setting} changes the reward, but advantage.name={self.advantage.name} "
                    f"{reason}; remove one of the two, or set advantage.name to grpo, mean_only, "
                    "rloo, maxk, pkpo or best_minus_second"
                )

    def _check_sharding(self) -> None:
        if self.trainer.shard:
            for setting, enabled in (
                ("optimizer.name=adamw8bit", self.optimizer.name == "adamw8bit"),
                ("kl.refresh_every", self.kl.refresh_every is not None),
                ("model.dtype=float16", self.model.dtype == "float16"),
                ("model.quantization", self.model.quantization != "none"),
                ("model.offload", self.model.offload),
            ):
                if enabled:
                    raise ValueError(
                        f"trainer.shard does not work with {setting}; remove one of the two"
                    )

    def _check_weights(self) -> None:
        for setting, enabled in (
            ("model.quantization", self.model.quantization != "none"),
            ("model.offload", self.model.offload),
        ):
            if enabled and not self.lora.enabled:
                raise ValueError(
                    f"{setting} is for frozen weights, but lora.enabled=false trains all of them; "
                    "remove one of the two"
                )
        if self.model.offload and not self.trainer.gradient_checkpointing:
            raise ValueError(
                "model.offload needs trainer.gradient_checkpointing=true: without it the backward "
                "pass keeps every layer's weights in memory"
            )
        if self.model.offload and self.model.quantization != "none":
            raise ValueError(
                "model.offload and model.quantization do not work together; "
                "use model.quantization, which is faster"
            )

    @property
    def needs_reference(self) -> bool:
        """Return whether the loss needs log-probabilities of the reference policy."""
        return self.kl.beta > 0 or self.loss.anchor == "reference"

    @property
    def has_data(self) -> bool:
        """Return whether the examples come from a file, so that no environment is needed."""
        return self.method == "sft" and self.sft.data is not None

    def members(self) -> dict[str, settings.MemberConfig]:
        """Return the environments of the run by name; those of share 0 are only evaluated."""
        single_member = (
            {}
            if self.environment is None
            else {self.environment: settings.MemberConfig(env=self.env, weights=self.weights)}
        )
        members = {**single_member, **self.mixture}
        members |= {
            name: settings.MemberConfig(share=0.0) for name in self.eval.also if name not in members
        }
        return {
            name: (
                member
                if member.level is not None
                else member.model_copy(update={"level": self.level})
            )
            for name, member in members.items()
        }
