"""The index of rollouts of a run, for reports: an SQLite file in the user's cache."""
