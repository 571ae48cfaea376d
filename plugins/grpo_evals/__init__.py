"""Evaluate models behind OpenAI-compatible endpoints on environments, without torch."""
