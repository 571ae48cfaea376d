"""Reports on environments, models, judges and runs.

Environment cards, statistics of rollouts, plots, and the export of rollouts as training examples.
"""
