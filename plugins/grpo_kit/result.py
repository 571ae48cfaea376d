"""Say how a check ends that does not pass.

A check that was not carried out, or that the environment waives, never counts as passed.
"""

from __future__ import annotations


class BrokenPromiseError(Exception):
    """The environment breaks a promise of the protocol: the check failed."""


class NotCheckedError(Exception):
    """The check could not be carried out: nothing to examine, or no way to examine it."""
