"""Turn rollouts into new weights: the optimizer, its schedule, and the update."""
