"""The trainer: the only part of the core that imports torch."""
