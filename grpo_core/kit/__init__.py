"""The author's kit: adversarial questions to an environment that settle whether it can be trusted with a run; checks of sandboxes and
plugins; new projects."""
