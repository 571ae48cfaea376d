"""What trainer, servers, evaluations and judges share: models, and tensors without a method."""

from grpo_core.calls.spinning import sleep_soon

sleep_soon()  # before a module of this package imports torch
