"""From rollouts to new weights: the optimizer, its schedule, and the update."""
