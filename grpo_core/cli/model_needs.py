"""Say which GPU a model needs to be trained, for `grpo doctor --model`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.cli.imports import needs_training
from grpo_core.config.model_files import read_json, stored_weights

if TYPE_CHECKING:
    from grpo_core.engine.models.source import ModelSource

LENGTHS = (512, 2048, 8192)
"""Tokens of an attempt, prompt and completion, that are answered for."""
ASKED = (16, 24, 48, 80)
"""Memory in GiB of the GPUs that have a line of their own."""
_Needs = Mapping[str, Mapping[int, tuple[int | None, float]]]
"""For each way and length the smallest GPU, in GiB, and the bytes needed on it."""


def needs_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield lines about the memory that training a model needs, each with its topic.

    Args:
        name: the model, of which only the config is read.

    Raises:
        UserError: there is no such model, or it cannot be built from its config.
    """
    with needs_training("`grpo doctor --model`"):
        from grpo_core.engine.models.load import resolve_config
        from grpo_core.engine.policy.prospect import WAYS, Prospect
    source = resolve_config(name)
    prospects = {lora: Prospect(source, lora=lora) for lora in (True, False)}
    count, context = prospects[True].sizes.parameters, prospects[True].context
    known = "" if context is None else f", a context of {context:,} tokens"
    yield "model", f"{name}: {_count(count)} weights{_stored(source)}{known}"
    lengths = [length for length in LENGTHS if context is None or length <= context]
    lengths = lengths or [context or LENGTHS[0]]
    needs = {
        topic: {length: prospects[way.lora].smallest_card(way, length) for length in lengths}
        for topic, way in WAYS.items()
    }
    for topic, by_length in needs.items():
        yield topic, "; ".join(_need(length, *need) for length, need in by_length.items())
    for card in ASKED:
        yield f"{card} GB GPU", _fitting(needs, card)
    yield (
        "how",
        "estimated for the defaults of a run on one GPU, without loading weights (what passes keep "
        "was within 10% of the measured bytes for smollm2-135m); tokens are those "
        "of prompt (a quarter) and completion; recomputed: trainer.gradient_checkpointing=true; "
        "4-bit: model.quantization=4bit; full: lora.enabled=false. A smaller batch "
        "(--prompts-per-step, --group-size) needs less",
    )


def _count(weights: int) -> str:
    return f"{weights / 1e9:.2f} billion" if weights >= 1e9 else f"{weights / 1e6:.0f} million"


def _stored(source: ModelSource) -> str:
    """Return how much the model's files hold, by their index or headers; "" if nobody says."""
    from grpo_core.engine.models.source import local_folder

    folder = Path(local_folder(source))
    indices = sorted(folder.glob("*.safetensors.index.json"))
    metadata = read_json(indices[0]).get("metadata") if indices else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(size, int):
        stored = stored_weights(folder)
        size = stored.size_bytes if stored else None
    return "" if size is None else f", {size / 1e9:.1f} GB in its files"


def _need(length: int, card: int | None, peak: float) -> str:
    """Return what training at one length needs."""
    where = f"{card} GB GPU" if card else "no single GPU"
    return f"{length:,} tokens {peak / 2**30:.1f} GiB ({where})"


def _fitting(needs: _Needs, card: int) -> str:
    """Return which ways to train fit on a GPU, each with the greatest of the lengths."""
    fitting = []
    for topic, by_length in needs.items():
        lengths = [length for length, (least, _) in by_length.items() if least and least <= card]
        if lengths:
            fitting.append(f"{topic} to {max(lengths):,} tokens")
    return "; ".join(fitting) or "nothing of this fits"
