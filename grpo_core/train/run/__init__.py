"""What surrounds the steps of a run: evaluations, logs, checkpoints, warnings, and the end."""
