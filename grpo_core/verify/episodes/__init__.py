"""Hold dialogues and episodes: in this process, and many at once in a worker."""
