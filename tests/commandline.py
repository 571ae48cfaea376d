"""A command line as a user writes it."""

import shlex


def words(text: str) -> list[str]:
    """Return the words of a command line."""
    return shlex.split(text)
