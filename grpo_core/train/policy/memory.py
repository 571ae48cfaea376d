"""How much memory a run will need, by what it is for, before its first step: most of it counted, the rest measured on a small pass.

Parameters, gradients and the optimizer's state are counted in the loaded policy. What a forward pass keeps for the backward pass is
measured on three passes of a few tokens: it grows with the tokens, and with their pairs where attention keeps a mask. So the estimate
knows nothing of architectures, and holds for quantised weights and recomputed layers, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.train.compute import recompute
from grpo_core.train.compute.batch import Row
from grpo_core.train.compute.kv import bytes_per_token
from grpo_core.train.compute.logprob import COPIES
from grpo_core.train.compute.prepack import FEW_ROWS, FEW_TOKENS
from grpo_core.train.models.device import free_memory, used_memory
from grpo_core.train.policy.causal import Policy

MB = 2**20
NODES = (80, 160, 240)
"""Of the passes that are measured."""
DRAWING = 5
"""Tensors of the size of all lines' logits while a token is drawn: logits, probabilities, their sums, and those of the rows."""
SPARE = 1.25
"""Room for keys and values beside those that are there."""
QUANTISED, BLOCK = 4096, 256
"""bitsandbytes keeps the state of smaller tensors in float32, and a scale for each block of larger ones."""
HEAP = 0.55
"""What a CPU's heap keeps of what an update has freed, as a share of what it computes with; measured 0.3 to 0.8."""
HEADROOM = 0.05
"""What allocators lose between tensors, as a share of the rest."""
TOLERANCE = 1.2
"""The estimate is within so much of the measured peak; a run is refused where even this leaves no room."""

ADVICE = {
    "weights": "model.quantization=4bit, model.dtype=bfloat16 or a smaller model",
    "reference": "lora.enabled=true, which needs no copy of the model, or kl.beta=0",
    "gradients": "lora.enabled=true",
    "optimizer": "optimizer.name=adamw8bit or lora.enabled=true",
    "weights for decoding": "sampling.prepack=false",
    "keys and values": "a lower sampling.kv_mb or sampling.max_rows",
    "decoding": "a lower sampling.max_rows",
    "activations": "trainer.gradient_checkpointing=true or a lower trainer.micro_batch_tokens",
    "logits": "a lower trainer.logits_mb",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """The largest batches of a run. rows: of an optimizer step, each as long as it may become; decoded: how many prompts are answered
    together, how many attempts each; prompt, new: most tokens of a prompt and after it."""

    rows: Sequence[Row]
    decoded: Sequence[tuple[int, int]]
    prompt: int
    new: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by component. always: there all the time; rollout, update: while one or the other is under way; free: what the device
    has left for this process, its present share included."""

    always: Mapping[str, float]
    rollout: Mapping[str, float]
    update: Mapping[str, float]
    free: float

    @property
    def components(self) -> dict[str, float]:
        """Those of the peak."""
        phase = max(self.rollout, self.update, key=lambda phase: sum(phase.values()))
        found = {**self.always, **phase}
        return {
            name: size
            for name, size in {**found, "headroom": HEADROOM * sum(found.values())}.items()
            if size >= 1
        }

    @property
    def peak(self) -> float:
        return sum(self.components.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {said(size)}" for name, size in self.components.items())
        return f"{said(self.peak)} at most, of {said(self.free)} that are free: {parts}"

    def check(self, config: RunConfig, warn: Callable[[str], None]) -> None:
        """Raises ConfigError where the run cannot fit; warns where it may not. Not with trainer.memory_check=off."""
        if config.trainer.memory_check == "off" or self.peak <= self.free:
            return
        largest = sorted(
            (name for name in self.components if name in ADVICE),
            key=lambda name: -self.components[name],
        )
        text = f"this run is estimated to need {self}. What would help most: {'; '.join(ADVICE[name] for name in largest[:2])}"
        if config.trainer.memory_check == "refuse" and self.peak > TOLERANCE * self.free:
            raise ConfigError(f"{text}. trainer.memory_check=warn starts it nevertheless")
        warn(text)


class Footprint:
    """What a policy needs, measured once it is loaded and before its weights are shared out over processes.

    Bytes. weights, reference, adapter: of the tensors on its device; moving: of the largest layer that is brought there to compute;
    process: what this process holds besides; kept: of a forward pass as (fixed, for each token, for each pair of tokens); layer: what a
    layer makes of a token.
    """

    def __init__(self, policy: Policy) -> None:
        model, device = policy.model, policy.device
        own, every = (
            list(model.parameters()),
            [p for each in policy.reference.models() for p in each.parameters()],
        )
        here = {id(p): p for p in every if p.device.type == device.type}.values()
        ids = {id(p) for p in own}
        self.trainable = [p for p in own if p.requires_grad]
        self.reference = sum(p.nbytes for p in here if id(p) not in ids)
        self.adapter = sum(p.nbytes for p in self.trainable) if hasattr(model, "peft_config") else 0
        self.weights = sum(p.nbytes for p in here) - self.reference - self.adapter
        self.process = max(0, used_memory(device) - self.reference - self.adapter - self.weights)
        layers = recompute.layers(model)
        self.moving = max(
            (
                sum(p.nbytes for p in layer.parameters() if p.device.type == "meta")
                for layer in layers
            ),
            default=0,
        )
        counts = [nodes for nodes in NODES if policy.context is None or nodes < policy.context] or [
            2
        ]
        self.kept = _curve([(nodes, _kept(policy, nodes)) for nodes in counts])
        self.layer = self.kept[1] / max(1, len(layers))
        self.recomputed = bool(layers) and recompute.is_recomputed(layers[0])
        if self.recomputed:
            with recompute.kept(layers[0]):
                self.layer = max(
                    0.0,
                    _curve([(nodes, _kept(policy, nodes)) for nodes in counts])[1] - self.kept[1],
                )

    def estimate(
        self, policy: Policy, config: RunConfig, work: Workload, *, processes: int = 1
    ) -> Estimate:
        """For a run of `config`. processes: so many share out the weights; 1: each has all."""
        trained = sum(p.nbytes for p in self.trainable)
        shared = {
            "weights": self.weights,
            "adapter": self.adapter,
            "gradients": trained,
            "optimizer": self.optimizer_bytes(config),
        }
        always = {
            "process": self.process,
            "reference": self.reference,
            **{name: size / processes for name, size in shared.items()},
        }
        phases = [self._decoding(policy, config, work, *rows) for rows in work.decoded]
        rollout = max(phases, key=lambda phase: sum(phase.values()), default={})
        whole = {"weights put together": self.weights * (1 - 1 / processes)}
        return Estimate(
            always,
            {**rollout, **whole},
            self._update(policy, config, work),
            free_memory(policy.device),
        )

    def optimizer_bytes(self, config: RunConfig) -> float:
        """Return the bytes of the running means that the optimizer keeps."""
        return _optimizer(self.trainable, config)

    def _decoding(
        self, policy: Policy, config: RunConfig, work: Workload, prompts: int, attempts: int
    ) -> dict[str, float]:
        rows = min(prompts * attempts, config.sampling.max_rows)
        prompts = min(prompts, rows)
        tokens = (
            prompts * work.prompt + rows * work.new
            if policy.shared_prefix
            else rows * (work.prompt + work.new)
        )
        pays = (
            config.sampling.prepack
            and rows >= FEW_ROWS
            and work.new >= FEW_TOKENS
            and not policy.fills
        )
        drawn = rows * work.new if policy.fills else rows
        return {
            "weights for decoding": policy.decoding_bytes(packed=pays) + self.moving,
            "keys and values": min(
                SPARE * tokens * bytes_per_token(policy.model), config.sampling.kv_mb * MB
            )
            if not policy.fills
            else 0.0,
            "decoding": DRAWING * drawn * _vocabulary(policy) * 4
            + prompts * work.prompt * self.layer,
        }

    def _update(self, policy: Policy, config: RunConfig, work: Workload) -> dict[str, float]:
        most = config.trainer.micro_batch_tokens
        split = [
            (tokens, len(trees)) for trees, tokens in policy.passes(work.rows, max_tokens=most)
        ]
        tokens, trees = max(split, default=(0, 1))
        tokens = max(
            tokens, min(most, sum(tokens for tokens, _ in split))
        )  # shorter attempts fill a pass better
        fixed, each, pair = self.kept
        kept = fixed + tokens * (each + pair * tokens / trees)
        computing = (
            (3 if self.recomputed else 2) * tokens * self.layer
        )  # the gradients of a layer, and what was not kept of it
        every = COPIES * tokens * _vocabulary(policy) * 4
        logits = min(every, policy.logits_bytes) if policy.logits_bytes else every
        heap = (
            HEAP * (kept + computing + logits)
            if policy.device.type == "cpu" and not self.recomputed
            else 0.0
        )
        return {
            "activations": kept + computing + self.moving,
            "logits": logits,
            "freed, but kept by the heap": heap,
        }


def _kept(policy: Policy, nodes: int) -> int:
    """Bytes that a forward pass of a row of so many nodes keeps for its backward pass."""
    known = {
        p.untyped_storage().data_ptr() for p in policy.model.parameters() if p.device.type != "meta"
    }
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    asked = max(1, nodes // 2)
    row = policy.blank(asked, nodes - asked + 1, 1)
    (micro,) = policy.micro_batches([row], max_tokens=2 * nodes, dtype=torch.float32)
    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = policy.logprobs(micro, temperature=1.0)
    del graph
    return sum(found.values())


def _curve(points: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """(fixed, each, pair) of fixed + each * n + pair * n ** 2 through up to three points."""
    sizes = torch.tensor(
        [[float(n) ** power for power in range(len(points))] for n, _ in points],
        dtype=torch.float64,
    )
    found = (
        torch.linalg.solve(
            sizes, torch.tensor([float(size) for _, size in points], dtype=torch.float64)
        )
        .clamp(min=0)
        .tolist()
    )
    fixed, each, pair = [*found, 0.0, 0.0][:3]
    return (0.0, fixed / points[0][0], 0.0) if len(points) == 1 else (fixed, each, pair)


def _optimizer(parameters: Sequence[Tensor], config: RunConfig) -> float:
    if config.optimizer.name == "adamw":
        return float(2 * sum(p.nbytes for p in parameters))
    small = sum(p.numel() for p in parameters if p.numel() < QUANTISED)
    large = sum(p.numel() for p in parameters) - small
    return 8.0 * small + 2 * large * (1 + 4 / BLOCK)


def _vocabulary(policy: Policy) -> int:
    return int(policy.model.config.get_text_config(decoder=True).vocab_size)


def said(size: float) -> str:
    """Return a number of bytes for people."""
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / MB:.0f} MiB" if size >= MB else f"{math.ceil(size / 2**10)} KiB"
