"""Run folders: no line of a run is lost, and no damaged file is mistaken for a whole one."""
