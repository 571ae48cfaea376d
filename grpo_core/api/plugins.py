"""Find and load what is installed."""

from __future__ import annotations

from grpo_core.plugins.environments import build_environment, load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.hookspecs import OFFER_HOOKS

__all__ = ["OFFER_HOOKS", "PluginHost", "build_environment", "load_environment"]
