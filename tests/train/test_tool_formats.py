"""Tool calls in the formats of real chat templates: what the template shows, what the policy writes, how results come back."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from grpo_core import ConfigError, Message, ToolCall
from grpo_core.calls.wire import decode, encode
from grpo_core.config.chat_templates import TEMPLATES as NAMED
from grpo_core.config.overrides import build_config
from grpo_core.engine.models import chat
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.models.templates import set_template
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.tool_calls import MAX_CALLS, calls_of, format_of, read_calls, sendable_calls
from grpo_core.protocol.tools import answers, schemas

from .real_templates import TEMPLATES
from .test_thoughts import Asking, add, dialogue
from .tiny import tiny_model, tiny_tokenizer

NAMES = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_6": "qwen-coder",
    "llama3_1": "llama",
    "llama3_2": "llama",
    "mistral_nemo": "mistral",
    "mistral_small_3_2": "mistral",
    "chatml-tools": "hermes",
}
PROMPT = (Message("system", "Be exact."), Message("user", "What is 2 + 3?"))


def note(text: str, tags: list[str] | None = None) -> str:
    """Note a text."""
    return f"{text!r} {tags}"


TOOLS = schemas((add, note))
SPECIAL = [
    "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CONTENT]", "<|python_tag|>", "<|eot_id|>", "<|eom_id|>",
]  # fmt: skip
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
    "qwen-coder": "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n</parameter>\n</function>\n</tool_call>",
    "llama": '{"name": "add", "parameters": {"a": 2, "b": "3"}}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2, "b": 3}, "id": "abcDEF123"}]',
}
"""The same call, as each model is taught to write it."""


def template(name: str) -> str:
    return NAMED[name] if name in NAMED else TEMPLATES[name].read_text(encoding="utf-8")


def policy_of(name: str) -> Policy:
    """A tiny policy whose tokenizer has the template of a real model, and its tokens for calls and ends."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.chat_template = template(name)
    if name.startswith("mistral"):
        tokenizer.eos_token, tokenizer.bos_token = "</s>", "<s>"
    elif name.startswith("llama"):
        tokenizer.eos_token = "<|eot_id|>"
    model = tiny_model()
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    return Policy(model, tokenizer, shared_prefix=False)


def ids(policy: Policy, text: str, *, ended: bool = True) -> tuple[int, ...]:
    tokens = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return (*tokens, policy.tokenizer.eos_token_id) if ended else tuple(tokens)


def turn(policy: Policy, text: str) -> Message:
    """What the trainer makes of a turn of the policy."""
    return policy.turn((), ids(policy, text), tools=TOOLS)


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> SimpleNamespace:
    name = request.param
    return SimpleNamespace(name=name, format=NAMES[name], policy=policy_of(name))


def test_the_template_tells_the_format_and_shows_the_tools(case: SimpleNamespace) -> None:
    for known in (
        template(case.name),
        {"default": "{{ messages }}", "tool_use": template(case.name)},
    ):
        assert format_of(known) == case.format
    shown = case.policy.tokenizer.decode(case.policy.encode(PROMPT, tools=TOOLS))
    assert '"add"' in shown
    assert "Add two numbers." in shown


def test_a_call_as_the_template_writes_it_is_answered(case: SimpleNamespace) -> None:
    """The template itself writes a call of an earlier turn; what it writes is read."""
    call = {"name": "add", "arguments": {"a": 2, "b": 3}}
    entry = {"type": "function", "id": "abcDEF123", "function": call}
    dialogue = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "", "tool_calls": [entry]}]  # fmt: skip
    text = case.policy.tokenizer.apply_chat_template(dialogue, tools=TOOLS, tokenize=False)
    written = text[max(text.rindex("2 + 3?"), text.rfind("assistant")) :]
    if case.format == "llama":  # the call is the whole turn
        written = written[written.index('{"name"') :]
    (read,) = read_calls(written.partition(case.policy.tokenizer.eos_token)[0], case.format, TOOLS)
    assert (read.name, dict(read.arguments), read.error) == ("add", {"a": 2, "b": 3}, "")


def test_what_the_policy_writes_is_answered_wherever_the_environment_runs(case: SimpleNamespace) -> None:  # fmt: skip
    message = turn(case.policy, WRITTEN[case.format])
    (travelled,) = decode(json.loads(json.dumps(encode([message]))))
    assert travelled == message
    assert answers((add, note), travelled) == [Message("tool", "5")]
    assert (message.tool_calls is None) == (case.format == "hermes")
    assert turn(case.policy, "It is 5.").tool_calls is None
    # Without tools nothing is a call.
    assert case.policy.turn((), ids(case.policy, WRITTEN[case.format])).tool_calls is None


def test_results_follow_the_very_tokens_of_the_policy_in_every_turn(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of calls; the environment's tokens are all that the template writes after the policy's end token."""
    policy = case.policy
    monkeypatch.setattr(policy, "context", None)  # these prompts and turns are too long for it
    opened = policy.tokenizer.decode(policy.encode(PROMPT, tools=TOOLS)).endswith("<think>\n")
    written = ("Add.\n</think>\n\n" if opened else "") + WRITTEN[case.format]
    replies = Asking(lambda message: answers((add, note), message))
    more = {"room": 1000, "replies": replies, "tools": TOOLS}
    rollout, _ = dialogue(policy, written, written, written, **more)
    assert [m.role for m in rollout.messages] == [*["assistant", "tool"] * 2, "assistant"]
    thoughts = [m.thoughts for m in rollout.messages if m.role == "assistant"]
    assert thoughts == ["Add." if opened else ""] * 3
    assert opened == (case.name == "qwen3_6")
    both = list(zip(rollout.token_ids, rollout.trainable, strict=True))
    assert [token for token, own in both if own] == [*ids(policy, written)] * 3
    theirs = policy.tokenizer.decode([token for token, own in both if not own])
    assert theirs.count("5") == 2, theirs
    assert not theirs.startswith(policy.tokenizer.eos_token)
    if case.format == "mistral":
        assert "abcDEF123" in theirs
        assert theirs.startswith("[TOOL_RESULTS]")
    else:
        assert theirs.count("assistant") == 2
    if case.format == "llama":
        assert theirs.count("<|start_header_id|>ipython<|end_header_id|>") == 2


def reply_to(policy: Policy, message: Message, results: list[Message], tokens: tuple[int, ...]) -> str:  # fmt: skip
    """Return what follows a turn with calls in the dialogue."""
    return str(policy.tokenizer.decode(policy.encode_reply(tokens, PROMPT, (message,), results, tools=TOOLS)))  # fmt: skip


def test_parallel_calls_and_a_turn_that_a_stop_string_ended_get_their_results(case: SimpleNamespace) -> None:  # fmt: skip
    policy, written = case.policy, WRITTEN[case.format]
    if case.format == "mistral":
        inner = written.removeprefix("[TOOL_CALLS][").removesuffix("]")
        written = f"[TOOL_CALLS][{inner}, {inner.replace('abcDEF123', 'short')}]"
    else:
        written += ("; " if case.format == "llama" else "\n") + written
    message = turn(policy, written)
    results = answers((add, note), message)
    assert results == [Message("tool", "5")] * 2
    reply = reply_to(policy, message, results, ids(policy, written, ended=False))
    assert reply.startswith(policy.tokenizer.eos_token)
    assert reply.count("5") == 2


def test_calls_in_todays_form_are_answered_whatever_the_template(case: SimpleNamespace) -> None:
    message = turn(case.policy, WRITTEN["hermes"])
    assert answers((add,), message) == [Message("tool", "5")]
    tokens = ids(case.policy, message.content)
    assert "5" in reply_to(case.policy, message, [Message("tool", "5")], tokens)


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        ("llama", '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}', "3"),
        ("llama", '<|python_tag|>{"name": "add", "arguments": {"a": 1, "b": 2}};{"name": "add", "parameters": {"a": 2, "b": 2}}', "3 4"),
        ("llama", "<|python_tag|>add.call(a=1)", "error: the call is not valid JSON"),
        ("llama", '{"name": "add", "parameters": ', "error: the call is not valid JSON"),
        ("llama", '{"name": "Ann", "age": 7, "likes": [1]} and more', "error: the call is not valid JSON"),
        ("llama", '{"age": 7}', None),
        ("llama", 'I call {"name": "add", "parameters": {}}', None),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}', "3"),
        ("mistral", '[TOOL_CALLS]add[CALL_ID]abcdef012[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]add[ARGS]{"a": 3, "b": 2}', "3 5"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": NaN}', "error: the arguments of add are not valid JSON: NaN"),
        ("mistral", "[TOOL_CALLS]add[ARGS][1]", "error: a call is an object"),
        ("mistral", "[TOOL_CALLS]", "error: the call is not valid JSON"),
        ("mistral", "[TOOL_CALLS]" + "[" * 100_000, "error: the call is not valid JSON"),
        ("mistral", '[TOOL_CALLS]note[ARGS]{"text": ' + "[" * 500 + "]" * 500 + "}", "error: the arguments are nested too deeply"),
        ("qwen-coder", "<tool_call><function=note><parameter=text>\n7\n</parameter><parameter=tags>[\"x\"]</parameter></function></tool_call>", "'7' ['x']"),
        ("qwen-coder", "<tool_call><function=note><parameter=text>two\nlines", "'two\\nlines' None"),
        ("qwen-coder", "<tool_call><function=add><parameter=a>one</parameter><parameter=b>2</parameter></function></tool_call>", "error: add was called wrongly: a: input should be a valid integer"),
        ("qwen-coder", "<tool_call><function=nothing></function></tool_call>", "error: there is no tool 'nothing'"),
        ("qwen-coder", '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>', "3"),
        ("hermes", "<tool_call>[]</tool_call>", "error: a call is an object"),
    ],
)  # fmt: skip
def test_each_format_reads_its_variants_and_reports_what_is_malformed(format: Any, text: str, expected: str | None) -> None:  # fmt: skip
    calls = read_calls(text, format, TOOLS)
    results = answers((add, note), Message("assistant", "", calls))
    said = results and " ".join(message.content for message in results)
    assert said is None if expected is None else said.startswith(expected), said


def test_no_more_calls_are_read_than_are_answered_and_hostile_texts_are_read_quickly() -> None:
    for format, mark in (("mistral", "[TOOL_CALLS]"), ("qwen-coder", "<tool_call><function=x>"), ("llama", '{"name": "x"};')):  # fmt: skip
        assert len(read_calls(mark * 50_000, format, TOOLS)) <= MAX_CALLS


def test_the_config_overrides_the_template_and_results_still_follow_the_template() -> None:
    policy = policy_of("mistral_nemo")
    frame = ChatFrame(tools=TOOLS, tool_format="qwen-coder")
    (call,) = chat.tool_calls(policy.tokenizer, WRITTEN["qwen-coder"], frame)
    assert call == ToolCall("add", {"a": 2, "b": 3})
    reply = chat.encode_reply(
        policy.tokenizer, PROMPT, [Message("assistant", "", (call,))], [Message("tool", "5")], frame, end_id=policy.tokenizer.eos_token_id
    )  # fmt: skip
    assert policy.tokenizer.decode(reply).startswith('[TOOL_RESULTS]{"content": 5, "call_id": "')


def test_a_message_without_structured_calls_is_what_it_was() -> None:
    message = Message("assistant", WRITTEN["hermes"])
    assert message.to_json() == {"role": "assistant", "content": WRITTEN["hermes"]}
    assert encode([message]) == {"messages": [["assistant", WRITTEN["hermes"]]]}
    assert calls_of(message) == (ToolCall("add", {"a": 2, "b": 3}),)
    assert hash(Message("assistant", "", calls_of(message))) is not None


def test_a_template_that_rewrites_calls_before_results_is_refused_in_words() -> None:
    policy = policy_of("mistral_nemo")
    policy.tokenizer.chat_template = "{# [TOOL_CALLS] #}{{ messages | length }}"
    with pytest.raises(ConfigError, match="changes what stands before the results of tools"):
        chat.encode_reply(policy.tokenizer, PROMPT, [Message("assistant", "x")], [Message("tool", "5")], ChatFrame(), end_id=None)  # fmt: skip


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity", r'"\ud800"', r'{"\udfff": 1}'])
def test_calls_that_a_client_could_not_send_back_are_text(value: str) -> None:
    call = f'<tool_call>{{"name": "add", "arguments": {{"a": {value}}}}}</tool_call>'
    assert read_calls(call, "hermes", TOOLS)
    assert sendable_calls(call, "hermes", TOOLS) == ()
    right = call.replace(value, r'"\ud83d\ude00"')
    assert sendable_calls(right, "hermes", TOOLS) == (ToolCall("add", {"a": "\U0001f600"}),)


@pytest.mark.parametrize("brought_by", ["the setting", "the alias"])
def test_a_template_with_a_name_writes_chats_without_tools_as_before(brought_by: str) -> None:
    own, named = tiny_tokenizer(), tiny_tokenizer()
    by_alias = brought_by == "the alias"
    source = ModelSource("smollm2-135m" if by_alias else "tiny", "tiny")
    set_template(named, None if by_alias else "chatml-tools", source)
    answered = (*PROMPT, Message("assistant", "5"), Message("user", "And 1 + 1?"))
    for prompt in (PROMPT, PROMPT[1:], answered):
        assert chat.render(named, prompt, ChatFrame()) == chat.render(own, prompt, ChatFrame())
        shown = chat.render(named, prompt, ChatFrame(tools=TOOLS))
        assert json.dumps(TOOLS[0]) in shown
        assert shown.count("Be exact.") == (prompt[0].role == "system")
    results = (*answered, Message("tool", "2"), Message("tool", "3"))
    assert chat.render(named, results, ChatFrame(tools=TOOLS)).endswith(
        "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_name_of_a_template_has_to_be_right_and_fit_the_tokenizer() -> None:
    for wrong, hint in (
        ("chatml-tool", "did you mean 'chatml-tools'?"),
        ("my.jinja", "names: chatml, chatml-tools, llama3, plain"),
    ):
        with pytest.raises(
            ConfigError, match="neither a Jinja template, nor a file, nor the name"
        ) as error:
            build_config([{"model": {"chat_template": wrong}}])
        assert hint in str(error.value)
    other = SimpleNamespace(get_vocab=dict, chat_template="{{ messages }}")
    with pytest.raises(ConfigError, match=r"'tiny' has no token <.im_start.>"):
        set_template(other, "chatml-tools", ModelSource("tiny", "tiny"))
