"""Predict the tokens of a micro-batch: by trees, by padded rows, or row by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute.batch import MicroBatch
from grpo_core.engine.compute.logprob import head_at
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.rows import forward_padded, pad_left
from grpo_core.engine.compute.tree import pack_trees
from grpo_core.engine.compute.upload import upload


def predict_trees(
    model: Any,
    micro: MicroBatch,
    *,
    masking: Masking,
    dtype: torch.dtype,
    block_rows: int | None,
    bare: bool,
) -> tuple[Tensor, list[int]]:
    """Return the predictions of trees of rows, in which shared tokens are computed once.

    Args:
        model: the model to compute with.
        micro: the micro-batch.
        masking: how the model takes masks.
        dtype: type of the forward pass.
        block_rows: rows of a block of the mask (see `tuning`).
        bare: return the last hidden states (K, H) instead of logits.

    Returns:
        The logits (K, V), and the index into them of each completion token, row by row.
    """
    segments = [row.segment for row in micro.rows]
    trees = pack_trees(
        [segment.prompt_ids for segment in segments],
        [segment.token_ids for segment in segments],
        device=micro.tokens_BT.device,
        together=micro.together,
        block_rows=block_rows,
    )
    return trees.forward(model, dtype, masking=masking, bare=bare), trees.places


def predict_rows(
    model: Any, micro: MicroBatch, *, pad_id: int, alone: bool, bare: bool
) -> tuple[Tensor, list[int]]:
    """Return the predictions of rows that each contain a copy of their prompt.

    This is the slow path, for models that cannot be given a mask. The rows are padded, prompts on
    the left and completions on the right, or computed one after the other.
    """
    prompts = [row.segment.prompt_ids for row in micro.rows]
    completions = [row.segment.token_ids for row in micro.rows]
    device, width = micro.tokens_BT.device, micro.tokens_BT.shape[1]
    if alone:
        texts = [
            (upload([[*prompt, *completion]], device), len(completion))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        predictions_M = torch.cat(
            [
                _predict_last(
                    model, tokens_1S, torch.ones_like(tokens_1S), count, padded=False, bare=bare
                )[0]
                for tokens_1S, count in texts
            ]
        )
    else:
        prompts_BS, real_BS = pad_left(prompts, pad_id, device)
        predictions_BT = _predict_last(
            model,
            torch.cat([prompts_BS, micro.tokens_BT], dim=1),
            torch.cat([real_BS, micro.real_BT], dim=1),
            width,
            padded=min(map(len, prompts)) < prompts_BS.shape[1]
            or min(map(len, completions)) < width,
            bare=bare,
        )
        place_M = upload(micro.places, device, dtype=torch.long)
        predictions_M = predictions_BT[place_M // width, place_M % width]
    return predictions_M, list(range(len(predictions_M)))


def _predict_last(
    model: Any, tokens_BS: Tensor, real_BS: Tensor, count: int, *, padded: bool, bare: bool
) -> Tensor:
    """Return the predictions (B, count, ...) of the last `count` columns."""
    with head_at(model, None, bare=bare) as hidden_states:
        logits = forward_padded(
            model, tokens_BS, real_BS, padded=padded, keep=count + 1, use_cache=False
        )
    predictions = hidden_states[0] if bare else logits
    return predictions[:, -count - 1 : -1]
