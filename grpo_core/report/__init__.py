"""What is known of environments, models, judges and runs: cards, statistics of attempts, pictures, and attempts worth learning from."""
