"""Sample and measure with a model. Importing this module imports torch."""

from __future__ import annotations

from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.merging import load_merged, save_merged
from grpo_core.train.actor import Actor
from grpo_core.train.run.measure import probe

__all__ = [
    "Actor",
    "ChatFrame",
    "load_merged",
    "probe",
    "save_merged",
]
