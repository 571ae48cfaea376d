"""The environment terminal: its jobs in real sessions of the sandbox, and what it pays."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from grpo_core import CommandResult, SandboxError, Services, TaskKey
from grpo_core.testing import assert_environment
from grpo_env_terminal.env import Terminal
from grpo_env_terminal.families import CHOICES, NAMES, SUFFIXES, WORDS
from grpo_env_terminal.state import folder_state

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
        assert task.data.solution
        messages, verdict = play(env, task, env.reference(task))
        assert (verdict.passed, total(env, verdict)) == (True, 1.0), messages
        assert not play(env, task, [block("echo no"), "Done."])[1].passed
        for cheat in env.cheats(task):
            assert total(env, play(env, task, cheat)[1]) == 0


def test_no_file_of_training_is_held_out() -> None:
    trained, held_out = (
        {path.partition(".")[0] for i in range(200) for path, _ in ask(i, split=split).data.files}
        for split in ("train", "eval")
    )
    assert not trained & held_out


def test_the_policy_sees_what_commands_print_and_how_they_end(env: Terminal) -> None:
    task = ask()
    path, content = task.data.files[0]
    commands = [f"cat {path}", "true", "no-such-program", "echo out; echo err >&2; exit 3"]
    messages, verdict = play(env, task, [*map(block, commands), "Done."])
    assert not verdict.passed  # it ended with another command than the one that printed the file
    said = [message.content for message in messages if message.role == "user"]
    assert said[:2] == [content, "[ok]"]
    assert "not found" in said[2]
    assert "[exit code 127]" in said[2]
    assert said[3] == "out\nerr\n\n[exit code 3]"


def test_the_folder_stays_from_turn_to_turn_and_belongs_to_one_attempt(env: Terminal) -> None:
    task = ask(level=0.2)
    ((path, text),) = task.data.made
    turns = [block(f"printf '%s' '{text}' > part"), block(f"mv part {path}"), "Done."]
    assert play(env, task, turns)[1].passed
    assert not play(env, task, [block("ls"), "Done."])[1].passed
    messages, _ = play(env, task, [block("ls"), "Done."])
    assert path not in messages[1].content.split()


def test_a_block_without_a_label_behind_a_labelled_command_is_no_command(env: Terminal) -> None:
    task = ask()
    shown = "It holds:\n```\nrm -r *\n```"
    messages, verdict = play(env, task, [block(task.data.solution), shown])
    assert verdict.passed
    assert messages[-1].content == shown
    plain = block(task.data.solution).replace("```sh", "```")
    assert play(env, task, [plain, "Done."])[1].passed
    # The last of all turns is carried out.
    last = [block("true")] * (env.max_turns - 1) + [block(task.data.solution)]
    assert play(env, task, last)[1].passed
    fails = block(f"{task.data.solution}; exit 1")
    assert not play(env, task, [fails, "Done."])[1].passed


def test_a_script_that_knows_only_what_it_has_seen_fails(env: Terminal) -> None:
    task = ask(level=1.0)
    fixed = block(f"echo 'echo 42' > {task.data.path}")
    endless = block(f"echo 'while :; do :; done' > {task.data.path}")
    assert not play(env, task, [fixed, "Done."])[1].passed
    _, verdict = play(env, task, [endless, "Done."])
    assert (verdict.passed, verdict.scored) == (False, True)


@pytest.mark.parametrize(
    "program",
    [
        "awk '{s += $2} END {print s % 10000}'",
        "head -9 | awk '{s += $2} END {print s + 0}'",
        "awk '{s += $2} END {print s + 0}'; exit 1",
        "awk '{s += $2} END {print s}'",
        "sort -u | awk '{s += $2} END {print s + 0}'",
    ],
)
def test_a_script_is_right_for_large_sums_long_inputs_and_none_and_succeeds(
    env: Terminal, program: str
) -> None:
    task = ask(level=1.0)
    write = f"cat > {task.data.path} <<'END'\n{program}\nEND"
    assert not play(env, task, [block(write), "Done."])[1].passed


def test_other_ways_to_write_the_script_are_right(env: Terminal) -> None:
    task = ask(level=1.0)
    loop = "s=0\nwhile read -r word number; do s=$((s + number)); done\necho $s"
    python = "python3 -c 'import sys\nprint(sum(int(line.split()[1]) for line in sys.stdin))'"
    for program in (loop, python):
        write = f"cat > {task.data.path} <<'END'\n{program}\nEND"
        assert play(env, task, [block(write), "Done."])[1].passed, program


MOVED = {
    "links": "mkdir FOLDER; mv *.TYPE FOLDER/; for f in FOLDER/*; do ln -s $f .; done",
    "hard links": "mkdir FOLDER; ln *.TYPE FOLDER/",
    "pipes": "mkdir FOLDER; mv *.TYPE FOLDER/; mkfifo NAMES",
    "folders": "mkdir FOLDER; mv *.TYPE FOLDER/; mkdir NAMES",
    "unreadable originals": "mkdir FOLDER; cp *.TYPE FOLDER/; chmod 000 *.TYPE",
    "other rights": "mkdir FOLDER; mv *.TYPE FOLDER/; chmod 777 FOLDER/*",
}
"""Commands that leave something of a kind in place of moved files."""


@pytest.mark.parametrize("kind", MOVED)
def test_a_moved_file_is_a_regular_one_with_its_rights_and_alone(env: Terminal, kind: str) -> None:
    task = ask(level=0.8)
    names = [path for path, _ in task.data.moved]
    folder, suffix = task.data.moved[0][1].partition("/")[0], names[0].rpartition(".")[2]
    command = MOVED[kind].replace("FOLDER", folder).replace("TYPE", suffix)
    command = command.replace("NAMES", " ".join(names))
    assert not play(env, task, [block(command), "Done."])[1].passed


def test_files_that_a_job_is_not_about_stay_as_they_are(env: Terminal) -> None:
    for level in (0.2, 0.4, 0.6, 0.8):
        task = ask(level=level)
        done, other = task.data.solution, task.data.files[-1][0]
        for change in (f"echo x >> {other}", f"chmod 600 {other}", f"rm {other}"):
            assert not play(env, task, [block(f"{done}; {change}"), "Done."])[1].passed
        assert play(env, task, [block(f"{done}; touch .hidden"), "Done."])[1].passed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_no_mutant_of_the_environment_passes(env: Terminal, level: float) -> None:
    task = ask(3, level=level)
    near = env.mutants(task)
    assert len(near) >= 12
    for name, turns in near.items():
        messages, verdict = play(env, task, turns)
        assert not verdict.passed, (name, messages)


@pytest.mark.parametrize(
    "command",
    [
        "chmod 000 .",
        "for i in $(seq 3000); do : > a-name-of-forty-characters-to-fill-it$i; done",
        "touch \"$(printf 'a\\nb c')\"; printf x > $(printf '\\377\\376'); ln -s / root",
        "printf '#!/bin/sh\\necho f 644 1 answer.txt' > find; chmod +x find sha256sum",
        "mkfifo pipe; mkdir -p d/d; chmod 000 d",
    ],
)
def test_whatever_a_folder_holds_the_verdict_is_no_error(env: Terminal, command: str) -> None:
    task = ask(level=0.4)
    _, verdict = play(env, task, [block(command), "Done."])
    assert (verdict.passed, verdict.scored) == (False, True)


def test_a_jail_without_find_is_no_fault_of_the_policy() -> None:
    class Bare:
        async def exec(self, command: str) -> CommandResult:
            return CommandResult("ok", 127, stderr="sh: find: not found")

    session: Any = Bare()
    with pytest.raises(SandboxError, match="find of GNU findutils"):
        asyncio.run(folder_state(session))


def test_each_count_is_the_answer_equally_often_and_only_the_question_tells_which() -> None:
    counts = Counter[str]()
    for index in range(10 * CHOICES):
        job = ask(index, level=0.4).data
        ((_, answer),) = job.made
        counts[answer] += 1
        path = job.solution.split()[3]
        lines = dict(job.files)[path].splitlines()
        times = Counter(line for line in lines if line in WORDS)
        assert sorted([*times.values(), 0]) == list(range(CHOICES))
    assert counts == {str(number): 10 for number in range(CHOICES)}


def test_each_place_and_each_folder_is_meant_equally_often() -> None:
    for level, choices in ((0.0, CHOICES), (0.6, CHOICES), (0.8, len(WORDS))):
        means = Counter[Any]()
        for index in range(3 * choices):
            job = ask(index, level=level).data
            names = sorted(path for path, _ in job.files)
            path = job.solution.split()[-3 if level == 0.6 else -1]
            means[path if level == 0.8 else names.index(path)] += 1
        assert set(means.values()) == {3}
        assert len(means) == choices


SHOTGUN = (
    f"for n in {' '.join(NAMES)}; do for i in $(seq 10 99); do "
    "echo 'awk \"{s += \\$2} END {print s + 0}\"' > $n$i.sh; done; done"
)
CONSTANT: Mapping[float, tuple[str, ...]] = {
    0.0: (
        *(f"cat $(ls | sed -n {place}p)" for place in (1, 2, 7, 12, 13)),
        *(f"cat $(ls {how} | head -n 1)" for how in ("-S", "-Sr", "-t", "-tr")),
        "cat *.txt",
        "shuf -n 5 *.txt",
        "",
    ),
    0.2: (
        "for f in *.txt; do echo amber basin cedar > $f; done",
        f"for n in {' '.join(NAMES)}; do echo amber basin cedar > $n.txt; done",
    ),
    0.4: (
        *(f"echo {number} > answer.txt" for number in range(CHOICES)),
        *(
            f"sort $(ls -S | head -n 1) | uniq -c | sort {how} | awk 'NR == 1 {{print $1}}' "
            "> answer.txt"
            for how in ("-n", "-nr")
        ),
        "wc -l < $(ls -S | head -n 1) > answer.txt",
    ),
    0.6: (
        *(f"sort -u $(ls | sed -n {place}p) > words.txt" for place in (1, 7, 13)),
        *(f"sort -u $(ls {how} | head -n 1) > words.txt" for how in ("-S", "-Sr", "-t")),
        "sort -u *.txt > words.txt",
        f"printf '%s\\n' {' '.join(WORDS)} > words.txt",
    ),
    0.8: (
        "mkdir old; mv *.log old/",
        *(f"mkdir {word}; mv $(ls | grep -v 'txt$') {word}/" for word in WORDS[::3]),
        f"mkdir {' '.join(WORDS)}; for w in {' '.join(WORDS)}; do cp $(ls -p | grep -v 'txt$' | "
        f"grep -v /) $w/; done; rm *.{' *.'.join(SUFFIXES)}",
        f"mv $(ls | grep -v 'txt$') $(mkdir {WORDS[5]}; echo {WORDS[5]})",
    ),
    1.0: (SHOTGUN, SHOTGUN.replace("seq 10 99", "seq 40 50"), f"{SHOTGUN}; ls > /dev/null"),
}
"""Commands that are the same for all tasks of a level, whatever they read in the folder."""


@pytest.mark.heavy
@pytest.mark.parametrize("level", LEVELS)
def test_the_best_constant_command_of_each_level_does_at_most_1_of_12(
    env: Terminal, level: float
) -> None:
    tasks = 8 * CHOICES
    for command in CONSTANT[level]:
        played = [play(env, ask(i, level=level), [block(command), "Done."]) for i in range(tasks)]
        done = sum(verdict.passed for _, verdict in played)
        # Places, counts and folders are even, so only what goes by size or age may be lucky.
        assert done <= (tasks / 12 if "ls -" not in command else tasks / 7), command


def test_a_file_that_is_not_there_cannot_be_printed(env: Terminal) -> None:
    (canary,) = env.canaries()
    assert not play(env, canary, [block("cat * lost.txt"), "Done."])[1].passed
