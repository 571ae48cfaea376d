"""Answer an agent's requests with the policy, and keep the tokens of every request.

A request whose messages continue an earlier one continues its very tokens. One that rewrites the
history starts a new segment, whose prefix is the longest history that it shares with an earlier
request, again with its very tokens. So nothing that the policy wrote is tokenised again, and each
token that it drew is trainable in exactly one segment.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from grpo_core.calls.call import Call
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.endpoint import (
    Choice,
    CompletionAnswer,
    CompletionRequest,
    RefusedRequestError,
)
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Sampler, SamplingParams
from grpo_core.protocol.thoughts import Tags
from grpo_core.protocol.types import Message, Segment, Task
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.completions import (
    check_length,
    generate,
    is_chat,
    make_choice,
    may_think,
    prompt_tokens,
    sampler_request,
    sampling_params,
)
from grpo_core.train.rollout.draws import Draws
from grpo_core.verify.agents.agents import check_agent_request
from grpo_core.verify.agents.sent_back import is_sent_back


@dataclass(frozen=True, slots=True)
class Drawing:
    """Hold what attempts are sampled with."""

    policy: Policy
    sampler: Sampler
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class _Turn:
    """Mark the end of a turn of the policy, from which a later request may continue."""

    history: str | tuple[int, ...] | tuple[Message, ...]
    """The prompt of the request and what the policy answered, as the client knows them."""
    tools: str
    """Digest of the tools that the request offered."""
    end: int
    """How many tokens of its segment there are up to here."""
    length: int
    """Number of its tokens."""
    version: int
    is_whole: bool
    """Whether its tokens are what the client knows: without an end token or stop string, which are
    cut off a raw text."""


@dataclass(slots=True)
class _Growing:
    """Collect the tokens of a segment in progress."""

    prompt_ids: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trainable: list[int] = field(default_factory=list)
    turns: list[_Turn] = field(default_factory=list)
    is_taken: bool = False
    """A request continues it at this moment, so another one starts a segment of its own."""

    def add(self, token_ids: Sequence[int], logprobs: Sequence[float], *, trainable: int) -> None:
        """Append tokens; `trainable` is 1 for those of the policy, else 0."""
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.trainable += [trainable] * len(token_ids)


@dataclass(frozen=True, slots=True)
class _Start:
    """Describe the tokens that a request continues."""

    prefix: tuple[int, ...]
    """All of them."""
    segment: _Growing | None = None
    """The segment that they lengthen; None: a new one."""
    new_ids: tuple[int, ...] = ()
    """Those that are not in the segment yet."""
    known: tuple[Message, ...] = ()
    """The messages of the request that it continues, with the thoughts of the policy, which its
    client may not have sent back."""


class Capture:
    """Answers the requests of one agent in one attempt (a `Completer`).

    Args:
        task: the task of the attempt.
        budget: limits its tokens and turns.
        drawing: says how it is drawn.
        draws: fixes its random numbers.
        clock: is stopped while the agent waits for the policy.
    """

    def __init__(
        self, task: Task[Any], budget: Budget, drawing: Drawing, draws: Draws, clock: Call
    ) -> None:
        self._task, self._budget, self._drawing, self._clock = task, budget, drawing, clock
        self._draws = draws
        self._segments: list[_Growing] = []
        self._last: _Turn | None = None
        self._turns = 0
        """Number of completions, those in progress included."""
        self._repeats: defaultdict[bytes, set[int]] = defaultdict(set)
        """The numbers of the requests for each prefix, by its digest."""
        self.kept_mass = 1.0
        """Least probability mass that top-p, top-k and min-p kept in any draw."""
        self.was_cut_off = False
        """Whether the last completion was ended by its budget."""
        self.failure: Exception | None = None
        """Why the policy could not be sampled."""

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the completions of a request; see `Completer.complete`."""
        check_agent_request(
            request, self._drawing.params, used=self._turns, most=self._budget.turns
        )
        check_length(self._drawing.policy, request)
        start = self._start_of(request)
        count = self._tokens_for(request, start)
        self._turns += request.count
        if start.segment is not None:
            start.segment.is_taken = True
        try:
            with self._clock.stopped():
                completions = await self._draw_all(request, start.prefix, count)
        except BaseException:
            self._turns -= request.count
            raise
        finally:
            if start.segment is not None:
                start.segment.is_taken = False
        choices = [
            make_choice(
                self._drawing.policy,
                start.prefix,
                completion,
                stop=self._params(request).stop,
                tools=request.tools,
                may_think=may_think(request),
            )
            for completion in completions
        ]
        for place, (completion, choice) in enumerate(zip(completions, choices, strict=True)):
            self._record(request, start, completion, choice, is_first=place == 0)
        return CompletionAnswer(tuple(choices), len(start.prefix))

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments so far, in the order in which they began."""
        return tuple(
            Segment(
                each.prompt_ids, tuple(each.token_ids), tuple(each.logprobs), tuple(each.trainable)
            )
            for each in self._segments
        )

    def turn_lengths(self) -> tuple[int, ...]:
        """Return the number of tokens of each turn of the policy, segment by segment."""
        return tuple(turn.length for each in self._segments for turn in each.turns)

    def versions(self) -> tuple[int, ...]:
        """Return the version of the weights that drew each turn, segment by segment."""
        return tuple(turn.version for each in self._segments for turn in each.turns)

    def messages(self) -> tuple[Message, ...]:
        """Return the history of the newest segment, without the task's prompt if it begins so."""
        if not self._segments:
            return ()
        segment, prompt = self._segments[-1], self._task.prompt
        history = segment.turns[-1].history
        if not is_chat(history):
            policy = self._drawing.policy
            text = policy.decode(segment.token_ids, after=segment.prompt_ids)
            return (policy.split(text, segment.prompt_ids),)
        shared = len(prompt) if not isinstance(prompt, str) else 0
        return history[shared:] if history[:shared] == prompt else history

    def _params(self, request: CompletionRequest) -> SamplingParams:
        return sampling_params(request, self._drawing.params)

    def _tokens_for(self, request: CompletionRequest, start: _Start) -> int:
        """Return the budget of a completion.

        Raises:
            RefusedRequestError: there is no room for any token.
        """
        segment = start.segment
        prompt_length = len(start.prefix if segment is None else segment.prompt_ids)
        room = self._budget.remaining(
            prompt=prompt_length, written=len(start.prefix) - prompt_length
        )
        if room == 0:
            raise RefusedRequestError(
                f"the messages have {len(start.prefix)} tokens, which leaves no room for an answer "
                "(the model's context, or sampling.max_dialogue_tokens); shorten them",
                code="context_length_exceeded",
            )
        return min(room, request.max_tokens or room)

    def _start_of(self, request: CompletionRequest) -> _Start:
        """Return what a request continues: the longest history that an earlier one has."""
        tools, tags = _digest(request), self._drawing.policy.thought_tags
        best: tuple[_Growing, _Turn] | None = None
        for segment in self._segments:
            for turn in segment.turns:
                may_go_on = turn.tools == tools and (
                    turn.is_whole or not isinstance(request.prompt, str)
                )
                is_longer = best is None or len(turn.history) >= len(best[1].history)
                if may_go_on and is_longer and _continues(request.prompt, turn.history, tags):
                    best = segment, turn
        if best is None:
            return _Start(prompt_tokens(self._drawing.policy, request))
        segment, turn = best
        own_ids = tuple(segment.token_ids[: turn.end])
        new_ids = self._ids_after(request, turn, own_ids)
        prefix = (*segment.prompt_ids, *own_ids, *new_ids)
        known = turn.history if is_chat(turn.history) else ()
        if turn is segment.turns[-1] and not segment.is_taken:
            return _Start(prefix, segment, new_ids, known)
        return _Start(prefix, known=known)

    def _ids_after(
        self, request: CompletionRequest, turn: _Turn, own_ids: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the tokens of what a request adds to the history of a turn.

        Raises:
            RefusedRequestError: the chat template refuses the messages.
        """
        policy, prompt, history = self._drawing.policy, request.prompt, turn.history
        known = len(history)
        if isinstance(prompt, str):
            return policy.encode_text(prompt[known:], before=prompt[:known])
        if not is_chat(prompt):
            return cast(tuple[int, ...], prompt[known:])
        calls = prompt[known - 1].tool_calls  # with the client's ids, to which results belong
        last_turn = replace(cast(Message, history[-1]), tool_calls=calls)
        try:
            return policy.encode_after(
                (*prompt[: known - 1], last_turn),
                prompt[known:],
                last=own_ids[-1],
                tools=request.tools,
            )
        except ConfigError as error:
            raise RefusedRequestError(str(error)) from None

    async def _draw_all(
        self, request: CompletionRequest, prefix: tuple[int, ...], count: int
    ) -> list[Completion]:
        """Return all completions of a request; if one fails, the others are given up."""
        draws = [
            asyncio.create_task(self._draw(request, prefix, count)) for _ in range(request.count)
        ]
        try:
            return await asyncio.gather(*draws)
        finally:
            for draw in draws:
                draw.cancel()
            await asyncio.gather(*draws, return_exceptions=True)

    async def _draw(
        self, request: CompletionRequest, prefix: tuple[int, ...], count: int
    ) -> Completion:
        """Return a completion; its random numbers depend on the prefix and on how often it came.

        The number of a completion that there is not in the end is free again.

        Args:
            request: the request.
            prefix: the tokens to continue.
            count: the budget.
        """
        draws = self._draws
        digest = hashlib.sha256(array("q", prefix).tobytes()).digest()
        used = self._repeats[digest]
        number = next(number for number in range(len(used) + 1) if number not in used)
        used.add(number)
        place = (draws.seed, draws.step, draws.occurrence, draws.attempt)
        key = draws.key.rng("agent", *place, digest.hex(), number).getrandbits(128)
        try:
            return await generate(
                self._drawing.sampler,
                sampler_request(
                    prefix,
                    self._params(request),
                    key=key,
                    count=count,
                    json_schema=request.json_schema,
                ),
            )
        except BaseException as error:
            used.discard(number)
            if isinstance(error, Exception) and not isinstance(error, RefusedRequestError):
                self.failure = error
            raise

    def _record(
        self,
        request: CompletionRequest,
        start: _Start,
        completion: Completion,
        choice: Choice,
        *,
        is_first: bool,
    ) -> None:
        """Keep a completion, in the segment that it continues or in a new one."""
        segment = start.segment if is_first else None
        if segment is None:
            segment = _Growing(start.prefix)
            self._segments.append(segment)
        else:
            segment.add(start.new_ids, [0.0] * len(start.new_ids), trainable=0)
        segment.add(completion.token_ids, completion.logprobs, trainable=1)
        prompt = request.prompt
        history: str | tuple[int, ...] | tuple[Message, ...]
        if isinstance(prompt, str):
            history = prompt + choice.text
        elif is_chat(prompt):
            history = (*start.known, *prompt[len(start.known) :], choice.message)
        else:
            history = (*cast(tuple[int, ...], prompt), *completion.token_ids)
        segment.turns.append(
            _Turn(
                history,
                _digest(request),
                len(segment.token_ids),
                len(completion.token_ids),
                completion.version,
                completion.finish == "length",
            )
        )
        self.kept_mass = min(self.kept_mass, completion.kept_mass)
        self.was_cut_off = completion.finish == "length"


def _digest(request: CompletionRequest) -> str:
    """Return what the tokens of the messages depend on besides the messages."""
    return json.dumps([dict(tool) for tool in request.tools], sort_keys=True, default=str)


def _continues(prompt: Any, history: Any, tags: Tags | None) -> bool:
    """Return whether a prompt begins with a history and has more."""
    if type(prompt) is not type(history) or len(prompt) <= len(history):
        return False
    if isinstance(prompt, str):
        return prompt.startswith(history)
    return all(
        is_sent_back(sent, known, tags)
        if isinstance(sent, Message) and isinstance(known, Message)
        else sent == known
        for sent, known in zip(prompt, history, strict=False)
    )
