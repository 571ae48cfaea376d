"""Calling code that nobody trusts: isolation, deadlines, child processes, and what it prints."""
