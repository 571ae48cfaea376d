"""Turn tasks into rollouts: dialogues, verification that overlaps with them, the curriculum."""
