"""What is trained: a model seen through the log-probs of what it says, and what samples from it."""
