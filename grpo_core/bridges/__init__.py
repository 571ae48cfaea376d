"""Use environments in other trainers; each trainer has a package of its own here."""
