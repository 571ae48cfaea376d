"""The trainer: methods, and the loop around their steps."""

from grpo_core.calls.spinning import sleep_soon

sleep_soon()  # before a module of this package imports torch
