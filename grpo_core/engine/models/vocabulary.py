"""Compare the tokens of a tokenizer with the rows of a model's embedding."""

from __future__ import annotations

from typing import Any

from grpo_core.engine.models.source import ModelSource
from grpo_core.protocol.errors import ConfigError


def tokens_without_rows(model: Any, tokenizer: Any) -> list[str]:
    """Return the tokens that have no row in the embedding of a model, by their numbers."""
    rows = _rows(model)
    vocabulary = tokenizer.get_vocab() if rows is not None else {}
    beyond = [(index, token) for token, index in vocabulary.items() if index >= rows]
    return [token for _, token in sorted(beyond)]


def refuse_foreign_tokenizer(model: Any, tokenizer: Any, source: ModelSource) -> None:
    """Raise ConfigError if tokens that texts are made of have no row in the embedding.

    Added tokens may have none, as the one for images in the tokenizer of a Gemma that reads text
    alone; unless a tokenizer or its chat template writes them by itself.
    """
    beyond = tokens_without_rows(model, tokenizer)
    added = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
    own = {tokenizer.bos_token, tokenizer.eos_token}
    needed = [
        token
        for token in beyond
        if token not in added or token in own or token in str(tokenizer.chat_template)
    ]
    if needed:
        raise ConfigError(
            f"the tokenizer of {source.name!r} has {len(tokenizer):,} tokens, and the model's "
            f"embedding has {_rows(model):,} rows, so {len(beyond):,} tokens have no weights "
            f"({needed[0]!r:.40} is one); take the tokenizer that belongs to the model, or enlarge "
            "the embedding (model.resize_token_embeddings of transformers) and save the model"
        )


def _rows(model: Any) -> int | None:
    """Return how many rows the embedding of a model has; None if it does not say."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return None
