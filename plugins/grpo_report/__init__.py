"""Reports on environments, models, judges and runs.

Floors, probes, comparisons, plots, pages, and the export of rollouts as training examples.
"""
