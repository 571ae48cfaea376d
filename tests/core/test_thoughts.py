"""Thoughts: what is one, how a turn is split, and where its parts go: workers, logs, notes, what is shown."""

import json
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from grpo_core import Environment, Group, Message, Reward, Rollout, Task, TaskKey, ToolCall, Verdict
from grpo_core.calls.wire import decode, encode
from grpo_core.cli.app import app
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.thoughts import DEFAULT_TAGS, split_thoughts
from grpo_core.runs.attempts import Fields, attempt_line, group_line
from grpo_core.runs.older_turns import split_older_turns
from grpo_core.runs.saved_rollouts import saved_rollout
from grpo_core.verify.agents.sent_back import is_sent_back, with_thoughts
from grpo_core.verify.judge.checks import BrokenContractError, check_reply, check_verdict
from grpo_report.inspect_log import samples_of
from grpo_report.terminal.texts import group_text

CALL = ToolCall("add", {"a": 1}, "id-1")
MESSAGES = (
    Message("assistant", "", (CALL,), "I should add."),
    Message("tool", "3"),
    Message("assistant", "3", thoughts="It is 3."),
    Message("assistant", "", ()),
)
SPLIT = (
    Message.turn("<think>\nIt is 3.\n</think>\n\n3"),
    Message.turn("<think></think>3"),
    Message.turn("It is 3.</think>3", opened=True, tool_calls=(CALL,)),
)


@pytest.mark.parametrize(
    ("text", "opened", "thoughts", "content"),
    [
        ("<think>so</think>3", False, "so", "3"),
        ("\n <think> so\n</think>\n\n3\n", False, "so", "3\n"),
        ("\ufeff<think>so</think>3", False, "so", "3"),
        ("\u200b<think>so</think>3", False, "", "\u200b<think>so</think>3"),
        ("<think>so", False, "so", ""),
        ("so </think> 3", True, "so", "3"),
        ("<think>so</think>3", True, "so", "3"),
        ("so", True, "so", ""),
        ("  ", True, "", ""),
        ("a <think>so</think>3", False, "", "a <think>so</think>3"),
        ("so</think>3", False, "", "so</think>3"),
        ("<think>a</think>3<think>b</think>4", False, "a", "3<think>b</think>4"),
        ("<think>a<think>b</think>c</think>3", False, "a<think>b", "c</think>3"),
        ("<think>a</think>print('</think>')", False, "a", "print('</think>')"),
        ("<THINK>a</THINK>3", False, "", "<THINK>a</THINK>3"),
        ("", False, "", ""),
    ],
)
def test_a_turn_is_split_once_and_nothing_of_it_is_lost(
    text: str, opened: bool, thoughts: str, content: str
) -> None:
    split = split_thoughts(text, opened=opened)
    assert (split.thoughts, split.content) == (thoughts, content)
    assert "".join((split.marks[0], thoughts, split.marks[1], content)) == text
    turn = Message.turn(text, opened=opened)
    assert (turn.thoughts, turn.content, turn.raw) == (thoughts, content, text)


def test_without_tags_nothing_is_split() -> None:
    text = "<think>a</think>3"
    assert split_thoughts(text, None, opened=True).content == text
    assert Message.turn(text, ("[THINK]", "[/THINK]")) == Message("assistant", text)
    assert Message.turn("[THINK]a[/THINK]3", ("[THINK]", "[/THINK]")).content == "3"


@pytest.mark.parametrize(
    "text", ["<think>" * 400_000, " " * 1_000_000, "<think>" + "</thin" * 400_000]
)
def test_long_turns_are_split_in_linear_time(text: str) -> None:
    begin = time.perf_counter()
    assert Message.turn(text).raw == text
    assert time.perf_counter() - begin < 1


def test_a_split_turn_crosses_pipes_and_logs_as_it_was() -> None:
    for messages in (SPLIT, MESSAGES):
        sent = json.loads(json.dumps([encode(messages), encode(Rollout(messages))]))
        assert decode(sent[0]) == decode(sent[1]).messages == messages
    plain = (Message("user", "hi"), MESSAGES[3])  # as ever, so that digests and keys of caches stay
    assert encode(plain) == {"messages": [["user", "hi"], ["assistant", "", []]]}
    logged = json.loads(json.dumps([message.to_json() for message in SPLIT]))
    assert tuple(map(Message.from_json, logged)) == SPLIT
    assert logged[0]["thought_marks"] == ["<think>\n", "\n</think>\n\n"]


def test_turns_of_an_older_log_are_split_when_they_are_read_and_others_never_again() -> None:
    said = (
        Message("assistant", "<think>a</think>3"),
        Message("user", "<think>b</think>"),
        Message("assistant", "</think>"),
    )
    line = {"messages": [message.to_json() for message in said], "finish": "stop"}
    split = Rollout((Message.turn("<think>a</think>3"), *said[1:]))
    assert saved_rollout(line, is_split=False) == split
    assert saved_rollout(line) == Rollout(said)
    assert split_older_turns(SPLIT) == SPLIT
    twice = Message.turn("<think>a</think><think>b</think>3")
    assert split_older_turns([twice]) == (twice,)


SAID = [
    ("<think>so", "the turn holds only thoughts, which are never closed by </think>, so there is no answer"),
    ("\ufeff<think>so", "the turn holds only thoughts, which are never closed by </think>, so there is no answer"),
    ("<think>so</think>\n", "the turn holds only thoughts, and no answer follows them"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "note"), SAID)
def test_a_verdict_on_nothing_but_thoughts_says_so(text: str, note: str) -> None:
    checked = check_verdict(Verdict({"exact": Reward(0.0, note="no number")}), Sums, Rollout.of(text))  # fmt: skip
    assert checked.rewards["exact"].note == f"{note}; no number"
    assert check_verdict(checked, Sums, Rollout.of(text)) == checked  # as of a cached verdict
    bare = check_verdict(Verdict({"exact": Reward(0.0)}), Sums, Rollout.of(text))
    assert (bare.rewards["exact"].note, bare.total) == (note, 0.0)
    for rollout in (Rollout.of(f"{text}</think>3"), Rollout.of(""), Rollout((MESSAGES[0],))):
        plain = check_verdict(Verdict({"exact": Reward(0.0)}), Sums, rollout)
        assert plain.rewards["exact"].note == ""
    passed = check_verdict(Verdict({"exact": Reward(1.0)}, passed=True), Sums, Rollout.of(text))
    assert passed.rewards["exact"].note == ""


@pytest.mark.parametrize(
    "line",
    [
        {"content": "<think>Is it 7?</think>5"},
        {"content": "5", "thoughts": "Is it 7?", "thought_marks": ["<think>", "</think>"]},
    ],
)
def test_env_score_takes_dialogues_with_thoughts_in_either_form(
    line: dict[str, object], tmp_path: Path
) -> None:
    done = scored(tmp_path, line)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["answer"] == "5"


def scored(folder: Path, line: dict[str, object]) -> Result:
    """Score a dialogue of one line with the example."""
    file = folder / "dialogue.jsonl"
    file.write_text(json.dumps({"role": "assistant", **line}) + "\n")
    guess = f"{Path(__file__).parents[2] / 'examples' / '04_dialogue.py'}:Guess"
    return CliRunner().invoke(app, ["env", "score", guess, "--answer", str(file), "--json"])


@pytest.mark.parametrize(
    "fields", [{"thoughts": 5}, {"thought_marks": ["<think>"]}, {"tool_calls": []}, {"content": 5}]
)
def test_env_score_refuses_a_message_that_is_not_valid_in_the_first_line_too(
    fields: dict[str, object], tmp_path: Path
) -> None:
    done = scored(tmp_path, {"content": "5", **fields})
    assert done.exit_code != 0
    assert "line 1 of the dialogue is no message" in f"{done.output} {done.exception}"


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("<think>It wants <answer>...</answer>.</think>\n{right}", 1.0),
        ("<think>{right}</think>", 0.0),
        ("<think>a</think>{right}<think>b</think>{right}", 0.0),
        ("</think>{right}", 1.0),
    ],
)
def test_what_stands_in_thoughts_is_no_answer(text: str, worth: float) -> None:
    env = load_environment(PluginHost(), "arithmetic", {})
    task = env.task(TaskKey("arithmetic", "train", 0))
    rollout = Rollout.of(text.format(right=env.reference(task)))
    assert env.verify(task, rollout).total == worth


@pytest.mark.parametrize(
    ("sent", "is_same"),
    [
        (Message("assistant", "3"), True),
        (Message("assistant", "3", thoughts="It is 3."), True),
        (Message("assistant", "3", thoughts="It is 4."), False),
        (Message("assistant", "<think>It is 3.</think>3"), True),
        (Message("assistant", "<think>It is 4.</think>3"), False),
        (Message("assistant", "4"), False),
        (Message("user", "3"), False),
        (Message("assistant", "3", (CALL,)), False),
    ],
)
def test_a_turn_is_recognised_in_every_form_that_a_client_sends_back(
    sent: Message, is_same: bool
) -> None:
    assert is_sent_back(sent, SPLIT[0], DEFAULT_TAGS) is is_same
    known = with_thoughts([sent], SPLIT[:1], DEFAULT_TAGS)
    assert known == ((SPLIT[0],) if is_same else (sent,))


TASK = Task(TaskKey("sums", "train", 5), (Message("user", "1 + 2?"),), None)


class Sums(Environment[None]):
    parts: ClassVar[dict[str, float]] = {"exact": 1.0}

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, TASK.prompt, None)


def logged(messages: tuple[Message, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the line of an attempt in the log, and its group as reports read it."""
    verdict = Verdict({"exact": Reward(1.0)})
    line = attempt_line(TASK.key, 0, 0, Rollout(messages), verdict)
    group = group_line(Group(TASK, [Rollout(messages)], [verdict]), Fields())
    place = {"step": 1, "split": "train", "number": 0}
    return line, {**group, **place, "rollouts": [{**line, "advantage": 0.0}]}


def test_a_log_keeps_thoughts_and_one_without_them_still_reads() -> None:
    line = json.loads(json.dumps(logged(MESSAGES)[0]))
    assert line["messages"][2] == {"role": "assistant", "content": "3", "thoughts": "It is 3."}
    assert saved_rollout(line) == Rollout(MESSAGES)
    for message in line["messages"]:
        message.pop("thoughts", None)
    older = saved_rollout(line)
    assert older is not None
    assert [message.thoughts for message in older.messages] == [""] * 4
    assert older.text == Rollout(MESSAGES).text


def test_thoughts_are_shown_before_what_was_said_and_to_inspect_as_reasoning() -> None:
    _, group = logged(MESSAGES[2:3])
    assert "[thoughts]\nIt is 3.\n[end of thoughts]\n3" in group_text(group, None)
    (sample,) = samples_of(group, "m")
    assert sample["messages"][-1]["content"] == [
        {"type": "reasoning", "reasoning": "It is 3."},
        {"type": "text", "text": "3"},
    ]
    assert sample["output"]["completion"] == "3"


def test_a_reply_whose_thoughts_are_no_text_is_refused() -> None:
    with pytest.raises(
        BrokenContractError, match="a message whose thoughts is a int; it must be a str"
    ):
        check_reply([Message("user", "hi", None, 7)])  # type: ignore[arg-type]
