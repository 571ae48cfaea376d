"""Judge rollouts: checks of tasks and verdicts, the cache, who is to blame for an exception."""
