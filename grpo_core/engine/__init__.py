"""What trainer, servers, evaluations and judges share: models, and tensors without a method."""
