"""Checks of dialogues, episodes, agents and tools, and what plays them."""
