"""Attack a sandbox: programs and commands that it must survive, and that must learn nothing."""
