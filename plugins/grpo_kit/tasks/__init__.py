"""Checks of tasks, and the tasks that all checks share."""
