"""Decode on a GPU by replaying a recorded step, which the host need not launch piece by piece.

A step of decoding is about a thousand small operations, and launching them takes the host several
times as long as the GPU needs to compute them. A CUDA graph launches them all at once, but it reads
and writes the same memory each time. So each sequence has a cache of its own here, in buffers with
room for further tokens, and a sequence that has ended keeps its place until half of them have. When
the room is used up or sequences are removed, the step is recorded again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from grpo_core.engine.compute import attention
from grpo_core.engine.compute.kv import GrowingLayer, cache_argument
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.prefix import PrefixLines
from grpo_core.engine.compute.upload import upload

ROOM = 256
"""Tokens of each sequence that a recorded step has room for. A step reads the keys and values of
the whole room, and recording it again takes as long as a few steps."""

FEWEST_TOKENS = 32
"""Completions of fewer tokens are not worth recording a step."""


class FixedLayer(DynamicLayer):  # type: ignore[misc]
    """Hold the keys and values (K, heads, N, head size) of one layer in buffers that stay in place.

    Args:
        keys: the keys.
        values: the values.
        column: (1,), the column that the next token is written into.
    """

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self._column = column
        self.device, self.dtype = keys.device, keys.dtype
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one token; return those of all columns."""
        self.keys.index_copy_(2, self._column, key_states)
        self.values.index_copy_(2, self._column, value_states)
        return self.keys, self.values


class RecordedLines:
    """Continue sequences like `prefix.PrefixLines`, with a step that is recorded and replayed.

    On a device other than a GPU each step is computed in the same way, but not recorded.

    Args:
        lines: the lines to continue. They must not be used afterwards.
    """

    joinable = False
    """Other sequences cannot be added."""
    merges_equal = False
    """Each row needs a sequence of its own, also while two are equal."""
    # Set by the first step, when it is known how many sequences there are. A sequence keeps its
    # slot (S) in the buffers until those that have ended are removed.
    _cache: Any
    _masking: Masking
    _dtype: torch.dtype
    _seen_SN: Tensor
    _positions_SN: Tensor
    _inputs_2S: Tensor
    _logits_SV: Tensor
    _column: Tensor
    _used: int
    _slot_K: list[int]
    _lengths_K: list[int]

    def __init__(self, lines: PrefixLines) -> None:
        self.logits_KV = lines.logits_KV
        """Logits after the last token of each sequence."""
        self._lines: PrefixLines | None = lines  # until the first step
        self._step: Callable[[], None] | None = None

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences by new ones.

        Args:
            model: the model that computes.
            parents: the sequence that each new one continues. After the first step they are
                distinct and in ascending order.
            tokens: the token that each new sequence adds.
        """
        if self._lines is not None:
            self._begin(self._lines, parents)
        else:
            self._slot_K = [self._slot_K[parent] for parent in parents]
            self._lengths_K = [self._lengths_K[parent] for parent in parents]
        if 2 * len(self._slot_K) <= len(self._seen_SN):
            self._drop_ended()
        if self._used == self._seen_SN.shape[1]:
            self._widen()
        slots = len(self._seen_SN)
        inputs = [[0] * slots, [0] * slots]
        for slot, token, length in zip(self._slot_K, tokens, self._lengths_K, strict=True):
            inputs[0][slot], inputs[1][slot] = token, length
        self._inputs_2S.copy_(upload(inputs, self._inputs_2S.device))
        self._column.fill_(self._used)
        if self._step is None:
            self._step = self._recorded(model)
        self._step()
        self._used += 1
        self._lengths_K = [length + 1 for length in self._lengths_K]
        alive = len(self._slot_K) == slots
        self.logits_KV = (
            self._logits_SV
            if alive
            else self._logits_SV[upload(self._slot_K, self._logits_SV.device)]
        )

    def join(self, more: Any) -> None:
        """Refuse, because the recorded step has room for these sequences only."""
        raise NotImplementedError("sequences cannot be added to a recorded step")

    def _begin(self, lines: PrefixLines, parents: Sequence[int]) -> None:
        """Take over the caches of the lines, one for each of `parents`."""
        self._cache, self._masking, self._dtype = lines.cache, lines.masking, lines.dtype
        self._seen_SN, self._positions_SN, self._lengths_K = lines.separate(parents)
        self._slot_K = list(range(len(parents)))
        device = self._seen_SN.device
        self._column = torch.zeros(1, dtype=torch.long, device=device)
        self._used = self._seen_SN.shape[1]
        self._lines = None
        self._cache.layers = [
            FixedLayer(layer.keys, layer.values, self._column)
            if type(layer) is GrowingLayer
            else layer
            for layer in self._cache.layers
        ]
        self._widen()
        self._inputs_2S = torch.zeros(2, len(parents), dtype=torch.long, device=device)

    def _widen(self) -> None:
        """Make room for further tokens."""
        # Zeros, since what was never written is multiplied by a weight of zero.
        pad = torch.nn.functional.pad
        self._replace(lambda states: pad(states, (0, 0, 0, ROOM)))
        self._seen_SN = pad(self._seen_SN, (0, ROOM))
        self._positions_SN = pad(self._positions_SN, (0, ROOM))

    def _drop_ended(self) -> None:
        """Remove the sequences that have ended."""
        slot_K = upload(self._slot_K, self._seen_SN.device)
        self._replace(lambda states: states[slot_K])
        self._seen_SN, self._positions_SN = self._seen_SN[slot_K], self._positions_SN[slot_K]
        self._inputs_2S = self._inputs_2S[:, : len(self._slot_K)].clone()
        self._slot_K = list(range(len(self._slot_K)))

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace keys and values by changed ones; the step has to be recorded again."""
        self._step = None
        for layer in self._cache.layers:
            if isinstance(layer, FixedLayer):
                layer.keys = change(layer.keys)
                layer.values = change(layer.values)

    def _compute(self, model: Any) -> None:
        """Compute the logits of the next tokens; repeating it with equal inputs changes nothing."""
        tokens_S1, positions_S1 = self._inputs_2S[0][:, None], self._inputs_2S[1][:, None]
        self._seen_SN.index_fill_(1, self._column, True)
        self._positions_SN.index_copy_(1, self._column, positions_S1)
        out = model(
            input_ids=tokens_S1,
            position_ids=positions_S1,
            attention_mask=self._masking.masks(
                model, self._seen_SN[:, None], positions_S1, self._positions_SN, self._dtype
            ),
            **cache_argument(model, self._cache),
            use_cache=True,
            **attention.arguments(model, attention.WHOLE),
        )
        self._logits_SV = out.logits[:, -1]

    def _recorded(self, model: Any) -> Callable[[], None]:
        """Return a function that computes a step: on a GPU a recorded one, if that is possible."""
        if self._seen_SN.device.type != "cuda":
            return lambda: self._compute(model)
        try:
            return self._record(model)
        except RuntimeError as error:
            warnings.warn(
                f"a step of this model cannot be recorded as a CUDA graph ({error}), so each of "
                "its operations is launched, which is slower; sampling.cuda_graphs=false "
                "does not try",
                stacklevel=2,
            )
            return lambda: self._compute(model)

    def _record(self, model: Any) -> Callable[[], None]:
        """Record a step, and return the function that replays it.

        Raises:
            RuntimeError: the model does what cannot be recorded, such as waiting for a result.
        """
        # What libraries set up when they are first used cannot be recorded.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute(model)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._compute(model)
        return graph.replay
