"""Compute log-probs and continue texts with a model: exactly, in bounded memory.

Each shared token is computed once.
"""
