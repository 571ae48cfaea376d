"""What a verifier prints is shown, kept with the verdict, bounded, and never another attempt's."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import chatty_envs
import pytest
from chatty_envs import IN_PYTHON, IN_WORKERS

from grpo_core import Rollout, TaskKey, Verdict
from grpo_core.calls.call import current_call, hearing
from grpo_core.calls.output import KEPT, Output
from grpo_core.calls.streams import PrintableStream
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier

from .distributions import grpo, grpo_apart

pytestmark = pytest.mark.filterwarnings("ignore:warned")
FILE = Path(chatty_envs.__file__)
KINDS = {
    "Chatty": IN_WORKERS,
    "Trusted": IN_PYTHON,
    "Asynchronous": (*IN_PYTHON, "end of hello"),
    "Together": IN_PYTHON,
    "Dialogue": (*IN_WORKERS, "in the reply"),
    "Game": (
        *IN_PYTHON,
        "in open",
        "in the reply to hello",
        "those of another attempt:)\nby a child",
    ),
}


def judged(name: str, *texts: str, apart: bool = False, **settings: Any) -> list[Verdict]:
    """Return the verdicts on texts, judged at once or one after the other."""

    async def judge() -> list[Verdict]:
        env = getattr(chatty_envs, name)()
        config = VerifyConfig.model_validate({"workers": 1, "retries": 0, **settings})
        async with Verifier(env, settings=config) as verifier:
            (task,) = await verifier.tasks([TaskKey("chatty", "train", 0)])
            rollouts = [Rollout.of(text) for text in texts]
            if apart:
                return [await verifier.judge(task, rollout) for rollout in rollouts]
            (verdicts,) = await verifier.verify([task], [rollouts])
            return verdicts

    return asyncio.run(judge())


SLOW = ("Trusted", "Together", "Dialogue")
"""Further ways, which share their code with the others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in KINDS]
)
def test_score_shows_what_is_printed_once_and_its_json_has_it(name: str, tmp_path: Path) -> None:
    turn = json.dumps({"role": "assistant", "content": "hello"})
    (tmp_path / "answer").write_text(turn if name == "Dialogue" else "hello")
    score = ["env", "score", f"{FILE}:{name}", "--answer", str(tmp_path / "answer")]
    scored = grpo_apart(*score, "--json")
    assert scored.returncode == 0, scored.stderr
    by_child, _, document = scored.stdout.partition("{")  # of a verifier in this process
    assert by_child == ("by a child\n" if name == "Trusted" else "")
    output = json.loads("{" + document)["output"]
    for text in KINDS[name]:
        assert scored.stderr.count(text) == output.count(text) == 1, text


def test_score_shows_what_a_program_wrote_where_it_did_not_pass(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("hello")
    scored = grpo("env", "score", f"{FILE}:Chatty", "--answer", str(tmp_path / "answer"))
    shown = ["stderr", "Traceback:", "  a line of the program", "status               1"]
    assert scored.stdout.splitlines()[-4:] == shown
    assert "printed hello" in scored.stderr


@pytest.mark.parametrize("name", ["Chatty", pytest.param("Game", marks=pytest.mark.slow)])
def test_play_shows_what_is_printed_with_each_answer(name: str) -> None:
    played = grpo("env", "play", f"{FILE}:{name}", stdin="first\n.\nsecond\n.\n")
    assert [played.stderr.count(f"printed {text}") for text in ("first", "second")] == [1, 1]
    assert played.stderr.count("to stderr") == 2
    assert played.stdout.count("a line of the program") == 2


def test_one_worker_after_the_other_gives_each_verdict_its_own_output_and_bounds_it() -> None:
    texts = ["one", "raise", "flood", "surrogate", "leave behind", "late", "orphan", "later"]
    verdicts = dict(zip(texts, judged("Chatty", *texts, apart=True), strict=True))
    for text, verdict in verdicts.items():
        others = [f"printed {other}\n" for other in texts if other != text]
        assert not [other for other in others if other in verdict.output], text
        assert len(verdict.output) <= KEPT + 100
        assert (verdict.error is None) == (text != "raise")
    assert all(f"printed {text}" in verdicts[text].output for text in texts if text != "flood")
    flood = verdicts["flood"].output
    assert flood.startswith(("... (5,99", "... (6,00"))
    assert set(flood.splitlines()[1]) == {"é"}
    assert flood.endswith("no newline")
    assert r"\ud800 half" in verdicts["surrogate"].output
    behind = "processes that earlier calls left behind were running"
    assert [text for text in texts if behind in verdicts[text].output][:1] == ["late"]
    assert behind in verdicts["later"].output
    assert judged("Chatty", "one", apart=True) == [verdicts["one"]]  # which ignores the output


def test_an_orphan_alone_is_noticed_and_a_retry_is_marked() -> None:
    _, later = judged("Chatty", "orphan", "later", apart=True)
    assert "some of this may be theirs" in later.output
    (failed,) = judged("Chatty", "raise", retries=1)
    assert failed.output.count("printed raise") == 2
    assert "(the verifier is asked again)" in failed.output
    (hung,) = judged("Chatty", "hang", timeout_seconds=1.5)
    assert "before the hang" in str(hung.error)


@pytest.mark.parametrize("name", ["Asynchronous", "Game"])
def test_verdicts_at_the_same_time_have_their_own_output(name: str) -> None:
    texts = [f"<{number}>" for number in range(6)]

    async def judge() -> list[Verdict]:
        async with Verifier(getattr(chatty_envs, name)()) as verifier:
            (task,) = await verifier.tasks([TaskKey("chatty", "train", 0)])
            conversations = [verifier.conversation(task) for _ in texts]
            rollouts = [Rollout.of(text) for text in texts]

            async def attempt(place: int) -> Verdict:
                await conversations[place].open()
                await conversations[place].reply(rollouts[place].messages)
                verdict = await conversations[place].verdict(rollouts[place])
                await conversations[place].close()
                return verdict

            return list(await asyncio.gather(*map(attempt, range(len(texts)))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", PrintableStream(io.StringIO()))
        patch.setattr("sys.stderr", PrintableStream(io.StringIO()))
        verdicts = asyncio.run(judge())
    for text, verdict in zip(texts, verdicts, strict=True):
        assert f"printed {text}" in verdict.output
        assert not [other for other in texts if other != text and other in verdict.output]


def test_what_a_batch_prints_says_that_it_is_of_all() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", PrintableStream(io.StringIO()))
        first, second = judged("Together", "one", "two")
    assert first.output.startswith("(printed while 2 attempts were judged together")
    assert "printed one" in first.output
    assert "printed two" in first.output
    assert second.output == ""


def test_an_output_keeps_its_end_passes_it_on_and_says_what_it_leaves_out() -> None:
    outer = Output(unseen_only=True)
    with hearing(outer), hearing() as inner:
        inner.write("seen", seen=True)
        current_call().note("noted")
    assert (inner.text, outer.text) == ("seen\nnoted", "noted")
    inner.write("x" * (2 * KEPT))
    assert inner.text == f"... ({KEPT + 11:,} characters before this are left out)\n" + "x" * KEPT
    current_call().note("nobody hears this")
    assert current_call().output is None
