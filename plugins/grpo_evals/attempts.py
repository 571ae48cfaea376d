"""Play attempts with a model behind an endpoint, and write each as a line of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from grpo_core import Group, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.api.protocol import DEFAULT_TAGS, Finish, Tags
from grpo_core.api.runs import attempt_line, split_older_turns
from grpo_core.api.verify import AgentConversation, Conversation, Source, Sources, Transcript
from grpo_core.calls.api_client import CallError
from grpo_evals.agents import play_agent
from grpo_evals.chat import ChatTurn, Dialogue
from grpo_evals.policy import RemotePolicy
from grpo_evals.tally import Tally
from grpo_evals.types import EndpointUsage, NoText, Refusal


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits the attempts at the tasks of one environment."""

    turns: int
    """Most turns of the policy."""
    tokens: int
    """Most tokens of one turn."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The descriptions of the tools that the policy may call."""


@dataclass(frozen=True, slots=True)
class EndpointAttempt:
    """Holds one attempt at a task, judged or not."""

    key: TaskKey
    """The key of the task."""
    number: int
    """Number of the attempt among those at its task."""
    rollout: Rollout
    """What was said."""
    verdict: Verdict | None = None
    """Its verdict; None: it is judged with the others at its task."""
    usage: EndpointUsage = field(default_factory=EndpointUsage)
    """What it cost, if it is new."""
    refused: Refusal | None = None
    """Why the server refused a turn."""
    no_text: Mapping[NoText, int] = field(default_factory=dict)
    """How many of its turns have no text, by the reason."""
    thoughts_in: str = ""
    """The field in which the server sent the policy's thoughts."""

    @property
    def is_played(self) -> bool:
        """Return whether it came to its end, so that it can be judged."""
        return self.rollout.finish != "error"

    @property
    def is_judged(self) -> bool:
        """Return whether it has a verdict that is no error."""
        return self.verdict is not None and self.verdict.scored

    def to_line(self, draw: int) -> dict[str, Any]:
        """Return the attempt as JSON data; `draw` is that of its task."""
        rollout = self.rollout
        return {
            **attempt_line(self.key, draw, self.number, rollout, self.verdict),
            "tokens": sum(rollout.turn_lengths),
            "turn_lengths": list(rollout.turn_lengths),
            **({"error": rollout.error} if rollout.error else {}),
            **({} if rollout.returned is None else {"returned": rollout.returned}),
            **({"refused": self.refused} if self.refused else {}),
            **({"no_text": dict(self.no_text)} if self.no_text else {}),
            **({"thoughts_in": self.thoughts_in} if self.thoughts_in else {}),
            "usage": asdict(self.usage),
        }

    @classmethod
    def from_line(
        cls, line: Mapping[str, Any], tags: Tags | None = DEFAULT_TAGS
    ) -> EndpointAttempt:
        """Return the attempt that `to_line` wrote, also that of an older version.

        Args:
            line: the line.
            tags: the texts that open and close thoughts; None: nothing is a thought.

        Raises:
            Exception: the line holds none.
        """
        finish: Finish = line["finish"]
        refused: Refusal | None = line.get("refused")
        no_text: Mapping[NoText, int] = line.get("no_text", {})
        if finish not in get_args(Finish) or refused not in (None, *get_args(Refusal)):
            raise ValueError(f"finish is {finish!r}, refused {refused!r}")
        if not no_text.keys() <= set(get_args(NoText)):
            raise ValueError(f"no_text is {no_text!r}")
        rollout = Rollout(
            split_older_turns(map(Message.from_json, line["messages"]), tags),
            finish,
            error=line.get("error", ""),
            reply_dropped=line.get("reply_dropped", False),
            turn_lengths=tuple(line["turn_lengths"]),
            returned=line.get("returned"),
        )
        verdict = None if line["verdict"] is None else Verdict.from_json(line["verdict"])
        key = TaskKey(**line["key"])
        usage, thoughts_in = EndpointUsage(**line["usage"]), line.get("thoughts_in", "")
        number = line["attempt"]
        return cls(key, number, rollout, verdict, usage, refused, no_text, thoughts_in)


async def play(
    policy: RemotePolicy,
    sources: Sources,
    task: Task[Any],
    number: int,
    *,
    limits: AttemptLimits,
    seed: int,
) -> EndpointAttempt:
    """Play one attempt to its end, and judge it unless it is judged with others.

    Args:
        policy: takes the turns.
        sources: speak for the environments and judge.
        task: the task.
        number: number of the attempt among those at its task.
        limits: of the attempt.
        seed: with the key, fixes the seeds of the requests.

    Raises:
        ConfigError: the server refuses the key, the model or a setting.
        StoppedError: a stop was requested, and a request would have had to be repeated.
    """
    source = sources[task.key.env]
    conversation = sources.conversation(task)
    try:
        if isinstance(conversation, AgentConversation):
            rollout, tally = await play_agent(
                policy,
                conversation,
                task,
                number,
                turns=limits.turns,
                tokens=limits.tokens,
                seed=seed,
            )
            attempt = _attempt(task, number, rollout, tally)
        else:
            playing = _Playing(task, number, conversation, limits)
            await playing.to_the_end(policy, seed)
            attempt = playing.attempt()
        if not is_judged_alone(source):
            return attempt
        verdict = await conversation.verdict(attempt.rollout)
    finally:
        await conversation.close()
    (group,) = await sources.audited([Group(task, [attempt.rollout], [verdict])])
    return replace(attempt, verdict=group.verdicts[0])


def is_judged_alone(source: Source) -> bool:
    """Return whether an attempt is judged by itself as soon as it has ended."""
    return source.verifier.one_by_one or source.verifier.has_episodes


@dataclass(slots=True)
class _Playing:
    """Plays one attempt."""

    task: Task[Any]
    number: int
    conversation: Conversation
    limits: AttemptLimits
    transcript: Transcript = field(init=False)
    tally: Tally = field(default_factory=Tally)
    reply_dropped: bool = False

    def __post_init__(self) -> None:
        self.transcript = Transcript(self.limits.turns, self.conversation)

    async def to_the_end(self, policy: RemotePolicy, seed: int) -> None:
        """Play the dialogue to its end, turn by turn; a failure ends it with finish="error"."""
        transcript = self.transcript
        dialogue = Dialogue(self.task.prompt)
        dialogue.add(await transcript.open())
        reply: Sequence[Message] = ()
        while transcript.finish == "stop":
            place = ("endpoint", seed, self.number, transcript.turn)
            try:
                turn = await policy.turn(
                    dialogue,
                    limit=self.limits.tokens,
                    seed=self.task.key.rng(*place).getrandbits(31),
                    sample=self.number,
                    tools=self.limits.tools,
                )
            except CallError as error:
                transcript.messages += reply
                transcript.fail(str(error))
                return
            if not self._take(turn, reply):
                return
            dialogue.add_turn(turn)
            next_reply = await transcript.next_reply()
            if next_reply is None:
                return
            dialogue.add(next_reply)
            reply = next_reply

    def _take(self, turn: ChatTurn, reply: Sequence[Message]) -> bool:
        """Append a reply and the turn after it; return False if the server refused the turn.

        If it refused a later turn than the first, the attempt ends with the turn before, as where
        a model's context has no room for another.
        """
        self.tally.add(turn)
        if turn.refused and not turn.text and self.transcript.turn:
            self.transcript.finish, self.reply_dropped = "length", True
            return False
        self.transcript.messages += reply
        self.transcript.add_turn(turn.said, turn.finish)
        self.tally.lengths.append(turn.tokens)
        return turn.refused is None

    def attempt(self) -> EndpointAttempt:
        """Return the attempt, without a verdict."""
        rollout = Rollout(
            tuple(self.transcript.messages),
            self.transcript.finish,
            error=self.transcript.error,
            reply_dropped=self.reply_dropped,
            turn_lengths=tuple(self.tally.lengths),
        )
        return _attempt(self.task, self.number, rollout, self.tally)


def _attempt(task: Task[Any], number: int, rollout: Rollout, tally: Tally) -> EndpointAttempt:
    """Return an attempt without a verdict."""
    return EndpointAttempt(
        task.key,
        number,
        rollout,
        usage=tally.usage,
        refused=tally.refused,
        no_text=dict(tally.no_text),
        thoughts_in=tally.thoughts_in,
    )
