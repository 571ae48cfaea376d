"""The adversarial conformance kit: questions to an environment that settle whether it can be trusted with a run."""
