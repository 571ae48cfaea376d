"""Run an attempt by an agent, and answer an agent's requests."""
