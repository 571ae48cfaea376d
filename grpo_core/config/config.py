"""The complete description of a run, validated at the border; `overrides` makes it of recipes, options and `--set`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grpo_core.config import settings


class RunConfig(settings.Section):
    """Everything that decides a run. `grpo run --recipe config.json` replays one."""

    method: Literal["grpo", "sft"] = "grpo"
    """What trains: grpo (`grpo run`), or sft (`grpo sft`, supervised fine-tuning on given answers)."""
    environment: str | None = None
    """Name of the environment (`grpo envs`), or FILE.py:CLASS."""
    mixture: dict[str, settings.MemberConfig] = Field(default_factory=dict)
    """Several environments by name, instead of one; a group never mixes."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment."""
    weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """New weights for the environment's reward parts, by name."""
    level: settings.Fraction = 0.0
    """Difficulty of the tasks, from 0 to 1."""
    steps: settings.Positive | None = None
    """Batches to train on; unset: 150, or what epochs gives (for a file of examples 3)."""
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Passes over an environment of finite size or a file of examples, instead of steps."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Completions of each prompt, compared with one another."""
    prompts_per_step: settings.Positive = 8
    """Prompts of each step."""
    seed: int = 0
    """Decides tasks, draws and initial adapter."""
    plugins: tuple[str, ...] = ()
    """Plugins whose event hooks watch this run."""
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
    """Judge models by the names under which environments ask for them, as in judges.default.name=scorer."""
    checkpoint: settings.CheckpointConfig = settings.CheckpointConfig()
    eval: settings.EvalConfig = settings.EvalConfig()
    stop: settings.StopConfig = settings.StopConfig()
    curriculum: settings.CurriculumConfig = settings.CurriculumConfig()
    sft: settings.SftConfig = settings.SftConfig()
    log: settings.LogConfig = settings.LogConfig()
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Versions and fingerprints that a run recorded; a replay ignores them."""

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs exclude each other; set one of them")
        if (
            not self.has_data
            and self.environment is None
            and not any(member.share for member in self.mixture.values())
        ):
            data = ", or --data FILE" if self.method == "sft" else ""
            raise ValueError(
                f"no environment is named; use --env NAME (`grpo envs` lists them){data}"
            )
        if self.mixture and (self.environment is not None or self.env or self.weights):
            raise ValueError(
                "mixture stands instead of environment, env and weights; write mixture.NAME.env and mixture.NAME.weights"
            )
        if self.stop.patience is not None and not (self.eval.every and self.eval.tasks):
            raise ValueError("stop.patience counts evaluations; set eval.every, too (--eval-every)")
        if self.stop.max_kl is not None and self.kl.beta == 0:
            raise ValueError(
                "stop.max_kl needs the reference, which kl.beta=0 leaves out; set kl.beta above 0 or leave stop.max_kl away"
            )
        if self.method == "grpo" and self.lora.dropout:
            raise ValueError(
                "lora.dropout is for `grpo sft` only: in GRPO it would make every ratio and KL a random number; set it to 0"
            )
        self._check_algorithm()
        self._check_sharding()
        self._check_weights()
        if self.curriculum.low >= self.curriculum.high:
            raise ValueError(
                f"curriculum.low is {self.curriculum.low:g}; it has to be below curriculum.high, {self.curriculum.high:g}"
            )
        if self.trainer.minibatches > self.prompts_per_step:
            raise ValueError(
                f"trainer.minibatches is {self.trainer.minibatches}, but there are only {self.prompts_per_step} prompts per step"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0: all completions of a group would be equal; set it above 0 (eval.temperature may be 0)"
            )
        return self

    def _check_algorithm(self) -> None:
        advantage, attempts = self.advantage, self.advantage.keep or self.group_size
        if attempts > self.group_size:
            raise ValueError(
                f"advantage.keep is {attempts}, but a group has only {self.group_size} attempts"
            )
        if advantage.name in settings.K_ESTIMATORS:
            least = 2 if advantage.name == "pkpo" else 1
            if advantage.k is None or not least <= advantage.k < attempts:
                raise ValueError(
                    f"advantage.name={advantage.name} needs advantage.k from {least} to {attempts - 1}; found {advantage.k}"
                )
        elif advantage.k is not None and not advantage.name.startswith("plugin:"):
            raise ValueError(
                f"advantage.k is {advantage.k}, but the estimator {advantage.name!r} has no k; leave it away"
            )
        if self.loss.dual_clip is not None and self.loss.name != "clip":
            raise ValueError(f"loss.dual_clip belongs to loss.name=clip; found {self.loss.name}")
        if (
            self.kl.beta == 0
            and (self.kl.target is not None or self.kl.refresh_every is not None)
            and self.loss.anchor == "old"
        ):
            raise ValueError(
                "kl.target and kl.refresh_every are about the reference, which kl.beta=0 leaves out; set kl.beta above 0"
            )
        self._check_added_rewards()

    def _check_added_rewards(self) -> None:
        """What is added to the rewards has to reach the advantages as what it is."""
        deaf = {
            "passk": "looks only at whether an attempt passed",
            "maxrl": "is for rewards that are never negative",
        }
        of_any_size = {
            "gdpo": "normalises each part of the reward by itself, so that a KL of any size would weigh the same"
        }
        for setting, on, reasons in (
            (
                "kl.placement=reward",
                self.kl.placement == "reward" and self.kl.beta > 0,
                deaf | of_any_size,
            ),
            ("advantage.overlong_buffer", self.advantage.overlong_buffer > 0, deaf),
        ):
            if on and (why := reasons.get(self.advantage.name)):
                raise ValueError(
                    f"{setting} changes the reward, but advantage.name={self.advantage.name} {why}; leave one of them away, or set "
                    "advantage.name to grpo, mean_only, rloo, maxk, pkpo or best_minus_second"
                )

    def _check_sharding(self) -> None:
        if self.trainer.shard:
            for setting, wrong in (
                ("optimizer.name=adamw8bit", self.optimizer.name == "adamw8bit"),
                ("kl.refresh_every", self.kl.refresh_every is not None),
                ("model.dtype=float16", self.model.dtype == "float16"),
                ("model.quantization", self.model.quantization != "none"),
                ("model.offload", self.model.offload),
            ):
                if wrong:
                    raise ValueError(
                        f"trainer.shard does not go with {setting}; leave one of them away"
                    )

    def _check_weights(self) -> None:
        for setting, on in (
            ("model.quantization", self.model.quantization != "none"),
            ("model.offload", self.model.offload),
        ):
            if on and not self.lora.enabled:
                raise ValueError(
                    f"{setting} is for frozen weights, but lora.enabled=false trains all of them; leave one of them away"
                )
        if self.model.offload and not self.trainer.gradient_checkpointing:
            raise ValueError(
                "model.offload needs trainer.gradient_checkpointing=true: without it the backward pass holds on to every layer's weights"
            )
        if self.model.offload and self.model.quantization != "none":
            raise ValueError(
                "model.offload and model.quantization do not go together; take model.quantization, which is faster"
            )

    @property
    def needs_reference(self) -> bool:
        """Whether anything asks for the reference's log-probs."""
        return self.kl.beta > 0 or self.loss.anchor == "reference"

    @property
    def has_data(self) -> bool:
        """Whether the examples come from a file, so that no environment is needed."""
        return self.method == "sft" and self.sft.data is not None

    def members(self) -> dict[str, settings.MemberConfig]:
        """The environments of the run by name; those of share 0 are only evaluated."""
        one = (
            {}
            if self.environment is None
            else {self.environment: settings.MemberConfig(env=self.env, weights=self.weights)}
        )
        members = {**one, **self.mixture}
        members |= {
            name: settings.MemberConfig(share=0.0) for name in self.eval.also if name not in members
        }
        return {
            name: m if m.level is not None else m.model_copy(update={"level": self.level})
            for name, m in members.items()
        }
