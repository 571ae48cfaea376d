"""Gather the names that packages around the core may use, besides those of `grpo_core` itself."""
