"""An agent's requests: which tokens they continue, which segments come of them, and what is refused."""

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from grpo_core import Message, TaskKey
from grpo_core.calls.call import Call, current_call
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.endpoint import CompletionAnswer, CompletionRequest, RefusedRequestError
from grpo_core.protocol.sampler import Completion, Request, SamplingParams
from grpo_core.protocol.types import Task
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.capture import Capture, Drawing
from grpo_core.train.rollout.draws import Draws

from .arrange import tiny_policy

POLICY = tiny_policy()
PROMPT = (Message("user", "say something"),)
TASK: Task[None] = Task(TaskKey("letters", "train", 3), PROMPT, None)
BUDGET = Budget(turn=6, turns=20, context=POLICY.context, for_agents=True)
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": PLACE},
}


def capture(
    sampler: Any = None, *, budget: Budget = BUDGET, attempt: int = 0, clock: Call | None = None
) -> Capture:
    drawing = Drawing(POLICY, sampler or Engine(POLICY), SamplingParams())
    draws = Draws(TASK.key, seed=5, step=2, attempt=attempt)
    return Capture(TASK, budget, drawing, draws, clock or current_call())


def ask(*messages: Message, **fields: Any) -> CompletionRequest:
    return CompletionRequest(messages, **fields)


async def turns(agent: Capture, *said: str, start: tuple[Message, ...] = PROMPT) -> Any:
    """Play a plain dialogue; return the messages, the last of which is the policy's."""
    messages = start
    for text in (*said, None):
        answer = await agent.complete(ask(*messages))
        messages = (*messages, answer.choices[0].message)
        messages += () if text is None else (Message("user", text),)
    return messages


class Recording:
    """Is a sampler that keeps what it was asked and answered."""

    def __init__(self) -> None:
        self._inner = Engine(POLICY)
        self.drawn: list[tuple[Request, Completion]] = []

    async def generate(self, request: Request) -> Completion:
        completion = await self._inner.generate(request)
        self.drawn.append((request, completion))
        return completion


def random_agent(seed: int, agent: Capture) -> Any:
    """Ask with histories that go on, branch off anywhere, repeat, or begin anew."""
    rng = random.Random(seed)

    async def run() -> None:
        histories: list[tuple[Message, ...]] = []
        for number in range(12):
            known = rng.choice(histories) if histories and rng.random() < 0.8 else ()
            cut = rng.randint(0, len(known)) if rng.random() < 0.5 else len(known)
            messages = known[:cut]
            if not messages or messages[-1].role == "assistant":
                messages += (Message("user", rng.choice(["a", "more", f"number {number}"])),)
            answer = await agent.complete(ask(*messages, count=rng.choice([1, 1, 2])))
            histories += [(*messages, choice.message) for choice in answer.choices]

    return run()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_every_drawn_token_is_trained_once_after_the_very_tokens_that_it_was_drawn_after(seed):
    sampler = Recording()
    agent = capture(sampler, budget=replace(BUDGET, turns=40))
    asyncio.run(random_agent(seed, agent))
    drawn = [
        ((*request.prefix, *completion.token_ids[:place]), token, logprob)
        for request, completion in sampler.drawn
        for place, (token, logprob) in enumerate(
            zip(completion.token_ids, completion.logprobs, strict=True)
        )
    ]
    trained = [
        ((*segment.prompt_ids, *segment.token_ids[:place]), token, segment.logprobs[place])
        for segment in agent.segments()
        for place, token in enumerate(segment.token_ids)
        if segment.trainable[place]
    ]
    assert sorted(trained) == sorted(drawn)
    assert sum(agent.turn_lengths()) == len(drawn)


async def test_a_history_that_goes_on_lengthens_its_segment_and_one_that_is_rewritten_starts_another():
    agent = capture()
    messages = await turns(agent, "one", "two")  # user, policy, one, policy, two, policy
    await agent.complete(ask(*messages[:4], Message("user", "other")))  # branches off
    await agent.complete(ask(*PROMPT))  # the first prompt again
    summary = (Message("user", "a summary of it all"),)
    await turns(agent, "and on", start=summary)
    edited = (*messages[:1], Message("assistant", "not what it said"), Message("user", "?"))
    await agent.complete(ask(*edited))
    first, branch, again, rewritten, edited = agent.segments()
    first_end = (*first.prompt_ids, *first.token_ids)
    assert branch.prompt_ids != first_end[: len(branch.prompt_ids)]
    shared = len([1 for a, b in zip(branch.prompt_ids, first_end, strict=False) if a == b])
    assert shared > len(first.prompt_ids)  # the very tokens of the first two turns
    assert again.prompt_ids == first.prompt_ids
    assert again.token_ids != first.token_ids[: len(again.token_ids)]  # drawn with other numbers
    assert [sum(each.trainable) > 0 for each in agent.segments()] == [True] * 5
    assert "and on" in POLICY.decode(rewritten.token_ids)
    assert edited.prompt_ids == POLICY.encode_chat(
        (PROMPT[0], Message("assistant", "not what it said"), Message("user", "?")), tools=()
    )
    assert len(agent.turn_lengths()) == 3 + 1 + 1 + 2 + 1


def test_draws_do_not_depend_on_the_order_of_arrival():
    async def run(agent: Capture, order: tuple[int, ...]) -> dict[int, CompletionAnswer]:
        prompts = [ask(Message("user", text)) for text in ("a", "b", "c")]
        return {place: await agent.complete(prompts[place]) for place in order}

    answers = [asyncio.run(run(capture(attempt=1), order)) for order in ((0, 1, 2), (2, 0, 1))]
    assert all(other == answers[0] for other in answers)
    assert asyncio.run(run(capture(attempt=2), (0, 1, 2))) != answers[0]


async def test_requests_at_once_that_continue_one_history_do_not_share_tokens():
    agent = capture()
    messages = await turns(agent)
    more = ask(*messages, Message("user", "go on"))
    await asyncio.gather(agent.complete(more), agent.complete(more), agent.complete(more))
    segments = agent.segments()
    assert len(segments) == 3
    assert segments[1].prompt_ids == segments[2].prompt_ids
    assert len({segment.token_ids for segment in segments}) == 3


async def test_the_calls_of_tools_that_a_client_sends_back_continue_the_tokens_whatever_their_ids():
    text = '<tool_call>\n{"name": "look", "arguments": {"place": "here"}}\n</tool_call>'
    agent = capture(Saying(text))
    request = ask(*PROMPT, tools=(TOOL,))
    answer = await agent.complete(request)
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert (call.name, call.arguments) == ("look", {"place": "here"})
    sent = replace(choice.message, tool_calls=(replace(call, id="x1"),))
    await agent.complete(ask(*PROMPT, sent, Message("tool", "a wall"), tools=(TOOL,)))
    await agent.complete(ask(*PROMPT, sent, Message("tool", "a wall")))  # without the tools
    first, other = agent.segments()
    assert agent.turn_lengths() == (len(POLICY.encode_text(text, before="")) + 1,) * 3
    assert sum(first.trainable) == 2 * agent.turn_lengths()[0]
    assert "a wall" in POLICY.decode(first.token_ids)
    assert other.token_ids == first.token_ids[: len(other.token_ids)]


class Saying:
    """Is a sampler that always says the same."""

    def __init__(self, text: str) -> None:
        self._ids = (*POLICY.encode_text(text, before=""), POLICY.end_ids[0])

    async def generate(self, request: Request) -> Completion:
        return Completion(self._ids, (-0.5,) * len(self._ids), "stop")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 0.2}, "sampling.temperature"),
        ({"top_p": 0.5}, "sampling.top_p"),
        ({"seed": 3}, "leave it out"),
        ({"count": 21}, "max_turns"),
    ],
)
def test_a_request_that_contradicts_the_run_is_refused_and_leaves_nothing(fields, words):
    agent = capture()
    with pytest.raises(RefusedRequestError, match=words):
        asyncio.run(agent.complete(ask(*PROMPT, **fields)))
    assert agent.segments() == ()
    allowed = ask(*PROMPT, temperature=1.0, top_p=1.0, max_tokens=2)
    assert len(asyncio.run(agent.complete(allowed)).choices[0].token_ids) <= 2


async def test_without_room_or_turns_the_refusal_has_a_code_by_which_the_attempt_ends():
    agent, codes = capture(budget=replace(BUDGET, turns=1, context=300)), []
    for text in ("x" * 4000, "a", "b"):
        try:
            await agent.complete(ask(Message("user", text)))
        except RefusedRequestError as error:
            codes.append(error.code)
    assert codes == ["context_length_exceeded", "turns_exceeded"]


class Slow(Engine):
    """Waits before it draws."""

    def __init__(self, seconds: float) -> None:
        super().__init__(POLICY)
        self.seconds = seconds

    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(self.seconds)
        return await super().generate(request)


async def test_a_request_that_is_given_up_leaves_no_tokens_and_no_gap_in_the_random_numbers():
    sampler = Slow(60)
    agent, other = capture(sampler), capture()
    request = asyncio.create_task(agent.complete(ask(*PROMPT)))
    await asyncio.sleep(0.05)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    sampler.seconds = 0
    await agent.complete(ask(*PROMPT))
    await other.complete(ask(*PROMPT))
    assert agent.segments() == other.segments()


def test_the_clock_of_the_agent_stands_still_while_it_waits_for_the_policy():
    clock = Call(0.2)
    asyncio.run(capture(Slow(0.3), clock=clock).complete(ask(*PROMPT)))
    assert clock.left() > 0.05


async def test_raw_text_goes_on_where_it_stopped_and_tokens_do_anyway():
    agent = capture()
    answer = await agent.complete(CompletionRequest("once upon", max_tokens=3))
    (choice,) = answer.choices
    await agent.complete(CompletionRequest("once upon" + choice.text + " and"))
    ids = (5, 6, 7)
    (choice,) = (await agent.complete(CompletionRequest(ids, max_tokens=3))).choices
    await agent.complete(CompletionRequest((*ids, *choice.token_ids, 8)))
    text, tokens = agent.segments()
    assert text.prompt_ids == POLICY.encode("once upon")
    assert tokens.prompt_ids == (5, 6, 7)
    assert [value for value in tokens.trainable if value == 0] == [0]


def test_a_json_schema_holds_the_answer_and_the_tokens_are_kept():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    agent = capture(budget=replace(BUDGET, turn=60))
    request = ask(*PROMPT, json_schema=schema)
    (choice,) = asyncio.run(agent.complete(request)).choices
    assert choice.finish == "length" or type(json.loads(choice.text)["a"]) is int
    (segment,) = agent.segments()
    assert segment.token_ids == choice.token_ids
    assert 0 < agent.kept_mass < 1
    with pytest.raises(RefusedRequestError, match="response_format"):
        asyncio.run(agent.complete(ask(*PROMPT, json_schema={"type": "nothing"})))
    with pytest.raises(RefusedRequestError, match="cannot hold"):
        asyncio.run(capture(Saying("x")).complete(request))
    assert agent.failure is None
