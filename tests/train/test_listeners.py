"""The listeners of a run: their order, what they may answer, and one that is written from the page alone."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.protocol.errors import ConfigError, PluginError, RunStoppedError
from grpo_core.protocol.events import (
    AlarmRaised,
    BatchCollected,
    Event,
    Notice,
    Response,
    RunStarted,
    StepEnded,
)
from grpo_core.train.run.ending import EndKind
from grpo_core.train.run.services import describe_trained
from grpo_core.train.run.stream import Answers, Listed, Stream
from grpo_core.train.trainer import Trainer
from grpo_core.verify.sources import Sources

from ..core.distributions import install, install_plugin
from .letters import Answered, Audited, Hollow, Letters
from .short_runs import QUICK, Heard, make, ran, run_until, steps_of

PAGE = Path(__file__).parents[2] / "plugins" / "README.md"
STEP = StepEnded(3, 9, {"loss": 0.5})
BATCH = BatchCollected(3)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions, whose modules are forgotten at the end."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith(("plugin_", "grpo_budget"))]:
        del sys.modules[name]


def install_page(site: Path) -> None:
    """Install the package of the page, as its two blocks and its line about the entry point say."""
    for block in PAGE.read_text(encoding="utf-8").split("```python\n# grpo_budget/")[1:]:
        name, _, code = block.partition("```")[0].partition("\n")
        (site / "grpo_budget").mkdir(exist_ok=True)
        (site / "grpo_budget" / name).write_text(code, encoding="utf-8")
    install(site, "grpo-budget", entry_points={"budget": "grpo_budget"})


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "prompts_per_step": 2, "group_size": 4, **nested(QUICK)}


def test_a_listener_of_the_page_finishes_a_run_by_its_own_metric_and_asks_a_canary(
    settings, site, tmp_path
):
    install_page(site)
    from grpo_budget import listener  # type: ignore[import-not-found]

    listener.TOKENS = 150
    folder, heard = tmp_path / "run", Heard()
    changes = {"steps": 9, "eval.tasks": 2, "plugins": ["budget"]}
    trainer = ran(settings, folder, changes, env=Hollow(), observer=heard)
    lines = steps_of(folder)
    assert lines[-2]["budget/tokens"] < 150 <= lines[-1]["budget/tokens"]
    assert trainer.done == len(lines) < 9
    end = trainer.end
    assert (end.kind, end.reason) == (EndKind.FINISHED, "the budget of tokens is spent")
    assert lines[-1]["budget/tokens"] == sum(line["tokens/generated"] for line in lines)
    assert (folder / "final").is_dir()
    (alarm,) = trainer.folder.alarm_lines()
    assert (alarm["step"], alarm["name"]) == (1, "empty answer passes")
    assert "alarm, step 1: empty answer passes" in (folder / "log.txt").read_text()
    assert not [text for text in heard.warnings if "budget" in text]


def test_the_state_of_a_listener_of_the_page_is_in_the_checkpoint(settings, site, tmp_path):
    install_page(site)
    run_until(make(settings, tmp_path / "run", {"steps": 2, "plugins": ["budget"]}), 1)
    Trainer.resumed(tmp_path / "run", Letters()).run()
    generated = [line["tokens/generated"] for line in steps_of(tmp_path / "run")]
    spent = [line["budget/tokens"] for line in steps_of(tmp_path / "run")]
    assert spent == [generated[0], sum(generated)]


RECORDS = """
from grpo_core import Spec, hookimpl

heard = []

@hookimpl
def grpo_listeners():
    return [Spec("records", "plugin_records:Records")]

class Records:
    def on(self, event):
        name = type(event).__name__
        if name == "RunStarted":
            self.folder = event.run_dir
        sizes = [len((self.folder / log).read_bytes().splitlines()) if (self.folder / log).exists() else 0
                 for log in ("metrics.jsonl", "rollouts.jsonl")]
        heard.append((name, getattr(event, "step", None), *sizes))
"""


def test_a_plugin_hears_the_events_in_their_order_once_the_logs_have_them(settings, site, tmp_path):
    install_plugin(site, "records", RECORDS)
    more = {"steps": 2, "eval.tasks": 2, "eval.every": 1, "plugins": ["records"]}
    ran(settings, tmp_path / "run", more)
    heard = sys.modules["plugin_records"].heard
    assert [(name, step, metrics) for name, step, metrics, _ in heard] == [
        ("RunStarted", None, 0),
        ("EvaluationEnded", 0, 1),
        *(("BatchCollected", 1, 1), ("StepEnded", 1, 2), ("EvaluationEnded", 1, 3)),
        *(("BatchCollected", 2, 3), ("StepEnded", 2, 4), ("EvaluationEnded", 2, 5)),
        ("RunEnded", 2, 5),
    ]
    rollouts = [count for *_, count in heard]
    assert 0 == rollouts[0] < rollouts[1] < rollouts[2] == rollouts[3] < rollouts[4] < rollouts[5]


# What a listener may answer


class Answering:
    def __init__(self, answer: Any) -> None:
        self.answer, self.heard = answer, []  # type: ignore[var-annotated]

    def on(self, event: Event) -> Any:
        self.heard.append(event)
        if isinstance(self.answer, type) and issubclass(self.answer, BaseException):
            raise self.answer("full")
        return self.answer


class Waiting(Answering):
    async def on(self, event: Event) -> Any:
        await asyncio.sleep(0)
        return Answering.on(self, event)


class Kept(Answering):
    """A voice that keeps what the user is told."""

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.heard if isinstance(event, Notice)]


def emitted(
    listeners: list[Any], *events: Event, environments: tuple[str, ...] = ()
) -> tuple[list[Answers], list[str]]:
    """Return what is answered to events, and the warnings, with the listeners of a plugin."""
    kept = Kept(None)
    stream = Stream([kept])
    named = [
        Listed(f"n{i}", heard, f"number {i}", environments) for i, heard in enumerate(listeners)
    ]
    stream.listen(named)

    async def emit() -> list[Answers]:
        return [await stream.emit(event) for event in events]

    return asyncio.run(emit()), kept.warnings


SMOKE = AlarmRaised(3, "smoke", "letters", "look at the kitchen")


class Smoking(Answering):
    """Raises an alarm in answer to a step."""

    def on(self, event: Event) -> Any:
        super().on(event)
        return Response(alarms=[SMOKE]) if isinstance(event, StepEnded) else None


@pytest.mark.parametrize("kind", [Answering, Waiting])
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (ValueError, "ValueError: full"),
        (SystemExit, "called sys.exit('full')"),
        (asyncio.CancelledError, "CancelledError: full"),
        ("stop", "it returned 'stop'; return a Response or None"),
        (Response({"x": 1.0}), "they belong into the answer to BatchCollected"),
        (Response(alarms=["smoke"]), "an alarm of it is 'smoke'"),  # type: ignore[list-item]
        (Response(warnings="smoke"), "its warnings are a text; make them a list of texts"),
    ],
)
def test_a_listener_of_a_plugin_that_fails_is_switched_off_with_one_sentence(
    kind, answer, sentence
):
    bad, good = kind(answer), kind(None)
    _, warnings = emitted([bad, good], STEP, STEP, STEP)
    (warning,) = warnings
    assert warning.startswith("number 0 failed in StepEnded and is not called again in this run: ")
    assert sentence in warning
    assert len(bad.heard) == 1
    assert good.heard == [STEP, STEP, STEP]


def test_metrics_get_the_name_of_the_listener_and_words_instead_of_numbers_are_refused():
    words: dict[str, Any] = {"b": "x"}
    listeners = [Waiting(Response({"a": 1})), Answering(Response(words))]
    answers, warnings = emitted(listeners, BATCH)
    assert answers[0].metrics == {"n0/a": 1.0}
    (warning,) = warnings
    assert "its metrics are not numbers by name" in warning


def test_metrics_of_an_environment_bear_its_name_in_a_mixture_only():
    listeners = [Answering(Response({"a": 1}, by_environment={"sums": {"b": 2}}))]
    answers, warnings = emitted(listeners, BATCH, environments=("sums",))
    assert answers[0].metrics == {"n0/a": 1.0, "n0/b": 2.0}
    answers, more = emitted(listeners, BATCH, environments=("sums", "words"))
    assert answers[0].metrics == {"n0/a": 1.0, "sums/n0/b": 2.0}
    assert warnings == more == []
    (warning,) = emitted(listeners, BATCH, environments=("words",))[1]
    assert "it returned metrics of 'sums'; this run trains on words" in warning


def test_a_warning_of_a_listener_is_given_once():
    listeners = [Answering(Response(warnings=["hot", "cold"])), Answering(Response())]
    assert emitted(listeners, STEP, STEP)[1] == ["hot", "cold"]


@pytest.mark.parametrize("kind", [Answering, Waiting])
def test_what_ends_the_run_ends_it_also_where_a_plugin_has_asked(kind):
    with pytest.raises(RunStoppedError, match="full"):
        emitted([kind(RunStoppedError)], STEP)


def test_a_listener_that_fails_in_one_of_several_processes_ends_the_run():
    """The listeners of the others would wait for it without end."""
    stream, heard = Stream([]), Answering(None)
    own, shared = BatchCollected(1), BatchCollected(2)
    listed = [Listed("a", heard, "a"), Listed("b", heard, "b", is_shared=True)]
    stream.listen(listed)
    asyncio.run(stream.emit(own, shared=shared))
    assert heard.heard == [own, shared]
    heard.answer = ValueError
    stream.listen(listed[1:])
    with pytest.raises(RunStoppedError, match="b failed in StepEnded, and the listeners of the"):
        asyncio.run(stream.emit(STEP))


def test_an_alarm_reaches_all_listeners_and_none_answers_it_with_another():
    first, last = Smoking(None), Answering(None)
    assert emitted([first, last], STEP)[1] == []
    assert (first.heard, last.heard) == ([STEP, SMOKE], [SMOKE, STEP])
    (warning,) = emitted([Answering(Response(alarms=[SMOKE]))], STEP)[1]
    assert "it raised an alarm in answer to an alarm" in warning


def test_a_listener_that_fails_at_an_alarm_does_not_hear_of_the_event_that_it_answers():
    bad = Answering(ValueError)
    (warning,) = emitted([Smoking(None), bad], STEP, STEP)[1]
    assert "number 1 failed in AlarmRaised" in warning
    assert bad.heard == [SMOKE]


def test_the_first_reason_counts():
    listeners = [Answering(None), Answering(Response(stop="b")), Answering(Response(stop="c"))]
    answers, _ = emitted([*listeners, Waiting(Response(finish="d"))], STEP)
    assert (answers[0].stop, answers[0].finish) == ("b", "d")


def test_what_one_of_ours_raises_ends_the_run():
    stream = Stream([])
    stream.listen([Listed("ours", Answering(ValueError))])
    with pytest.raises(ValueError, match="full"):
        asyncio.run(stream.emit(STEP))


def test_a_state_that_is_not_json_switches_a_listener_off():
    kept, bad = Kept(None), Answering(None)
    bad.state = lambda: {1, 2}  # type: ignore[attr-defined]
    stream = Stream([kept])
    stream.listen([Listed("sets", bad, "the listener 'sets'")])
    assert stream.states() == stream.states() == {}
    (warning,) = kept.warnings
    assert warning.startswith("the listener 'sets' failed in state and is not called again")


# Which listeners a run has


def offers(name: str, target: str) -> dict[str, str]:
    """Return a plugin with one listener."""
    return {"named": NAMED.replace("{name}", name).replace("{target}", target)}


NAMED = """
from grpo_core import Spec, hookimpl

@hookimpl
def grpo_listeners():
    return [Spec("{name}", "plugin_named:{target}")]

class Deaf: pass

class Picky:
    def __init__(self, settings): pass

class Right:
    def on(self, event): pass
"""
TWICE = {"records": RECORDS, "second": RECORDS.replace("plugin_records", "plugin_second")}


@pytest.mark.parametrize(
    ("plugins", "error", "sentence"),
    [
        (offers("reward", "Right"), ConfigError, "the run itself logs reward/..."),
        (offers("letters", "Right"), ConfigError, "the run itself logs letters/..."),
        (offers("named", "Deaf"), PluginError, "which has no method on"),
        (offers("named", "Picky"), PluginError, "cannot be created: TypeError"),
        ({"named": ""}, ConfigError, "plugins=named: this plugin offers no listener"),
        (TWICE, ConfigError, r"plugins=second: .* has a listener 'records' already"),
    ],
    ids=["a metric", "an environment", "deaf", "picky", "none", "twice"],
)
def test_a_listener_that_no_run_could_have_is_refused_before_anything_is_written(
    settings, site, tmp_path, plugins, error, sentence
):
    for name, source in {**plugins, "unnamed": RECORDS}.items():
        install_plugin(site, name, source)
    with pytest.raises(error, match=sentence):
        make(settings, tmp_path / "run", {"plugins": list(plugins)})
    assert not (tmp_path / "run").exists()
    assert "plugin_unnamed" not in sys.modules


# What a listener may ask


def test_a_listener_is_told_what_may_be_asked_about_an_environment(settings):
    class Talk(Letters):
        max_turns = 2

    plain, audited, talk = (
        describe_trained(source)
        for env in (Letters(), Audited(), Talk())
        for source in Sources.of(build_config([settings]), {"letters": env})
    )
    shown = plain.name, plain.floor, plain.is_one_text, plain.is_one_by_one, plain.has_audit
    assert shown == ("letters", 0.0, True, True, False)
    assert audited.has_audit
    assert not talk.is_one_text
    assert not plain.can_be_ended  # Letters is trusted, so it runs in this process


@pytest.mark.slow
def test_services_give_verdicts_references_and_the_log_probability_of_a_likely_answer(
    settings, tmp_path
):
    answered: list[Any] = []
    size = {"steps": 12, "prompts_per_step": 4, "group_size": 6}
    trainer = make(settings, tmp_path / "run", size, env=Answered())

    class Asking:
        async def on(self, event: Event) -> None:
            if isinstance(event, RunStarted):
                self.services = event.services
                with pytest.raises(ConfigError, match="this run has no environment 'words'"):
                    await event.services.tasks("words", 1)
            if isinstance(event, StepEnded) and event.step in (1, 12):
                services = self.services
                tasks = await services.tasks("letters", 2)
                attempts = [(task, text) for task in tasks for text in ("aaaa", "zzzz")]
                verdicts = await services.verify(attempts)
                logprobs = await services.logprobs([*attempts, (tasks[0], "")])
                answered.append((await services.references(tasks), verdicts, logprobs))

    stream = trainer._run._stream
    stream.listen([*stream._listed, Listed("asking", Asking())])
    trainer.run()
    (references, verdicts, first), (_, _, last) = answered
    assert references == ["a" * 6] * 2
    assert [verdict.passed for verdict in verdicts] == [True, False, True, False]
    assert last[0] > first[0]
    assert last[0] > last[1]
