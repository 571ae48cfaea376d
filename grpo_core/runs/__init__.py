"""Run folders: what a run writes, so that nothing is lost and nothing damaged is taken for whole."""
