"""Train one run for each seed and each value of a sweep, one after the other."""
