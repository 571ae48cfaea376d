"""From tasks to rollouts: dialogues, overlap with verification, the curriculum."""
