"""Run an environment's code: in this process, in workers that can be ended, or elsewhere."""
