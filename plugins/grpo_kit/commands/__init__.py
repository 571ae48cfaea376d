"""The commands of this package, a module each."""
