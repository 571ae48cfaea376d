"""Thoughts of the policy: split where a turn is drawn, whatever opened them, with every token as it was drawn."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core import ConfigError, Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.calls.call import current_call
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.texts import Texts
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.protocol.sampler import Completion, Request, SamplingParams
from grpo_core.protocol.thoughts import template_tags
from grpo_core.protocol.tools import answers, schemas
from grpo_core.runs.lines import read_lines
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.capture import Capture, Drawing
from grpo_core.train.rollout.draws import Draws
from grpo_core.verify.episodes.conversation import StatelessConversations

from .arrange import rolled_out
from .real_templates import TEMPLATES
from .runs import finished_arithmetic
from .samplers import Copyless
from .tiny import CHAT_TEMPLATE, save_tiny, tiny_model, tiny_tokenizer
from .trained import trained

OPENING = CHAT_TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
"""A template whose prompts open a thought, as that of DeepSeek-R1 does."""
CLOSED = CHAT_TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
"""One that closes it at once, as that of Qwen3 without thinking."""
PROMPT = (Message("user", "What is 2 + 3?"),)
TASK: Task[None] = Task(TaskKey("sums", "train", 0), PROMPT, None)


def policy_of(template: str = CHAT_TEMPLATE, tags: Sequence[str] | None = None) -> Policy:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return Policy(tiny_model(), tokenizer, shared_prefix=False, thought_tags=tags)


def ids(policy: Policy, text: str) -> tuple[int, ...]:
    return (*policy.encode_text(text, before=""), policy.end_ids[0])


class Saying(Copyless):
    """Is a sampler that says what it is told, turn by turn."""

    def __init__(self, policy: Policy, *turns: str) -> None:
        self.turns = [ids(policy, turn) for turn in turns]
        self.prefixes: list[tuple[int, ...]] = []

    async def generate(self, request: Request) -> Completion:
        tokens = self.turns[len(self.prefixes)]
        self.prefixes.append(request.prefix)
        drawn = tokens[: len(request.uniforms)]
        return Completion(drawn, (-1.0,) * len(drawn), "stop" if drawn == tokens else "length")


class Asking(StatelessConversations):
    """Answers each turn, and remembers which content it heard."""

    def __init__(self, answer: Any = None) -> None:
        self.heard: list[str] = []
        self.answer = answer or (lambda message: [Message("user", "Sure?")])

    async def reply(self, task: Any, messages: Any) -> Any:
        self.heard.append(messages[-1].content)
        return self.answer(messages[-1])


def dialogue(policy: Policy, *turns: str, room: int = 400, **more: Any) -> tuple[Rollout, Saying]:
    sampler, replies = Saying(policy, *turns), more.pop("replies", Asking())
    budget = Budget(room, len(turns), **more)
    rolled = rolled_out(policy, sampler, [TASK], attempts=1, budget=budget, replies=replies)
    return asyncio.run(rolled)[0][0], sampler


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        ("qwen3", ("<think>", "</think>")),
        ("qwen3_6", ("<think>", "</think>")),
        ("gptoss", ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")),
        ("gemma4", ("<|channel>thought", "<channel|>")),
        ("llama3_2", ("<think>", "</think>")),
    ],
)  # fmt: skip
def test_the_tags_are_those_that_the_template_shows(template: str, tags: tuple[str, str]) -> None:
    text = TEMPLATES[template].read_text(encoding="utf-8")
    assert template_tags(text) == tags
    assert policy_of(text).thought_tags == tags
    assert template_tags("{{ '[THINK]' + thoughts + '[/THINK]' }}") == ("[THINK]", "[/THINK]")


def test_the_setting_goes_before_the_template(tmp_path: Path) -> None:
    said = "<think>a</think>b"
    assert policy_of(OPENING, ("[THINK]", "[/THINK]")).split(said, ()).content == said
    assert policy_of(OPENING, ()).split(said, ()) == Message("assistant", said)
    name = str(save_tiny(tmp_path / "model"))
    layers = {"environment": "arithmetic", "model": {"name": name, "thought_tags": "[A],[/A]"}}
    policy = load_policy(build_config([layers]), need_reference=False)
    assert policy.split("[A]a[/A]b", ()).thoughts == "a"
    spaced = {"model": {"thought_tags": ["[B]\n", "\n[/B]\n"]}}
    assert build_config([layers, spaced]).model.thought_tags == ("[B]", "[/B]")


@pytest.mark.parametrize("tags", ["<think>", ["<a>", "<a>"], ["", "</a>"], ["a", "b", "c"]])
def test_tags_that_are_no_pair_are_refused_in_one_line(tags: object) -> None:
    with pytest.raises(ConfigError, match=r"model\.thought_tags.*the opening and the closing tag"):
        build_config([{"environment": "arithmetic", "model": {"thought_tags": tags}}])


@pytest.mark.parametrize(
    ("template", "drawn", "thoughts", "content"),
    [
        (OPENING, "Two and three.\n</think>\n\n5", "Two and three.", "5"),
        (OPENING, "<think>\nTwo.</think>5", "Two.", "5"),
        (OPENING, "5", "5", ""),
        (CLOSED, "5</think>6", "", "5</think>6"),
        (CLOSED, "<think>a</think>5", "a", "5"),
        (CHAT_TEMPLATE, " <think>a</think>5", "a", "5"),
        (CHAT_TEMPLATE, "5 <think>a</think>", "", "5 <think>a</think>"),
        (CHAT_TEMPLATE, "<think>a</think>print('</think>')", "a", "print('</think>')"),
        (CHAT_TEMPLATE, "<think>a", "a", ""),
    ],
)
def test_a_thought_opens_the_turn_or_was_opened_by_the_prompt(template, drawn, thoughts, content):
    rollout, _ = dialogue(policy_of(template), drawn)
    (turn,) = rollout.messages
    assert (turn.thoughts, turn.content, rollout.text) == (thoughts, content, content)
    assert rollout.raw == drawn


def test_a_raw_text_that_ends_with_the_tag_opens_a_thought_too() -> None:
    """As the prompts of TinyZero do."""
    policy = policy_of()
    task = replace(TASK, prompt="User: 2 + 3? Assistant: <think>")
    sampler = Saying(policy, "Two.</think> 5")
    rolled = rolled_out(policy, sampler, [task], attempts=1, budget=Budget(99, 1))
    assert asyncio.run(rolled)[0][0].text == "5"


@pytest.mark.parametrize("template", [OPENING, CHAT_TEMPLATE])
def test_a_dialogue_has_the_tokens_that_it_has_without_splitting(template: str) -> None:
    opening = "" if template == OPENING else "<think>"
    turns = (f"{opening}a\n</think>\n\n4", f"{opening}b </think>5", f"{opening}c</think>\n6")
    policy, heard = policy_of(template), Asking()
    rollout, sampler = dialogue(policy, *turns, replies=heard)
    plain, other = dialogue(policy_of(template, ()), *turns)
    assert rollout.token_ids == plain.token_ids
    assert (rollout.trainable, rollout.turn_lengths) == (plain.trainable, plain.turn_lengths)
    assert sampler.prefixes == other.prefixes
    assert heard.heard == ["4", "5"]
    policys = [m for m in rollout.messages if m.role == "assistant"]
    assert [(m.thoughts, m.content) for m in policys] == [("a", "4"), ("b", "5"), ("c", "6")]
    assert tuple(m.raw for m in policys) == turns
    assert all(m.content == m.raw for m in plain.messages)


def test_thoughts_count_against_the_budget_of_a_turn() -> None:
    rollout, _ = dialogue(policy_of(), "<think>a long thought</think>5", room=12)
    assert (rollout.finish, rollout.text, rollout.turn_lengths) == ("length", "", (12,))
    assert rollout.messages[0].thoughts == "a lon"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_call_of_a_tool_in_thoughts_is_not_made() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    replies = Asking(lambda message: answers((add,), message))
    turns = (f"<think>I call {call}.</think>\n{call}", f"<think>{call}</think>5", "no more")
    rollout, _ = dialogue(policy_of(), *turns, replies=replies, tools=schemas((add,)))
    assert [m.content for m in rollout.messages if m.role == "tool"] == ["5"]
    assert rollout.text == "5"


def test_an_answer_behind_an_opened_thought_closes_it_first() -> None:
    policy = policy_of(OPENING)
    prompt_ids = policy.encode(PROMPT)
    assert policy.turn(prompt_ids, policy.encode_answer(PROMPT, "5")).content == "5"
    thought = policy.encode_answer(PROMPT, "Hm.</think>5", may_think=True)
    assert policy.turn(prompt_ids, thought) == Message(
        "assistant", "5", None, "Hm.", ("", "</think>")
    )
    string = policy.encode_answer(PROMPT, "print('</think>')")
    assert policy.turn(prompt_ids, string).content == "print('</think>')"
    for other in (policy_of(CLOSED), policy_of()):
        assert other.decode(other.encode_answer(PROMPT, "5")) == "5"
    raw = "Assistant: <think>"
    assert policy.decode(policy.encode_answer(raw, "5")) == "</think>\n\n5"


class Five(Environment[None]):
    """Pays for the answer 5."""

    trusted = True
    max_new_tokens = 8

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, (Message("user", f"say 5 ({key.index})"),), None)

    def verify(self, task: Task[None], rollout: Rollout) -> Verdict:
        is_right = rollout.text == "5"
        note = "" if is_right else "not 5"
        return Verdict({"reward": Reward(float(is_right), note=note)}, passed=is_right)

    def reference(self, task: Task[None]) -> str:
        return "5"


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_a_run_whose_prompts_open_thoughts_keeps_its_references_and_says_what_is_missing(
    tmp_path, method
):
    model = {"name": str(save_tiny(tmp_path / "model")), "chat_template": OPENING}
    settings = {
        "environment": "five",
        "model": {**model, "dtype": "float32"},
        "method": method,
        "steps": 1,
        "prompts_per_step": 2,
        "group_size": 2,
        "sft": {"batch_size": 2},
        "log": {"rollouts": "all"},
        "eval": {"tasks": 2},
    }
    _, heard = trained(tmp_path / "run", settings, env=Five())
    assert not [text for text in heard.warnings if "reference answer" in text]
    lines = list(read_lines(tmp_path / "run" / "rollouts.jsonl"))
    turns = [(line["messages"][0], line) for line in lines if "attempt" in line]
    assert turns
    for turn, line in turns:
        assert turn["content"] == ""
        assert turn["thoughts"]
        (part,) = line["verdict"]["rewards"].values()
        assert part["value"] == 0
        assert part["note"].startswith("the turn holds only thoughts, which are never closed")
        assert part["note"].endswith("; not 5")


def test_logs_of_this_and_of_an_earlier_version_are_judged_as_they_were(tmp_path: Path) -> None:
    """The completions and verdicts are written into the log of a real run, as either version would have logged them."""
    more = {
        "prompts_per_step": 1,
        "group_size": 4,
        "eval": {"tasks": 0},
        "log": {"rollouts": "all"},
    }
    run = finished_arithmetic(tmp_path, **more)
    log, config = run / "rollouts.jsonl", run / "config.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    rollouts = [line for line in lines if "attempt" in line]
    env = load_environment(PluginHost(), "arithmetic", {})
    right = env.reference(env.task(TaskKey(**rollouts[0]["key"])))
    written = [
        f"<think>Is it <answer>7</answer>?</think>{right}",
        "<think>It is <answer>7</answer>.",
        "no thought",
        f"<think>a</think>{right}<think>b</think>{right}",
    ]

    def judged(message: Callable[[str], dict[str, Any]]) -> Any:
        for line, text in zip(rollouts, written, strict=True):
            line["messages"] = [message(text)]
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (run / "index.sqlite").unlink(missing_ok=True)
        done = CliRunner().invoke(app, ["rescore", str(run), "--json", "--trust"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    before = judged(lambda text: Message.turn(text).to_json())
    assert before["pass_rate"][1] == 0.25
    older = json.loads(config.read_text())
    del older["model"]["thought_tags"]
    older.pop("digest", None)
    config.write_text(json.dumps(older))
    assert judged(lambda text: {"role": "assistant", "content": text}) == before


def capture(policy: Policy, *turns: str) -> tuple[Capture, Saying]:
    sampler = Saying(policy, *turns)
    budget = Budget(turn=99, turns=20, context=policy.context, for_agents=True)
    drawing = Drawing(policy, sampler, SamplingParams())
    return Capture(TASK, budget, drawing, Draws(TASK.key, 5, step=2), current_call()), sampler


@pytest.mark.parametrize("template", [OPENING, CHAT_TEMPLATE], ids=["opening", "plain"])
@pytest.mark.parametrize(
    "sent",
    [
        lambda turn: Message("assistant", turn.content),
        lambda turn: Message("assistant", turn.content, thoughts=turn.thoughts),
        lambda turn: Message("assistant", turn.raw),
        lambda turn: Message("assistant", f"<think>{turn.thoughts}</think>{turn.content}"),
    ],
    ids=["without", "apart", "inline", "with other white space"],
)
def test_an_agent_may_send_thoughts_back_in_every_form(template: str, sent: Any) -> None:
    policy, opening = policy_of(template), "" if template == OPENING else "<think>\n"
    turns = (f"{opening}a\n</think>\n\n4", f"{opening}b\n</think>\n\n5", "6")
    agent, _ = capture(policy, *turns)

    async def run() -> None:
        messages: tuple[Message, ...] = PROMPT
        for _ in range(3):
            answer = await agent.complete(CompletionRequest(messages))
            turn = sent(answer.choices[0].message)
            messages = (*messages, turn, Message("user", "Sure?"))

    asyncio.run(run())
    native, _ = dialogue(policy, *turns)
    (segment,) = agent.segments()
    assert segment.token_ids == native.token_ids
    assert agent.messages() == native.messages


async def test_a_turn_with_other_thoughts_is_another_history() -> None:
    agent, sampler = capture(policy_of(), "<think>a</think>4", "5")
    await agent.complete(CompletionRequest(PROMPT))
    turn = Message("assistant", "4", thoughts="b")
    await agent.complete(CompletionRequest((*PROMPT, turn, Message("user", "Sure?"))))
    assert len(agent.segments()) == 2
    assert "<think>a" not in policy_of().decode(sampler.prefixes[1])


@pytest.mark.parametrize("schema", [None, {"type": "object"}])
def test_what_continues_a_text_or_has_to_be_json_is_not_split(schema: Any) -> None:
    """A chat whose prompt opens a thought is answered by JSON all the same, where the sampler can do that."""
    policy = policy_of(OPENING)
    agent, sampler = capture(policy, "<think>a</think>4")
    sampler.follows_schemas = True  # type: ignore[attr-defined]
    prompt: Any = "Say:" if schema is None else PROMPT
    request = CompletionRequest(prompt, json_schema=schema)
    (choice,) = asyncio.run(agent.complete(request)).choices
    assert choice.message == Message("assistant", "<think>a</think>4")
    assert choice.text == "<think>a</think>4"


def test_a_model_that_fills_gaps_has_no_thoughts() -> None:
    texts = Texts(tiny_tokenizer(), frame=ChatFrame(), end_ids=(3,), context=None, thought_tags=())
    assert texts.thought_tags is None
