"""The index of a run's rollouts: what it says is what the log holds, whatever happens to the log."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.attempts import Fields
from grpo_core.runs.folder import RunFolder
from grpo_report.indexes.index import Filter, Range, RolloutIndex


def write_group(
    folder: RunFolder,
    step: int,
    index: int,
    texts: list[str],
    *,
    number: int = 0,
    split: Any = "train",
    pad: int = 0,
) -> None:
    """Log a group; a text with "right" is paid 1, one with "broken" is not judged."""
    prompt = (Message("system", "Be brief."), Message("user", f"Question {index}, Größe {pad}?"))
    rollouts = [
        Rollout(
            (Message("assistant", text + "x" * pad),),
            finish="length" if "long" in text else "stop",
            token_ids=tuple(range(len(text))),
            logprobs=(-0.5,) * len(text),
            trainable=(1,) * len(text),
            turn_lengths=(len(text),),
        )
        for text in texts
    ]
    verdicts = [
        Verdict.failed("no sandbox")
        if "broken" in text
        else Verdict(
            {"exact": Reward(float("right" in text)), "format": Reward(0.25, note="tags")},
            passed="right" in text,
            answer=text.split()[-1],
        )
        for text in texts
    ]
    key = TaskKey("sums", split, index, seed=2**70)
    advantages = [verdict.total if verdict.scored else 0.0 for verdict in verdicts]
    folder.rollouts(
        step,
        Group(
            Task(key, prompt, None, draw=2**65),
            rollouts,
            verdicts,
            advantages if split == "train" else None,
        ),
        Fields(number=number, tokens=step == 2),
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    write_group(folder, 0, 7, ["so right 4"], split="eval")
    write_group(folder, 1, 0, ["right 4", "wrong 5", "right 4", "a long 4"], number=0)
    write_group(folder, 1, 1, ["broken 1", "wrong 2"], number=1)
    write_group(folder, 2, 0, ["wrong %_ 4", "wrong 5"])
    folder.updated(2, 0, {(1, 0): ([1.0, 1.25], [0.5, 0.125])})
    return folder


def content(index: RolloutIndex) -> Any:
    """Everything that an index says."""
    groups = index.groups(limit=10_000)
    return (
        groups,
        index.rollouts(limit=10_000),
        [index.read(group.id) for group in groups],
        index.count(Filter(text="ongx")),
        index.count(Filter(text="Question 1")),
        index.facets(),
    )


def test_rows_are_what_was_logged(run: RunFolder) -> None:
    seen: list[tuple[int, int]] = []
    with RolloutIndex.open(run.path, progress=lambda *done: seen.append(done)) as index:
        assert seen[-1] == ((run.path / "rollouts.jsonl").stat().st_size,) * 2
        evaluation, first, second, third = index.groups()
        assert (evaluation.step, evaluation.split, evaluation.number) == (0, "eval", 0)
        assert (first.step, first.task) == (1, 0)
        assert [group.number for group in (first, second, third)] == [0, 1, 0]
        assert (first.rollouts, first.scored, first.passed, first.truncated) == (4, 4, 2, 1)
        assert (first.seed, first.draw, first.environment) == (2**70, 2**65, "sums")
        assert (first.reward_low, first.reward_mean, first.reward_high) == (0.25, 0.75, 1.25)
        assert (first.duplicates, first.tokens_mean, first.dead) == (1, 7.25, False)
        assert (second.scored, second.errors) == (1, 1)
        assert not evaluation.dead
        rows = index.rollouts(Filter(steps=Range(1, 1), task=0))
        assert [row.duplicate for row in rows] == [False, False, True, False]
        assert rows[0].parts == {"exact": 1.0, "format": 0.25}
        assert (rows[0].answer, rows[0].advantage, rows[3].truncated) == ("4", 1.25, True)
        facets = index.facets()
        assert (facets.steps, facets.splits) == (Range(0, 2), ("eval", "train"))
        assert (facets.environments, facets.parts) == (("sums",), ("exact", "format"))
        assert (facets.groups, facets.rollouts) == (4, 9)
        assert index.group(1, "train", 1) == second
        assert index.group(9, "train", 0) is None


def test_a_group_is_read_with_all_that_the_log_has(run: RunFolder) -> None:
    with RolloutIndex.open(run.path) as index:
        group = index.read(4)
        assert [message["role"] for message in group["prompt"]] == ["system", "user"]
        assert (group["step"], group["split"], group["number"]) == (2, "train", 0)
        lines = [line for line in run.rollout_lines() if line["step"] == 2]
        first, second = group["rollouts"]
        assert first == lines[0]
        assert second == lines[1] | {"ratios": [[1.0, 1.25]], "entropies": [[0.5, 0.125]]}
        assert first["policy_tokens"] == [
            {"ids": list(range(10)), "logprobs": [-0.5] * 10, "turns": [10]}
        ]
        assert first["verdict"]["rewards"]["format"]["note"] == "tags"
        assert "policy_tokens" not in index.read(2)["rollouts"][0]
        with pytest.raises(KeyError):
            index.read(5)


@pytest.mark.parametrize(
    ("where", "rollouts", "groups"),
    [
        (Filter(), 9, 4),
        (Filter(split="eval"), 1, 1),
        (Filter(environment="other"), 0, 0),
        (Filter(steps=Range(low=1)), 8, 3),
        (Filter(reward=Range(high=0.5)), 5, 3),
        (Filter(parts={"exact": Range(low=1), "format": Range(high=0.25)}), 3, 2),
        (Filter(parts={'no "such" part': Range(low=0)}), 0, 0),
        (Filter(tokens=Range(10, 10)), 2, 2),
        (Filter(passed=True), 3, 2),
        (Filter(truncated=True), 1, 1),
        (Filter(duplicate=True), 1, 1),
        (Filter(error=True), 1, 1),
        (Filter(error=False, passed=False, split="train"), 5, 3),
        (Filter(text="WRONG"), 4, 3),
        (Filter(text="ong 5", steps=Range(2, 2)), 1, 1),
        (Filter(text="question 0"), 6, 2),
        (Filter(text="gRÖßE"), 0, 0),
        (Filter(text="Größe"), 9, 4),
        (Filter(text="%_ 4"), 1, 1),
        (Filter(text='" OR "'), 0, 0),
        (Filter(text="wrong right"), 0, 0),
    ],
)
def test_filters(run: RunFolder, where: Filter, rollouts: int, groups: int) -> None:
    with RolloutIndex.open(run.path) as index:
        count = index.count(where)
        assert (count.rollouts, count.groups) == (rollouts, groups)
        assert len(index.rollouts(where)) == rollouts
        assert len(index.groups(where)) == groups


def test_pages_and_orders(run: RunFolder) -> None:
    with RolloutIndex.open(run.path) as index:
        for order in ("log", "reward", "tokens", "spread"):
            whole = index.rollouts(order=order, descending=True)
            pages = [
                row
                for offset in range(0, 12, 2)
                for row in index.rollouts(order=order, descending=True, offset=offset, limit=2)
            ]
            assert pages == whole
            assert len(index.groups(order=order)) == 4
        assert index.rollouts(order="reward")[-1].error == "no sandbox"  # none counts as last
        assert index.groups(order="spread", descending=True)[0].task == 0


@pytest.mark.parametrize("text", ["ab", "a" * 1_001])
def test_a_text_that_cannot_be_searched_is_refused(run: RunFolder, text: str) -> None:
    with RolloutIndex.open(run.path) as index, pytest.raises(ConfigError, match="give 3 to 1000"):
        index.count(Filter(text=text))


def test_answers_paid_differently_and_tasks_that_flip_are_listed(run: RunFolder) -> None:
    with RolloutIndex.open(run.path) as index:
        (found,) = index.disagreements()
        assert (found.group, found.answer, found.rollouts) == (2, "4", 3)
        assert (found.low, found.high) == (0.25, 1.25)
        (flip,) = index.flips()
        assert (flip.task, flip.passed_step, flip.failed_step) == (0, 1, 2)
        assert (flip.passed_group, flip.failed_group) == (2, 4)
        assert index.flips(split="eval") == []


def go_on(folder: RunFolder) -> None:
    for step in range(3, 9):
        write_group(folder, step, step, ["right 1", "wrong 2"])


def test_a_line_of_another_shape_is_read_or_named(run: RunFolder) -> None:
    first = next(iter(run.rollout_lines()))
    log = run.path / "rollouts.jsonl"
    before = log.read_bytes()
    log.write_bytes(before + json.dumps({**first, "finish": "\ud800"}).encode() + b"\n")
    with RolloutIndex.open(run.path) as index:
        assert index.count().rollouts == 10
    for change in ({"step": 2**70}, {"tokens": 2**70}, {"advantage": "much"}, {"key": 1}):
        log.write_bytes(before + json.dumps({**first, **change}).encode() + b"\n")
        with pytest.raises(ConfigError, match="damaged line"):
            RolloutIndex.open(run.path)


def test_a_file_of_the_log_without_content_changes_nothing(run: RunFolder) -> None:
    with RolloutIndex.open(run.path) as index:
        expected = content(index)
    (run.path / "rollouts-000000.jsonl.gz").write_bytes(b"")
    (run.path / "rollouts-000001.jsonl").write_bytes(b"")
    with RolloutIndex.open(run.path) as index:
        assert content(index) == expected
        assert index.extend() == 0


def test_a_damaged_line_is_named(run: RunFolder) -> None:
    with (run.path / "rollouts.jsonl").open("a") as file:
        file.write("{nonsense\n")
    with pytest.raises(ConfigError, match=r"rollouts\.jsonl has a damaged line .* bytes from"):
        RolloutIndex.open(run.path)
