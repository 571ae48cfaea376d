"""The kit for authors: adversarial checks of environments, checks of sandboxes, new projects.

The checks of an environment decide whether it can be trusted with a training run. Installed
plugins are checked, too.
"""
