"""The algorithm as pure functions of tensors: rewards, advantages, losses, refills."""
