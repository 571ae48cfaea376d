"""The trainer: methods, and the loop around their steps."""
