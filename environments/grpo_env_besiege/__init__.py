"""Machines out of blocks, as JSON construction trees, scored by a physics simulation."""
