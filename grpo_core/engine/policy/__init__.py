"""Wrap the trained model: its log-probs, and the sampler that draws completions from it."""
