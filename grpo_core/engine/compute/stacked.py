"""Compute layers that multiply the same input as one product, with their adapters.

A GPU waits for the host, which launches one small operation after the other: peft adds six to every
product, among them the casts of both matrices of the adapter. On a CPU each of them reads and
writes all of the output. Here the weights W of layers with the same input (the queries, keys and
values of attention, say) stand below one another in one matrix, with the first matrices A of their
adapters behind them, and the matrices B in one block matrix. Two or three products give
W x + B A x. No weight is copied: the layers' own become views of the matrix. Only adapters are
cast, once after each change.

It can be switched off (trainer.stacked_layers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from grpo_core.engine.compute.same_input import Parts, same_inputs


class Stack:
    """Hold layers that get the same input, and compute them together.

    Args:
        layers: peft's layers (see `same_inputs`), in the order in which the model calls them.
        joined: without gradients, W x and A x are one product.
    """

    def __init__(self, layers: Sequence[Any], *, joined: bool) -> None:
        self._layers, self._joined = layers, joined
        (self.trained,) = layers[0].active_adapters
        """Name of the adapters that are trained."""
        self.present: str = self.trained
        """Name of the adapters that are cast: these, or the reference's."""
        self.scaling: float = layers[0].scaling[self.trained]
        """Factor of the adapters."""
        self.downs, self.ups = self.matrices(self.trained)
        self.outs, self.ranks = _slices(self.ups), _slices(self.downs)
        bases = [layer.get_base_layer() for layer in layers]
        out, rank = self.outs[-1].stop, self.ranks[-1].stop
        weight = bases[0].weight.data
        self.matrix = torch.cat(
            [*(base.weight.data for base in bases), weight.new_empty(rank, weight.shape[1])]
        )
        """The layers' weights and the first matrices of their adapters (out + rank, in)."""
        self.up = weight.new_zeros(out, rank)
        """The second matrices of the adapters, times the factor, as blocks."""
        self.bias: Tensor | None = None
        """The layers' biases and zeros, if any layer has a bias."""
        if any(base.bias is not None for base in bases):
            self.bias = weight.new_zeros(out + rank)
        for base, rows in zip(bases, self.outs, strict=True):
            base.weight.data = self.matrix[rows]
            if base.bias is not None and self.bias is not None:
                self.bias[rows] = base.bias.data
        self._parts = Parts(len(layers), self._compute)
        for i, layer in enumerate(layers):
            layer.forward = self._forward(i, layer.forward)

    def remove(self) -> None:
        """Restore the forward passes of the layers, which then compute by themselves again."""
        for layer in self._layers:
            del layer.forward

    def can_take(self, adapter: str) -> bool:
        """Return True if these adapters differ from the trained ones in their numbers alone."""
        return adapter == self.trained or all(
            adapter in layer.lora_A
            and adapter not in layer.lora_variant
            and layer.lora_B[adapter].bias is None
            and layer.lora_A[adapter].weight.shape == layer.lora_A[self.trained].weight.shape
            and layer.scaling[adapter] == self.scaling
            for layer in self._layers
        )

    def matrices(self, adapter: str) -> tuple[list[Tensor], list[Tensor]]:
        """Return the first matrix (r, in) and the second (out, r) of each layer's adapter."""
        return (
            [layer.lora_A[adapter].weight for layer in self._layers],
            [layer.lora_B[adapter].weight for layer in self._layers],
        )

    def active(self) -> list[str]:
        """Return the names of the adapters by which the layers compute now."""
        return list(self._layers[0].active_adapters)

    def places(self) -> list[Tensor]:
        """Return where the casts of `downs` and `ups` belong."""
        behind = self.matrix[self.outs[-1].stop :]
        blocks = zip(self.outs, self.ranks, strict=True)
        return [*(behind[rows] for rows in self.ranks), *(self.up[block] for block in blocks)]

    def _forward(self, i: int, own: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward function of layer `i`, whose own one is `own`."""
        layer = self._layers[i]

        def forward(inputs: Tensor, *args: Any, **more: Any) -> Any:
            adapted = not layer.disable_adapters
            others = adapted and list(layer.active_adapters) != [self.present]
            # Gradients are those of the trained adapters.
            frozen = adapted and self.present != self.trained and torch.is_grad_enabled()
            if args or more or layer.merged or others or frozen:
                return own(inputs, *args, **more)
            return self._parts.take(i, inputs, adapted=adapted)

        return forward

    def _compute(self, inputs: Tensor, adapted: bool) -> Sequence[Tensor]:
        """Return the output of each layer, with its adapter or without."""
        rows_NI, out = inputs.flatten(0, -2).to(self.matrix.dtype), self.outs[-1].stop
        if not adapted:
            outputs_NO = linear(rows_NI, self.matrix[:out], self._own_bias())
        elif torch.is_grad_enabled():
            outputs_NO = _Product.apply(rows_NI, self, *self.downs, *self.ups)  # type: ignore[no-untyped-call]
        elif self._joined:
            both = linear(rows_NI, self.matrix, self.bias)
            outputs_NO = both[:, :out].addmm_(both[:, out:], self.up.T)
        else:
            outputs_NO, _ = self.multiply(rows_NI)
        sizes = [rows.stop - rows.start for rows in self.outs]
        return torch.split(outputs_NO.view(*inputs.shape[:-1], out), sizes, dim=-1)

    def multiply(self, rows_NI: Tensor) -> tuple[Tensor, Tensor]:
        """Return W x + B A x and A x."""
        out = self.outs[-1].stop
        low_NR = rows_NI @ self.matrix[out:].T
        outputs_NO = linear(rows_NI, self.matrix[:out], self._own_bias())
        return outputs_NO.addmm_(low_NR, self.up.T), low_NR

    def _own_bias(self) -> Tensor | None:
        """Return the layers' biases alone."""
        return None if self.bias is None else self.bias[: self.outs[-1].stop]


class _Product(torch.autograd.Function):
    """Compute W x + B A x with the gradients of x, A and B.

    The gradients of the matrices have the type in which they are trained.
    """

    @staticmethod
    def forward(ctx: Any, rows_NI: Tensor, stack: Stack, *matrices: Tensor) -> Tensor:
        outputs_NO, low_NR = stack.multiply(rows_NI)
        ctx.stack = stack
        ctx.save_for_backward(rows_NI, low_NR, stack.matrix, stack.up)
        return outputs_NO

    @staticmethod
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        stack: Stack = ctx.stack
        rows_NI, low_NR, matrix, up = ctx.saved_tensors
        out = stack.outs[-1].stop
        low_grad_NR = grad_NO @ up
        rows_grad_NI = None
        if ctx.needs_input_grad[0]:
            rows_grad_NI = (grad_NO @ matrix[:out]).addmm_(low_grad_NR, matrix[out:])
        down_grad_RI = (low_grad_NR.T @ rows_NI).to(stack.downs[0].dtype)
        nothing = grad_NO.new_empty(())  # beta=0: only the product counts
        up_grads = [
            torch.addmm(
                nothing, grad_NO[:, outs].T, low_NR[:, ranks], beta=0, alpha=stack.scaling
            ).to(up_matrix.dtype)
            for outs, ranks, up_matrix in zip(stack.outs, stack.ranks, stack.ups, strict=True)
        ]
        down_grads = [down_grad_RI[ranks] for ranks in stack.ranks]
        return rows_grad_NI, None, *down_grads, *up_grads


class Stacks:
    """Hold all stacks of a model, and cast the adapters into them when they have changed.

    Args:
        model: the model; its layers compute in stacks from now on.
        compute: makes a forward pass, in which every layer's input is seen.
        joined: without gradients, W x and A x are one product: fewer operations, but a CPU takes
            longer, and the rounding differs from that with gradients and from that without an
            adapter, so that the KL to a reference with equal weights is not exactly 0.
    """

    def __init__(self, model: Any, compute: Callable[[], object], *, joined: bool = False) -> None:
        self.groups = same_inputs(model, compute)
        """The layers of each stack."""
        self._stacks = [Stack(layers, joined=joined) for layers in self.groups]
        self._state: list[tuple[int, int]] = []
        self._can_take = cache(lambda name: all(stack.can_take(name) for stack in self._stacks))
        self._ups = [stack.up for stack in self._stacks]
        self._places = list(chain.from_iterable(stack.places() for stack in self._stacks))

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the adapters if they have changed: by an optimizer step, or as the reference's.

        Adapters that cannot stand in the place of the trained ones are left to peft.
        """
        active = self._stacks[0].active() if self._stacks else []
        if len(active) != 1 or not self._can_take(active[0]):
            return
        matrices = [
            matrix
            for stack in self._stacks
            for matrix in chain.from_iterable(stack.matrices(active[0]))
        ]
        state = [(matrix._version, matrix.data_ptr()) for matrix in matrices]
        if state != self._state:
            torch._foreach_copy_(self._places, [matrix.detach() for matrix in matrices])
            torch._foreach_mul_(self._ups, [stack.scaling for stack in self._stacks])
            self._state = state
            for stack in self._stacks:
                stack.present = active[0]

    def remove(self) -> None:
        """Restore the forward passes of the layers, which then compute by themselves again."""
        for stack in self._stacks:
            stack.remove()


def _slices(matrices: Sequence[Tensor]) -> list[slice]:
    """Return the rows of each matrix where they stand below one another."""
    bounds = accumulate((len(matrix) for matrix in matrices), initial=0)
    return [slice(*rows) for rows in pairwise(bounds)]
