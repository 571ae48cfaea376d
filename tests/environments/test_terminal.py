"""The environment terminal: its jobs in real sessions of the sandbox, and what it pays."""

import pytest

from grpo_core import Services, TaskKey
from grpo_core.testing import assert_environment
from grpo_env_terminal.env import Terminal
from grpo_env_terminal.jobs import FAMILIES

from .episodes import play, total

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.fixture(scope="module")
def env(services: Services) -> Terminal:
    return Terminal(services=services)


def ask(index: int = 0, *, split: str = "train", level: float = 0.0):
    return Terminal().task(TaskKey("terminal", split, index, 0, level))  # type: ignore[arg-type]


def block(command: str) -> str:
    return f"```sh\n{command}\n```"


@pytest.mark.slow
def test_it_keeps_the_promises_of_an_environment(env: Terminal) -> None:
    assert_environment(env)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_the_solution_of_each_job_does_it_and_nothing_less(env: Terminal, level: float) -> None:
    for index in range(3):
        task = ask(index, level=level)
        assert type(task.data) is type(FAMILIES[round(5 * level)](task.key.rng(), "train"))
        messages, verdict = play(env, task, env.reference(task))
        assert (verdict.passed, total(env, verdict)) == (True, 1.0), messages
        assert not play(env, task, [block("echo no"), "Done."])[1].passed
        for cheat in env.cheats(task):
            assert total(env, play(env, task, cheat)[1]) == 0


def test_no_file_of_training_is_held_out() -> None:
    names = {
        split: {
            path.partition(".")[0] for i in range(200) for path, _ in ask(i, split=split).data.files
        }
        for split in ("train", "eval")
    }
    assert not names["train"] & names["eval"]


def test_the_policy_sees_what_commands_print_and_how_they_end(env: Terminal) -> None:
    task = ask()
    path, content = task.data.files[0]
    messages, _ = play(
        env,
        task,
        [
            block(f"cat {path}"),
            block("true"),
            block("no-such-program"),
            block("echo out; echo err >&2; exit 3"),
            "Done.",
        ],
    )
    said = [message.content for message in messages if message.role == "user"]
    assert said[:2] == [content, "[ok]"]
    assert "not found" in said[2]
    assert "[exit code 127]" in said[2]
    assert said[3] == "out\nerr\n\n[exit code 3]"


def test_the_folder_stays_from_turn_to_turn_and_belongs_to_one_attempt(env: Terminal) -> None:
    task = ask(level=0.2)
    ((path, text),) = task.data.wanted
    turns = [block(f"printf '%s' '{text}' > part"), block(f"mv part {path}"), "Done."]
    assert play(env, task, turns)[1].passed
    assert not play(env, task, [block("ls"), "Done."])[1].passed
    messages, _ = play(env, task, [block("ls"), "Done."])
    assert path not in messages[1].content.split()


def test_the_last_of_all_turns_is_carried_out(env: Terminal) -> None:
    task = ask()
    turns = [block("true")] * (env.max_turns - 1) + [block(task.data.solution)]
    messages, verdict = play(env, task, turns)
    assert verdict.passed
    assert messages[-1].role == "assistant"


def test_a_block_without_a_label_behind_a_labelled_command_is_no_command(env: Terminal) -> None:
    task = ask()
    shown = "It holds:\n```\nrm -r *\n```"
    messages, verdict = play(env, task, [block(task.data.solution), shown])
    assert verdict.passed
    assert messages[-1].content == shown
    plain = block(task.data.solution).replace("```sh", "```")
    assert play(env, task, [plain, "Done."])[1].passed


def test_a_script_that_knows_only_what_it_has_seen_fails(env: Terminal) -> None:
    task = ask(level=1.0)
    fixed = block(f"echo 'echo 42' > {task.data.path}")
    endless = block(f"echo 'while :; do :; done' > {task.data.path}")
    assert not play(env, task, [fixed, "Done."])[1].passed
    _, verdict = play(env, task, [endless, "Done."])
    assert not verdict.passed
    assert verdict.scored


def test_a_file_that_is_not_there_cannot_be_printed(env: Terminal) -> None:
    (canary,) = env.canaries()
    assert not play(env, canary, [block("cat * lost.txt"), "Done."])[1].passed
