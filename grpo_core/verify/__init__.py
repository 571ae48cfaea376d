"""Judge rollouts: the verification engine, its workers, its cache and the sources of tasks."""
