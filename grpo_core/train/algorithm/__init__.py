"""Compute rewards, advantages, losses and refills as pure functions of tensors."""
