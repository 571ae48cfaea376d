"""How a model computes log-probs and continues texts: exact, each shared token once, in bounded memory."""
