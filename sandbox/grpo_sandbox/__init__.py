"""Sandboxes for programs nobody trusts: hardened Docker containers, or bubblewrap where there is no Docker."""
