"""Sample and measure with a model. Importing this module imports torch."""

from __future__ import annotations

from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.merging import save_merged
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import draw_number, epoch_order
from grpo_core.train.run.measure import probe
from grpo_core.train.run.resume import refuse_changed_environments

__all__ = [
    "Actor",
    "ChatFrame",
    "draw_number",
    "epoch_order",
    "probe",
    "refuse_changed_environments",
    "save_merged",
]
