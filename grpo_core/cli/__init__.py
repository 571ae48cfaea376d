"""The command `grpo`."""

from grpo_core.cli.app import main

__all__ = ["main"]
