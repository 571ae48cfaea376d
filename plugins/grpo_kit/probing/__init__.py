"""Measure whether a model can learn an environment, and what ignoring the task earns."""
