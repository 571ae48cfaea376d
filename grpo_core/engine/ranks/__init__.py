"""Coordinate several processes on one run; `Ranks` is this process among them."""

from grpo_core.engine.ranks.ranks import BUCKET_BYTES, Ranks

__all__ = ["BUCKET_BYTES", "Ranks"]
