"""Checks of verdicts and rewards: what must get the floor, be judged, and how long it takes."""
