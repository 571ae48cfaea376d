"""Asks an endpoint for one grade: at the rate that it allows, with as many tokens as it needs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Any

from grpo_core.calls.api_client import ApiClient, CallError, FailureKind
from grpo_core.calls.api_requests import (
    LIMIT_FIELDS,
    has_no_credit,
    limit_field,
    wants_other_limit_field,
)
from grpo_judge.answers import ModelAnswer, read_answer
from grpo_judge.grades import UnreadableGradeError, grade
from grpo_judge.llm_config import LLMConfig, request_fields
from grpo_judge.outage import EndpointAwayError, Outage
from grpo_judge.prompts import SCHEMA
from grpo_judge.spent import Spent

Prompt = Sequence[dict[str, str]]
MAX_FAULT_CHARS = 200
MAX_REASON_CHARS = 2000
MOST_LIMITS = 100
"""After this number of limited calls in a row for one text, its judgement is an error."""
LEAST_TOKENS = 32
"""A grade needs so many tokens; a text that leaves less room in the context is too long."""
CHANGE = 4
"""Factor by which the limit of tokens is raised after an answer that was cut, and lowered for a
text that leaves no room for so many."""
_FILTERED = re.compile(r"content[ _-]?(filter|policy|management)|usage polic|flagged", re.I)
_logger = logging.getLogger(__name__)


class CutError(CallError):
    """The limit of tokens ended an answer before its grade."""


class Asker:
    """Asks one endpoint for grades. It belongs to one event loop.

    Args:
        config: The settings of the judge.
        endpoint: The client of the endpoint.
        outage: The state of the endpoint, which is told of each grade.
        name: Name of the judge and its endpoint, for messages.
        spent: Counts the cost of all calls.

    Attributes:
        signs: How many answers so far were a sign of load or of a limit of tokens: those of a
            limited rate, and those that were cut.
    """

    def __init__(
        self,
        config: LLMConfig,
        *,
        endpoint: ApiClient,
        outage: Outage,
        name: str,
        spent: Spent,
    ) -> None:
        self._config = config
        self._endpoint = endpoint
        self._outage = outage
        self._name = name
        self._spent = spent
        self._request = request_fields(config)
        given = limit_field(self._request)
        drops_limit = "max_tokens" in self._request and given is None
        self._field = None if drops_limit else given or "max_tokens"
        self._tokens = config.max_tokens if given is None else int(self._request[given])
        self._most_tokens = max(self._tokens, config.most_tokens)
        self._limited_since: float | None = None
        self._limited_for_good = ""
        self._active = 0
        self._said = set[str]()
        self.signs = 0

    async def grade(
        self,
        prompt: Prompt,
        *,
        seed: int,
        spent: Spent,
        is_probe: bool = False,
        is_patient: bool = True,
    ) -> tuple[float, str]:
        """Return score and reason of one answer.

        Args:
            prompt: The messages that ask for a grade.
            seed: The seed of the request.
            spent: Counts the cost, beside the judge's own count.
            is_probe: Whether the call goes before others, also while the endpoint is unavailable.
            is_patient: Whether a call that is limited or cut is repeated, later or with more
                tokens, for as long as the settings allow.

        Raises:
            CallError: There is no answer, or none with a grade.
            EndpointAwayError: The endpoint was unavailable and did not come back in time, limits
                its rate, or cuts its answers.
        """
        if not self._active:  # what happened before a pause of the caller says nothing now
            self._limited_since, self._limited_for_good = None, ""
        self._active += 1
        try:
            return await self._repeated(
                prompt, seed=seed, spent=spent, is_probe=is_probe, is_patient=is_patient
            )
        finally:
            self._active -= 1

    async def _repeated(
        self, prompt: Prompt, *, seed: int, spent: Spent, is_probe: bool, is_patient: bool
    ) -> tuple[float, str]:
        """Return what `grade` returns."""
        tokens, limits = None, 0  # of tokens: those that this text leaves room for
        while True:
            limit = min(self._tokens, tokens or self._tokens)
            try:
                return await self._grade(
                    prompt, tokens=limit, seed=seed, spent=spent, is_probe=is_probe
                )
            except CutError as error:
                self.signs += 1
                if not is_patient:
                    raise
                self._raise_tokens(error, used=limit, has_room=tokens is None)
            except CallError as error:
                if error.kind is FailureKind.LIMITED:
                    self.signs, limits = self.signs + 1, limits + 1
                    if not is_patient:
                        raise
                    self._check_patience(error, limits)
                elif error.kind is FailureKind.REFUSED and _may_fit(error, limit):
                    tokens = limit // CHANGE
                else:
                    raise

    async def _grade(
        self, prompt: Prompt, *, tokens: int, seed: int, spent: Spent, is_probe: bool
    ) -> tuple[float, str]:
        """Return score and reason of one answer, without any repetition."""
        began = time.monotonic()
        answer = await self._answer(prompt, tokens=tokens, seed=seed, is_probe=is_probe)
        for account in (spent, self._spent):
            account.add(answer, self._config)
        try:
            score, reason = grade(answer.content)
        except UnreadableGradeError as error:
            raise self._failure(answer, str(error), tokens=tokens, began=began) from None
        if answer.is_cut:
            self.signs += 1
        self._limited_since, self._limited_for_good = None, ""
        self._outage.answered()
        return score, self._redact(reason, MAX_REASON_CHARS)

    def _failure(self, answer: ModelAnswer, why: str, *, tokens: int, began: float) -> CallError:
        """Return the failure that an answer without a grade is."""
        if answer.refused:
            message = f"the text was refused: {answer.refused}"
            return CallError(self._redact(message, MAX_FAULT_CHARS), FailureKind.REFUSED)
        if not (answer.fault or answer.content or "").strip():
            why = "its content is empty"
            if answer.has_thoughts:
                why += ", and all of it stands in the field for thoughts"
        message = self._redact(
            f"the answer could not be read: {answer.fault or why}", MAX_FAULT_CHARS
        )
        if answer.is_cut:
            return CutError(f"{message} (cut at {tokens} tokens)", FailureKind.UNREADABLE)
        if answer.fault and answer.kind is FailureKind.LIMITED:
            self._endpoint.pace.limited(began=began, retry_after=None)
        return CallError(message, answer.kind, status=answer.status)

    async def _answer(
        self, prompt: Prompt, *, tokens: int, seed: int, is_probe: bool
    ) -> ModelAnswer:
        """Return an answer; calls other than probes wait while the endpoint is unavailable."""
        while True:
            if not is_probe:
                await self._outage.wait_until_available()
            async with self._endpoint.turn(urgent=is_probe):
                if not is_probe and self._outage.waiting:
                    continue
                body = self._body(tokens=tokens, seed=seed)
                try:
                    answer = await self._endpoint.ask(
                        model=self._config.model, messages=prompt, extra_body=body
                    )
                except CallError as error:
                    if (field := wants_other_limit_field(error, body)) is None:
                        raise
                    self._say(
                        f"wants {field} instead of {limit_field(body)}, and gets it; set "
                        f"judges.NAME.settings.request.{field}={tokens} to save this call",
                        about="field",
                    )
                    self._field = field
                    continue
                return read_answer(answer)

    def _body(self, *, tokens: int, seed: int) -> dict[str, Any]:
        """Return the fields of a request beside model and messages."""
        config = self._config
        fields: dict[str, Any] = {"temperature": config.temperature, "seed": seed}
        if config.schema:
            form = {"name": "grade", "schema": SCHEMA, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": form}
        if self._field is not None:
            fields[self._field] = tokens
        further = {name: v for name, v in self._request.items() if name not in LIMIT_FIELDS}
        return {name: value for name, value in {**fields, **further}.items() if value is not None}

    def _raise_tokens(self, error: CutError, *, used: int, has_room: bool) -> None:
        """Raise the limit of tokens for all later calls.

        Raises:
            EndpointAwayError: It cannot be raised any further.
        """
        most = self._most_tokens
        if not has_room:
            raise EndpointAwayError(
                f"{error}; the text leaves no room for more tokens in the context of the judge's "
                "model; use a model with a longer context, or set max_chars"
            )
        if used >= most:
            raise EndpointAwayError(
                f"{error}; max_tokens was raised up to most_tokens={most}; raise "
                "judges.NAME.settings.most_tokens, or use a judge that thinks less"
            )
        if used >= self._tokens:  # and not yet raised by another call
            self._tokens = min(most, CHANGE * used)
            self._say(
                f"cuts its answers at max_tokens={used}: up to {most} tokens are allowed instead "
                "(most_tokens); set judges.NAME.settings.max_tokens to save the calls that are cut",
                about="tokens",
            )

    def _check_patience(self, error: CallError, limits: int) -> None:
        """Say that the endpoint limits its rate, which the client then keeps to.

        Raises:
            EndpointAwayError: The endpoint has graded nothing for too long, or asks to wait longer.
        """
        now, patience = time.monotonic(), self._config.patience_seconds
        if has_no_credit(error):
            self._limited_for_good = f"{error}; no waiting helps"
            raise EndpointAwayError(self._limited_for_good)
        if self._limited_since is None:
            self._limited_since = now
        waited, asked = now - self._limited_since, error.retry_after or 0.0
        if waited + asked > patience or limits >= MOST_LIMITS:
            message = (
                f"{error} (limited {limits} times; nothing was graded for {waited:.0f} s, and it "
                f"asks for a pause of {asked:g} s; patience_seconds is {patience:g})"
            )
            if waited > patience:
                self._limited_for_good = message
            raise EndpointAwayError(message)
        self._say(
            f"limits its rate ({error}): calls wait as it asks and are sent more slowly, at most "
            f"{self._endpoint.pace.per_minute:.0f} a minute for now; set "
            "judges.NAME.settings.per_minute to the rate that it allows",
            about="rate",
        )

    def check_limited(self) -> None:
        """Raise EndpointAwayError while the endpoint grades nothing for longer than its patience.

        Calls that wait for their turn at the lowered rate would otherwise learn of it one by one.
        """
        if self._limited_for_good:
            raise EndpointAwayError(self._limited_for_good)

    def _say(self, what: str, *, about: str) -> None:
        """Log a warning about the endpoint, once for each subject."""
        if about not in self._said:
            self._said.add(about)
            _logger.warning("the judge %s %s", self._name, what)

    def _redact(self, text: str, max_chars: int) -> str:
        return self._endpoint.redact(text, max_chars=max_chars)


def _may_fit(error: CallError, limit: int) -> bool:
    """Return whether a text that is refused for its length may fit with fewer new tokens."""
    names_length = error.status in (400, 413, 422, 429) and not _FILTERED.search(str(error))
    return names_length and limit // CHANGE >= LEAST_TOKENS
