"""Show a run in the terminal."""
