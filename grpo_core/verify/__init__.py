"""Rollouts in, verdicts out: the engine, its workers, its cache and the sources of tasks."""
