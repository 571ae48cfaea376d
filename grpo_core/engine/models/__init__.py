"""Find, fetch, load, quantise, adapt and save models by name; turn prompts into tokens."""
