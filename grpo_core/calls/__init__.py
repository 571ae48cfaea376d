"""Call untrusted code: isolation, time limits, child processes, and safe output of its text."""
