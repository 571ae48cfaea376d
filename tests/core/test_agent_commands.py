"""Commands and helpers that run agents: play, score, export, play_turns and the checks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import planted_agents as planted
import pytest

from grpo_core import AgentEnvironment, GrpoError, Task, TaskKey
from grpo_core.testing import check_environment, play_turns

from .distributions import grpo

FILE = Path(planted.__file__)


def named(kind: type[AgentEnvironment[Any]]) -> str:
    return f"{FILE}:{kind.__name__}"


def task_of(kind: type[AgentEnvironment[Any]], index: int = 0) -> Task[Any]:
    """Return a task as the commands make it."""
    return kind().task(TaskKey(f"{FILE.name}:{kind.__name__}", "train", index))


def reference(kind: type[AgentEnvironment[Any]], index: int = 0) -> str | Sequence[str]:
    return kind().reference(task_of(kind, index))


def played(kind: type[AgentEnvironment[Any]], *lines: str) -> tuple[list[str], str]:
    """What stands on stdout and on stderr after so many turns, each ended by a dot."""
    stdin = "".join(f"{line}\n.\n" for line in lines)
    result = grpo("env", "play", named(kind), stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines(), result.stderr


def test_a_person_answers_the_requests_of_an_agent_and_sees_the_tools_that_it_offers() -> None:
    right = reference(planted.Submits)
    assert isinstance(right, str)
    shown, _ = played(planted.Submits, "hello", '<tool_call>{"name": "submit", "arguments": {}}</tool_call>', right)  # fmt: skip
    assert "submit(total: integer)  Submit the sum." in shown
    assert shown.count("[tools]") == 1
    talk = shown[shown.index("[tools]") + 3 :]
    assert talk[:4] == ["[user]", "Call the tool.", "[tool]", "no number"]
    assert talk[4].split() == ["right", "1", "x", "1"]
    assert shown[-1] == "attempts 1, passed 1, mean reward 1.000"


def test_a_person_is_told_when_an_agent_rewrites_its_history() -> None:
    shown, remarks = played(planted.Rewrites, "a plan", str(task_of(planted.Rewrites).data))
    assert remarks.count("the agent goes on from another history") == 1
    assert "Plan: a plan" in shown
    assert shown[-1] == "attempts 1, passed 1, mean reward 1.000"


def test_an_attempt_in_which_the_agent_fails_or_has_no_turn_left_is_told() -> None:
    shown, remarks = played(planted.ReadsNumbers, "one", "two")
    assert "could not be judged" in "\n".join(shown)
    assert "invalid literal for int()" in remarks
    assert shown[-1] == "attempts 1, passed 0, 1 could not be judged"
    shown, _ = played(planted.Submits, "1", "2", "3")
    assert shown[-1] == "attempts 1, passed 0, mean reward 0.000"


def scored(kind: type[AgentEnvironment[Any]], text: str, *more: str) -> dict[str, Any]:
    result = grpo("env", "score", named(kind), "--answer", "-", "--json", *more, stdin=text)
    assert result.exit_code == 0, result.output
    verdict: dict[str, Any] = json.loads(result.stdout)
    return verdict


def lines_of(*turns: tuple[str, str]) -> str:
    return "".join(json.dumps({"role": role, "content": content}) + "\n" for role, content in turns)


def test_an_answer_and_a_dialogue_are_scored_by_running_the_agent() -> None:
    total = str(task_of(planted.Sums).data)
    assert scored(planted.Sums, total)["passed"]
    assert not scored(planted.Sums, "12")["passed"]
    turns = (("assistant", "I add them."), ("user", planted.CHECK["content"]), ("assistant", total))
    assert scored(planted.Sums, lines_of(*turns))["passed"]
    assert scored(planted.Sums, lines_of(turns[0], turns[2]))["passed"]
    other = lines_of(turns[0], ("user", "Go on."), turns[2])
    result = grpo("env", "score", named(planted.Sums), "--answer", "-", stdin=other)
    assert result.exit_code == 1
    assert "replay diverged" in result.output


def test_a_line_of_a_log_is_scored_by_what_the_agent_returned() -> None:
    total = str(task_of(planted.Sums, 3).data)
    key = {"env": "sums", "split": "train", "index": 3, "seed": 0, "level": 0.0}
    row = {"key": key, "messages": [], "finish": "stop", "returned": total}
    assert scored(planted.Sums, json.dumps(row), "--index", "3")["passed"]
    cut_off = {**row, "finish": "length", "returned": None}
    assert not scored(planted.Sums, json.dumps(cut_off), "--index", "3")["passed"]
    for line, words in (
        (row, "the line is of another task; score it with --split train --index 3 --seed 0"),
        ({**row, "key": {**key, "index": 0}, "returned_length": 99_999}, "99999 characters"),
    ):
        result = grpo("env", "score", named(planted.Sums), "--answer", "-", stdin=json.dumps(line))
        assert (result.exit_code, words in result.stderr) == (2, True), result.output


def test_another_trainer_cannot_run_an_agent() -> None:
    result = grpo("env", "export", named(planted.Sums), "--to", "trl")
    assert result.exit_code == 2
    assert "Sums has an agent" in result.stderr
    assert "train with grpo run" in result.stderr


def test_turns_are_played_to_an_agent_which_hears_the_last_one_again() -> None:
    env, task = planted.Sums(), task_of(planted.Sums)
    rollout = play_turns(env, task, "banana")
    said = [message.content for message in rollout.messages]
    assert said == ["banana", planted.CHECK["content"], "banana"]
    assert rollout.returned == "banana"
    assert env.verify(task, play_turns(env, task, ("?", str(task.data)))).passed
    assert not env.services.endpoints  # which was lent for the time of the attempt
    with pytest.raises(GrpoError, match="invalid literal for int"):
        play_turns(planted.ReadsNumbers(), task, "banana")


class CountsRuns(planted.Votes):
    runs: list[tuple[int, str]] = []  # noqa: RUF012 - the runs of all attempts

    async def agent(self, task: Task[Any], client: Any) -> Any:
        said = (await planted.ask(client, self.prompt(task))).content or ""
        self.runs.append((task.key.index, said))
        return said


def test_the_checks_of_verdicts_play_each_attempt_once() -> None:
    report = check_environment(
        CountsRuns(), tasks=4, isolation="inline", only=["verdict.repeat", "floor.near"]
    )
    assert {r.status for r in report.results if r.check == "verdict.repeat"} == {"valid"}
    runs = [run for run in CountsRuns.runs if run[1]]
    assert len(runs) == len(set(runs)) > 30


def test_without_an_endpoint_nothing_is_known_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "endpoint")
    report = check_environment(planted.Sums(), tasks=2)
    statuses = {result.check: (result.status, result.message) for result in report.results}
    for check in ("verdict.reference", "floor.junk", "agent.talk", "agent.close", "safety.eval"):
        assert statuses[check][0] == "not_checked"
        assert "endpoint 'http' is not known" in statuses[check][1]
    assert statuses["task.pure"][0] == "valid"
    assert report.blind
