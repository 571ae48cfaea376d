"""What checks do in a second process, in other surroundings."""
