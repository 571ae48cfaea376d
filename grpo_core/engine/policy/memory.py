"""Estimate how much memory a run needs, by purpose, before its first step.

Most of it is counted, the rest is measured on small passes. Parameters, gradients and the
optimizer's state are counted in the loaded policy. What a forward pass keeps for the backward pass
is measured on three passes of a few tokens: it grows with the tokens, and with their pairs where
attention keeps a mask. So the estimate depends on no architecture, and holds for quantised weights
and recomputed layers, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from grpo_core.config.config import RunConfig
from grpo_core.engine.compute import recompute
from grpo_core.engine.compute.logprob import COPIES, COPIES_WITH_REFERENCE
from grpo_core.engine.compute.openmp import considerate_threads
from grpo_core.engine.compute.prepack import FEW_ROWS, FEW_TOKENS
from grpo_core.engine.models.device import free_memory, used_memory
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.memory_estimate import MB, MemoryEstimate, Workload
from grpo_core.engine.policy.sharding import units
from grpo_core.engine.policy.ways import DecodingWay
from grpo_core.engine.ranks import BUCKET_BYTES

NODES = (80, 112, 144)
"""Sizes, in tokens, of the passes that are measured."""
DRAWING = 5
"""Number of tensors of the size of all lines' logits that exist while a token is drawn: logits,
probabilities, their cumulative sums, and those of the rows."""
SPARE = 1.25
"""Capacity of the cache relative to the keys and values in it."""
QUANTISED, BLOCK = 4096, 256
"""bitsandbytes keeps the state of tensors with fewer numbers than QUANTISED in float32, and a scale
for each block of BLOCK numbers of larger ones."""
HEAP = 0.25
"""Freed memory of an update that a CPU's heap keeps, as a share of the memory that the update
computes with; measured 0 to 0.42. Sampling uses it again."""
LATER = 32 * MB
"""What a process on a CPU holds more after its first steps, of code and libraries that they use
first; measured 10 to 40 MiB."""
GATHERED_UNITS = 2
"""Layers whose sharded weights are gathered at the same time in an update: the one that computes,
and the next."""


class Footprint:
    """Measure what a loaded policy needs, before its weights are sharded over processes."""

    def __init__(self, policy: Policy) -> None:
        with considerate_threads(policy.device):
            self._measure(policy)

    def _measure(self, policy: Policy) -> None:
        model, device = policy.model, policy.device
        own_parameters = list(model.parameters())
        on_device = {
            id(p): p
            for computing in policy.reference.models()
            for p in computing.parameters()
            if p.device.type == device.type
        }.values()
        own_ids = {id(p) for p in own_parameters}
        self.trainable: list[Tensor] = [p for p in own_parameters if p.requires_grad]
        """Tensors that are trained."""
        self.reference = sum(p.nbytes for p in on_device if id(p) not in own_ids)
        """Bytes of the reference's own tensors on the device."""
        self.adapter = sum(p.nbytes for p in self.trainable) if hasattr(model, "peft_config") else 0
        """Bytes of the adapter's tensors on the device."""
        self.weights = sum(p.nbytes for p in on_device) - self.reference - self.adapter
        """Bytes of the other weights on the device."""
        self.process = self._other_bytes(device)
        """Bytes that this process holds besides."""
        layers = recompute.layers(model)
        self.moving = max(
            (
                sum(p.nbytes for p in layer.parameters() if p.device.type == "meta")
                for layer in layers
            ),
            default=0,
        )
        """Bytes of the largest offloaded layer, which is moved to the device to compute."""
        counts = [nodes for nodes in NODES if policy.context is None or nodes < policy.context] or [
            2
        ]
        self.kept = fit_curve([(nodes, _measure_kept(policy, nodes)) for nodes in counts])
        """Bytes that a forward pass keeps: (fixed, per token, per pair of tokens)."""
        self.layer = self.kept[1] / max(1, len(layers))
        """Bytes that a layer computes per token."""
        self.recomputed = bool(layers) and recompute.is_recomputed(layers[0])
        if self.recomputed:
            with recompute.kept(layers[0]):
                self.layer = max(
                    0.0,
                    fit_curve([(nodes, _measure_kept(policy, nodes)) for nodes in counts])[1]
                    - self.kept[1],
                )
        self.gathered = _gathered_bytes(model, device)
        """Bytes of whole weights, and of their gradients, that an update with sharded ones uses."""

    def estimate(
        self, policy: Policy, config: RunConfig, work: Workload, *, processes: int = 1
    ) -> MemoryEstimate:
        """Estimate the memory of a run of `config`.

        Args:
            policy: the measured policy.
            config: the configuration of the run.
            work: its largest batches.
            processes: number of processes of the run; they share the weights if those are sharded.
        """
        shares = processes if policy.sharded else 1
        sharded = {
            "weights": self.weights,
            "reference": self.reference,
            "adapter": self.adapter,
            "gradients": sum(p.nbytes for p in self.trainable),
            "optimizer": self.optimizer_bytes(config),
        }
        always = {
            # Environments and their libraries have come since.
            "process": max(self.process, self._other_bytes(policy.device))
            + (LATER if policy.device.type == "cpu" else 0),
            **{name: size / shares for name, size in sharded.items()},
        }
        update = self._update(policy, config, work)
        computing = sum(update.values())
        heap = HEAP * computing if policy.device.type == "cpu" and not self.recomputed else 0.0
        sums = min(BUCKET_BYTES, 8 * sum(p.numel() for p in self.trainable))
        rollout = max(
            (self._decoding(policy, config, work, *rows) for rows in work.decoded),
            key=lambda phase: sum(phase.values()),
            default={},
        )
        return MemoryEstimate(
            always,
            {
                **rollout,
                "gathered weights": (self.weights + self.adapter) * (1 - 1 / shares),
            },
            {
                **update,
                "gathered weights": self.gathered * (1 - 1 / shares),
                # What the passes have used is free by then.
                "sums over processes": max(0.0, sums - computing)
                if processes > 1 and not policy.sharded
                else 0.0,
                "freed, but kept by the heap": heap,
            },
            free_memory(policy.device),
        )

    def _other_bytes(self, device: torch.device) -> int:
        """Return the bytes that this process holds now besides the model and its reference."""
        held: int = used_memory(device) - self.reference - self.adapter - self.weights
        return max(0, held)

    def optimizer_bytes(self, config: RunConfig) -> float:
        """Return the bytes of the running means that the optimizer keeps."""
        return optimizer_bytes(self.trainable, config.optimizer.name)

    def _decoding(
        self, policy: Policy, config: RunConfig, work: Workload, prompts: int, attempts: int
    ) -> dict[str, float]:
        """Return the bytes, by component, that sampling needs for `attempts` per prompt."""
        sampling = config.sampling
        max_rows = sampling.max_rows or policy.tuning.max_rows
        kv_bytes = (sampling.kv_mb or policy.tuning.kv_mb) * MB
        rows = min(prompts * attempts, max_rows)
        prompts = min(prompts, rows)
        graphs = sampling.cuda_graphs
        shares = policy.sampling is DecodingWay.TREES and not (
            policy.tuning.cuda_graphs if graphs is None else graphs
        )
        tokens = (
            prompts * work.prompt + rows * work.new
            if shares or policy.fills
            else rows * (work.prompt + work.new)
        )
        copied = sampling.prepack and not policy.fills
        packed = copied and rows >= FEW_ROWS and work.new >= FEW_TOKENS
        uncached = policy.sampling is DecodingWay.UNCACHED and not policy.fills
        computed = tokens if uncached else prompts * work.prompt
        drawn = rows * work.new if policy.fills else rows
        return {
            "weights for decoding": policy.decoding_bytes(copied=copied, packed=packed)
            + self.moving,
            "keys and values": 0.0
            if policy.fills or uncached
            else min(SPARE * tokens * policy.cached_bytes, kv_bytes),
            "decoding": DRAWING * drawn * _vocabulary_size(policy) * 4 + computed * self.layer,
        }

    def _update(self, policy: Policy, config: RunConfig, work: Workload) -> dict[str, float]:
        """Return the bytes, by component, that an update needs."""
        max_tokens_per_pass = config.trainer.micro_batch_tokens or policy.tuning.micro_batch_tokens
        pass_sizes = [
            (tokens, len(trees))
            for trees, tokens in policy.passes(work.rows, max_tokens=max_tokens_per_pass)
        ]
        tokens, trees = max(pass_sizes, default=(0, 1))
        # Shorter completions fill a pass better.
        tokens = max(tokens, min(max_tokens_per_pass, sum(tokens for tokens, _ in pass_sizes)))
        fixed, per_token, per_pair = self.kept
        kept = fixed + tokens * (per_token + per_pair * tokens / trees)
        # The gradients of a layer, and what was not kept of it.
        computing = (3 if self.recomputed else 2) * tokens * self.layer
        copies = COPIES_WITH_REFERENCE if config.needs_reference else COPIES
        all_logits = copies * tokens * _vocabulary_size(policy) * 4
        logits = min(all_logits, policy.logits_bytes) if policy.logits_bytes else all_logits
        return {
            "activations": kept + computing + self.moving,
            "logits": logits,
            "states of the reference": _reference_states_bytes(policy, config, work),
        }


def optimizer_bytes(trainable: Sequence[Tensor], name: str, *, number: int | None = None) -> float:
    """Return the bytes of the running means that an optimizer keeps for tensors.

    Args:
        trainable: the tensors that are trained.
        name: the setting `optimizer.name`.
        number: bytes of each number, if it will be trained in another type.
    """
    if name == "adamw":
        return float(2 * sum(p.numel() * (number or p.element_size()) for p in trainable))
    small = sum(p.numel() for p in trainable if p.numel() < QUANTISED)
    large = sum(p.numel() for p in trainable) - small
    return 8.0 * small + 2 * large * (1 + 4 / BLOCK)


def _reference_states_bytes(policy: Policy, config: RunConfig, work: Workload) -> float:
    """Return the bytes of the reference's last hidden states of a whole batch."""
    if not config.needs_reference or not policy.logits_bytes:
        return 0.0
    size = getattr(policy.model.config.get_text_config(decoder=True), "hidden_size", 0)
    predictions = sum(len(row.segment.token_ids) for row in work.rows)
    number = torch.empty((), dtype=policy.compute_dtype).element_size()
    return float(config.trainer.minibatches * predictions * size * number)


def _measure_kept(policy: Policy, nodes: int) -> int:
    """Return the bytes that a pass of a row of `nodes` nodes keeps for its backward pass."""
    weight_storages = {
        p.untyped_storage().data_ptr() for p in policy.model.parameters() if p.device.type != "meta"
    }
    kept_bytes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            kept_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a result that its own operation keeps would never be freed

    prompt_length = max(1, nodes // 2)
    (micro,) = policy.micro_batches(
        [policy.measuring_row(prompt_length, nodes - prompt_length + 1, 1)],
        max_tokens=2 * nodes,
        dtype=torch.float32,
    )
    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = policy.logprobs(micro, temperature=1.0)
    del graph
    return sum(kept_bytes.values())


def _gathered_bytes(model: Any, device: torch.device) -> float:
    """Return the bytes of weights and gradients that are whole at a time, though sharded.

    They are those outside the layers, and those of a few layers.
    """

    def size(module: Any) -> float:
        parameters: list[Tensor] = [p for p in module.parameters() if p.device.type == device.type]
        return float(sum(p.nbytes * (2 if p.requires_grad else 1) for p in parameters))

    layers = [size(layer) for layer in units(model)]
    return size(model) - sum(layers) + sum(sorted(layers)[-GATHERED_UNITS:])


def fit_curve(points: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Fit fixed + per_token * n + per_pair * n ** 2 through up to three points (n, bytes).

    Returns:
        The coefficients (fixed, per_token, per_pair), none of them negative.
    """
    sizes = torch.tensor(
        [[float(n) ** power for power in range(len(points))] for n, _ in points],
        dtype=torch.float64,
    )
    coefficients = (
        torch.linalg.solve(
            sizes, torch.tensor([float(size) for _, size in points], dtype=torch.float64)
        )
        .clamp(min=0)
        .tolist()
    )
    fixed, per_token, per_pair = [*coefficients, 0.0, 0.0][:3]
    return (0.0, fixed / points[0][0], 0.0) if len(points) == 1 else (fixed, per_token, per_pair)


def _vocabulary_size(policy: Policy) -> int:
    """Return the number of tokens in the model's vocabulary."""
    return int(policy.model.config.get_text_config(decoder=True).vocab_size)
