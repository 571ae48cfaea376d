"""Surround the steps of a run with evaluations, logs, checkpoints, warnings, and its end."""
