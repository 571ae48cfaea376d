"""Say which tokens may come next where a completion has to be JSON of a schema.

The library llguidance (of the extra `serve`) reads schemas; it is imported with the first of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_core.protocol.errors import ConfigError, MissingExtraError
from grpo_core.protocol.sampler import JSON_WHITESPACE, UnsupportedSchemaError
from grpo_core.train.policy.causal import Policy

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 64
"""Number of schemas whose grammars are kept for further requests."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""(V,) Whether each token may come next."""


class Constraint:
    """Follow one completion through the grammar of its schema.

    Raises:
        UnsupportedSchemaError: the schema cannot be followed.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._bits = self._next_bits()

    def add(self, token: int) -> None:
        """Go on behind a token that was allowed.

        Raises:
            UnsupportedSchemaError: the grammar has become too large.
        """
        self._matcher.consume_token(token)
        self._bits = self._next_bits()

    def allowed(self, width: int) -> Mask:
        """Return which of `width` tokens may come next; an end token only behind whole JSON."""
        mask = np.unpackbits(np.frombuffer(self._bits, dtype=np.uint8), bitorder="little")[:width]
        return np.pad(mask, (0, width - len(mask))).astype(np.bool_)

    def _next_bits(self) -> bytes:
        """Return a bit for each token, the lowest of a byte first."""
        bits = self._matcher.compute_bitmask()
        if error := self._matcher.get_error():
            raise UnsupportedSchemaError(
                f"the JSON schema cannot be followed: {error.splitlines()[0]}"
            )
        return bits


class Grammars:
    """Compile JSON schemas for the tokens of a policy, each once.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tokens: LLTokenizer | None = None
        self._matcher = lru_cache(maxsize=KEPT)(self._compile)

    def constraint(self, schema: Mapping[str, Any]) -> Constraint:
        """Return the constraint of a completion that begins now.

        Raises:
            UnsupportedSchemaError: the schema is not valid, or cannot be followed exactly.
            ConfigError: the tokenizer of the policy is of a kind that the library does not know.
            MissingExtraError: the library is not installed.
        """
        return Constraint(self._matcher(json.dumps(dict(schema))).deep_copy())

    def _compile(self, schema: str) -> LLMatcher:
        """Return the matcher of a schema, before the first token."""
        try:
            import llguidance
        except ImportError:
            raise MissingExtraError(
                "a completion that has to be JSON", "serve", package="llguidance"
            ) from None
        self._tokens = self._tokens or self._read_tokens()
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            schema, defaults={"whitespace_pattern": JSON_WHITESPACE}
        )
        return llguidance.LLMatcher(self._tokens, grammar, log_level=0)

    def _read_tokens(self) -> LLTokenizer:
        """Return the bytes of every token, and which tokens end a completion."""
        from llguidance.hf import from_tokenizer

        policy = self._policy
        vocabulary = policy.model.config.get_text_config(decoder=True).vocab_size
        try:
            return from_tokenizer(
                policy.tokenizer,
                n_vocab=max(vocabulary, len(policy.tokenizer)),
                eos_token=sorted(policy.end_ids),
            )
        except ValueError as error:
            raise ConfigError(
                "the completions of this model cannot be held to JSON, since its tokenizer is of a "
                f"kind that llguidance does not know ({error}); leave the schema out"
            ) from None
