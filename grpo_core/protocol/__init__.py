"""What an author implements: types, environments, sandboxes, judges, hooks and errors."""
