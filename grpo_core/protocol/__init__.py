"""Define the interfaces that authors implement: environments, sandboxes, judges and hooks."""
