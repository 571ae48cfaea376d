"""What a run looked like: pictures drawn from its metrics.jsonl."""
