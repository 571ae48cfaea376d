"""Say which tokens may come next where a completion has to be JSON of a schema.

The library llguidance (of the extra `serve`) reads schemas; it is imported with the first of them.
Whatever it raises for a schema is an error of the request that has the schema, and of no other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_core.calls.schema_limits import needs_trial, schema_text
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.schema_trial import try_schema
from grpo_core.protocol.errors import ConfigError, MissingExtraError
from grpo_core.protocol.sampler import JSON_WHITESPACE, UnsupportedSchemaError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

KEPT = 64
"""Number of schemas whose grammars are kept for further requests."""
COMPILE_SECONDS = 20.0
"""How long a request waits for the grammar of its schema."""
_MAX_STATES = 50_000
"""Of the automaton of all texts of a schema; each takes up to 2 kB."""
_SHOWN_CHARACTERS = 200

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""(V,) Whether each token may come next."""


class Constraint:
    """Follow one completion through the grammar of its schema.

    Args:
        matcher: the grammar, before the first token.
        width: number of the model's tokens.

    Raises:
        UnsupportedSchemaError: the schema cannot be followed.
    """

    def __init__(self, matcher: LLMatcher, width: int) -> None:
        with _faults():
            self._matcher, self._width = matcher.deep_copy(), width
        self._mask = self._next_mask()

    def add(self, token: int) -> None:
        """Go on behind a token that was allowed.

        Raises:
            UnsupportedSchemaError: the grammar has become too large, or no token may follow.
        """
        with _faults():
            self._matcher.consume_token(token)
        self._mask = self._next_mask()

    def allowed(self, width: int) -> Mask:
        """Return which of `width` tokens may come next; an end token only behind whole JSON."""
        mask = self._mask[:width]
        return np.pad(mask, (0, width - len(mask)))

    def _next_mask(self) -> Mask:
        """Return which of the model's tokens may come next, at least one."""
        with _faults():
            bits = self._matcher.compute_bitmask()
            _check(self._matcher)
        mask = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")[: self._width]
        if not mask.any():
            raise UnsupportedSchemaError(
                "the JSON schema cannot be followed: no token of this model may come next"
            )
        return mask.astype(np.bool_)


class Grammars:
    """Compile JSON schemas for the tokens of a policy, each once, outside of the event loop.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._width = policy.model.config.get_text_config(decoder=True).vocab_size
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher | UnsupportedSchemaError] = OrderedDict()
        self._pending: dict[str, asyncio.Future[LLMatcher]] = {}
        self._lanes = {is_slow: ThreadPoolExecutor(1, "grpo-schema") for is_slow in (True, False)}
        """One thread for schemas that need a trial, so that the others do not wait for them."""

    async def constraint(self, schema: Mapping[str, Any]) -> Constraint:
        """Return the constraint of a completion that begins now.

        Raises:
            UnsupportedSchemaError: the schema is not valid, is too large, or cannot be followed.
            ConfigError: the tokenizer of the policy is of a kind that the library does not know.
            MissingExtraError: the library is not installed.
        """
        text = schema_text(schema)
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = await self._compiled_once(text, is_slow=needs_trial(schema))
        else:
            self._compiled.move_to_end(text)
        if isinstance(compiled, UnsupportedSchemaError):
            raise UnsupportedSchemaError(str(compiled))
        return Constraint(compiled, self._width)

    async def _compiled_once(self, text: str, *, is_slow: bool) -> LLMatcher:
        """Return the grammar of a schema that may be in work already; it raises as `constraint`."""
        loop = asyncio.get_running_loop()
        pending = self._pending.get(text)
        if pending is None or pending.get_loop() is not loop:
            pending = loop.run_in_executor(self._lanes[is_slow], self._compile, text, is_slow)
            self._pending[text] = pending
            pending.add_done_callback(lambda future: self._keep(text, future))
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                return await asyncio.shield(pending)
        except TimeoutError:
            raise UnsupportedSchemaError(
                f"the JSON schema was not compiled within {COMPILE_SECONDS:g} s; simplify it, or "
                "send the request again later"
            ) from None

    def _keep(self, text: str, future: asyncio.Future[LLMatcher]) -> None:
        """Keep the result of a compilation for further requests, and forget the oldest one."""
        if self._pending.get(text) is future:
            del self._pending[text]
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._compiled[text] = future.result()
        elif isinstance(error, UnsupportedSchemaError):
            self._compiled[text] = error
        while len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)

    def _compile(self, schema: str, is_slow: bool) -> LLMatcher:
        """Return the matcher of a schema, before the first token."""
        try:
            import llguidance
        except ImportError:
            raise MissingExtraError(
                "a completion that has to be JSON", "serve", package="llguidance"
            ) from None
        self._tokens = self._tokens or self._read_tokens()
        if is_slow:
            try_schema(schema)
        with _faults():
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_pattern": JSON_WHITESPACE}
            )
            matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=_limits())
            _check(matcher)
        return matcher

    def _read_tokens(self) -> LLTokenizer:
        """Return the bytes of every token, and which tokens end a completion."""
        from llguidance.hf import from_tokenizer

        policy = self._policy
        try:
            return from_tokenizer(
                policy.tokenizer,
                n_vocab=max(self._width, len(policy.tokenizer)),
                eos_token=sorted(policy.end_ids),
            )
        except ValueError as error:
            raise ConfigError(
                "the completions of this model cannot be held to JSON, since its tokenizer is of a "
                f"kind that llguidance does not know ({error}); leave the schema out"
            ) from None


def _limits() -> LLParserLimits:
    """Return the library's limits of one grammar, in work and memory."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=_MAX_STATES, verbose_errors=False)


def _check(matcher: LLMatcher) -> None:
    """Raise UnsupportedSchemaError if the grammar of a matcher has a fault."""
    if error := matcher.get_error():
        raise UnsupportedSchemaError(_sentence(error))


@contextmanager
def _faults() -> Iterator[None]:
    """Turn whatever the library raises, a panic of its native code too, into one kind of error."""
    try:
        yield
    except (UnsupportedSchemaError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception
        raise UnsupportedSchemaError(_sentence(str(error) or type(error).__name__)) from None


def _sentence(reason: str) -> str:
    first = next(iter(reason.splitlines()), "")[:_SHOWN_CHARACTERS]
    return f"the JSON schema cannot be followed: {first}"
