"""Compute figures of attempts and evaluations: means, gains, floors. All functions are pure."""
