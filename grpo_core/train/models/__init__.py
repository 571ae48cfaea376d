"""Models by name: found, fetched, loaded, quantised, adapted, and written again; prompts as tokens."""
