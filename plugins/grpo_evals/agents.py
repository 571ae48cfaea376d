"""Play attempts by agents with a remote model; their requests pass through a local endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from dataclasses import replace
from typing import Any

from grpo_core import Call, ConfigError, GrpoError, Message, Rollout, Task
from grpo_core.api.verify import (
    AgentConversation,
    check_agent_request,
    messages_of,
    run_agent,
    with_thoughts,
    without_prompt,
)
from grpo_core.calls.api_client import CallError
from grpo_core.protocol.endpoint import (
    Choice,
    CompletionAnswer,
    CompletionRequest,
    RefusedRequestError,
)
from grpo_evals.chat import ChatTurn, Dialogue
from grpo_evals.policy import RemotePolicy, StoppedError
from grpo_evals.tally import Tally
from grpo_evals.types import EndpointUsage


class RemoteCompleter:
    """Answers the requests of one agent by a model behind an endpoint (a `Completer`).

    Args:
        policy: takes the turns.
        task: the task of the attempt.
        number: number of the attempt among those at its task.
        turns: the most completions.
        tokens: the most tokens of one.
        seed: with the task and the number, fixes the seeds of the requests.
        clock: is stopped while the agent waits for the policy.

    Attributes:
        messages: what followed the prompt, as the last request and its answer have it.
        turns: number of completions.
        tally: what they cost, and which of them have no text.
        failure: why the model could not be asked.
    """

    def __init__(
        self,
        policy: RemotePolicy,
        task: Task[Any],
        number: int,
        *,
        turns: int,
        tokens: int,
        seed: int,
        clock: Call,
    ) -> None:
        self._policy, self._task, self._number = policy, task, number
        self._most_turns, self._most_tokens = turns, tokens
        self._seed, self._clock = seed, clock
        self._tags = policy.thought_tags
        self._asked: Counter[str] = Counter()
        """How often each text was to be continued."""
        self.messages: tuple[Message, ...] = ()
        self.turns = 0
        self.tally = Tally()
        self._answers: list[Message] = []
        """The answers so far, with their thoughts."""
        self.failure: Exception | None = None

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the completions of a request; see `Completer.complete`."""
        check_agent_request(request, self._policy.params, used=self.turns, most=self._most_turns)
        messages = with_thoughts(messages_of(request.prompt), self._answers, self._tags)
        dialogue = _dialogue(request, messages)
        self.turns += request.count
        try:
            with self._clock.stopped():
                turns = await asyncio.gather(
                    *(self._turn(request, dialogue) for _ in range(request.count))
                )
        except BaseException:
            self.turns -= request.count
            raise
        choices = tuple(map(_choice, turns))
        self.messages = (*without_prompt(messages, self._task.prompt), choices[0].message)
        self._answers += [choice.message for choice in choices]
        return CompletionAnswer(choices, turns[0].usage.prompt_tokens)

    async def _turn(self, request: CompletionRequest, dialogue: Dialogue) -> ChatTurn:
        """Return one completion.

        Raises:
            RefusedRequestError: it does not fit the model's context.
            GrpoError: the model could not be asked; `failure` has the reason.
        """
        more: dict[str, Any] = {"stop": list(request.stop)} if request.stop else {}
        if request.json_schema is not None:
            schema = {"name": "answer", "schema": request.json_schema, "strict": True}
            more["response_format"] = {"type": "json_schema", "json_schema": schema}
        try:
            turn = await self._policy.turn(
                dialogue,
                limit=min(self._most_tokens, request.max_tokens or self._most_tokens),
                seed=self._next_seed(dialogue),
                sample=self._number,
                tools=request.tools,
                more=more,
            )
        except (CallError, ConfigError, StoppedError) as error:
            self.failure = error
            raise GrpoError(f"the model cannot be asked: {error}") from None
        self.tally.add(turn)
        if turn.refused == "context":
            raise RefusedRequestError(
                "the messages do not fit the model's context; shorten them",
                code="context_length_exceeded",
            )
        self.tally.lengths.append(turn.tokens)
        return turn

    def _next_seed(self, dialogue: Dialogue) -> int:
        """Return the seed of a request, which depends on what is continued and how often it was."""
        text = json.dumps(dialogue.fields(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._asked[digest] += 1
        place = ("endpoint", self._seed, self._number, digest, self._asked[digest])
        return self._task.key.rng(*place).getrandbits(31)


async def play_agent(
    policy: RemotePolicy,
    conversation: AgentConversation,
    task: Task[Any],
    number: int,
    *,
    turns: int,
    tokens: int,
    seed: int,
) -> tuple[Rollout, Tally]:
    """Run one attempt by an agent; an agent that fails may be started again.

    Args:
        policy: takes the turns.
        conversation: runs the agent.
        task: the task.
        number: number of the attempt among those at its task.
        turns: the most completions.
        tokens: the most tokens of one.
        seed: with the task and the number, fixes the seeds of the requests.

    Returns:
        The rollout of the last start, and the tally of its turns with the cost of all starts.

    Raises:
        ConfigError: the server refuses the key, the model or a setting.
        StoppedError: a stop was requested, and a request would have had to be repeated.
    """
    completers: list[RemoteCompleter] = []

    def begin(clock: Call) -> RemoteCompleter:
        completer = RemoteCompleter(
            policy, task, number, turns=turns, tokens=tokens, seed=seed, clock=clock
        )
        completers.append(completer)
        return completer

    rollout, _ = await run_agent(conversation, begin)
    if not completers:
        return rollout, Tally()
    last = completers[-1]
    usage = sum((completer.tally.usage for completer in completers), start=EndpointUsage())
    tally = replace(last.tally, usage=usage)
    if isinstance(last.failure, CallError):
        failed = replace(rollout, finish="error", error=str(last.failure))
        return failed, replace(tally, refused=None)
    if last.failure is not None:
        raise last.failure
    return replace(rollout, turn_lengths=tuple(tally.lengths)), tally


def _dialogue(request: CompletionRequest, messages: tuple[Message, ...]) -> Dialogue:
    """Return what a request continues.

    Args:
        request: the request.
        messages: its messages, the turns of the policy as it wrote them.

    Raises:
        RefusedRequestError: it is tokens, which only the policy of a run continues, or no text.
    """
    prompt = request.prompt
    if not isinstance(prompt, str):
        if len(messages) < len(prompt):
            raise RefusedRequestError(
                "a prompt of tokens cannot be continued by a model behind an endpoint; send text"
            )
        prompt = messages
    try:
        return Dialogue(prompt)
    except ConfigError as error:
        raise RefusedRequestError(str(error)) from None


def _choice(turn: ChatTurn) -> Choice:
    finish: Any = "tool_calls" if turn.tool_calls else turn.finish
    return Choice(turn.text, turn.said, finish, token_ids=(), tokens=(), logprobs=())
