"""The code that runs inside a jail: its text is passed to a Python that has no other packages."""
