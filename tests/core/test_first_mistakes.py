"""Mistakes that new users make: each gets one message with the problem, what was found and the remedy."""

import re
from pathlib import Path

import pytest

from ..commandline import words
from .distributions import grpo, install

GOOD = """from grpo_core import Environment, Reward, Task, Verdict


class Good(Environment):
    parts = {"right": 1.0}

    def task(self, key):
        return Task(key, f"{key.index}?", str(key.index))

    def verify(self, task, rollout):
        return Verdict({"right": Reward(float(rollout.text == task.data))})


class NoTask(Environment):
    def verify(self, task, rollout): ...


class NoVerify(Environment):
    def task(self, key): ...


class TupleParts(Good):
    parts = ("right",)


class TextWeight(Good):
    parts = {"right": "1"}


class NeedsText(Good):
    needs = "sandbox"


class NeedsTypo(Good):
    needs = frozenset({"sandbx"})


class OwnInit(Good):
    def __init__(self): ...


class OwnTask(Good):
    def task(self): ...


class OwnVerify(Good):
    def verify(self, rollout): ...


class DictConfig(Good):
    Config = {"a": 1}


def function(): ...
"""
FILES = {
    "good.py": GOOD,
    "missing.py": "\nimport nosuchpackage\n",
    "syntax.py": "class A(\n",
    "name.py": "from grpo_core import Enviroment\n",
    "raises.py": "\n1 / 0\n",
}
MISTAKES = {
    # how an environment is named
    "run arithmetic": "an environment is named by an option: grpo run --env arithmetic",
    "run good.py:Good": "grpo run --env good.py:Good",
    "eval arithmetic": "grpo eval --env arithmetic",
    "sft arithmetic": "grpo sft --env arithmetic",
    "run -e arithmetic": "did you mean --env?",
    "run": "no environment is named; use --env NAME",
    "run --env arithmatic": "did you mean 'arithmetic'?",
    "run --env arithmetic,fizzbuzz": "--env arithmetic --env fizzbuzz",
    "run --env good:Good": "The file 'good.py' exists; did you mean 'good.py:Good'?",
    "run --env ./good": "did you mean 'good.py:Good'?",
    "run --env good.Good": "did you mean 'good.py:Good'?",
    "run --env good.py": "does not name a class (it defines Good, NoTask,",
    "run --env good.py:Goood": "defines no 'Goood'; did you mean 'Good'?; it defines Good,",
    "run --env good.py:function": "not a subclass of grpo_core.Environment; name such a class",
    "run --env nofile.py:E": "nofile.py' is not a file",
    "env show good:NoTask": "did you mean 'good.py:NoTask'?",
    "env check good:Good": "did you mean 'good.py:Good'?",
    "env show lost": "'grpo-env-lost' is installed, but it has no entry point in the group 'grpo' (only in grpo.envs)",
    "env show --env arithmetic": "it stands without an option: grpo env show NAME",
    "env show": "Missing argument 'name'. An environment that `grpo envs` lists, FILE.py:CLASS",
    "envs arithmetic": "grpo envs takes options only",
    # what is in its file
    "env show missing.py:A": "No module named 'nosuchpackage' ({folder}/missing.py, line 2)",
    "env show syntax.py:A": "(syntax.py, line 1)",
    "env show name.py:A": "cannot import name 'Enviroment' from 'grpo_core'",
    "env show raises.py:A": "ZeroDivisionError: division by zero ({folder}/raises.py, line 2)",
    "run --env good.py:NoTask": "NoTask ({folder}/good.py, line 14) has no task; write `def task(self, key:",
    "env check good.py:NoTask": "NoTask ({folder}/good.py, line 14) has no task",
    "env show good.py:NoVerify": "overrides none of verify, averify, verify_batch and episode; write one",
    "run --env good.py:TupleParts": "line 22) declares parts = ('right',); write a dict of names and weights",
    "env show good.py:TextWeight": "declares parts = {'right': '1'}; write a dict",
    "env score good.py:NeedsText --answer -": "declares needs = 'sandbox', a str and no set; write needs = frozenset",
    "env show good.py:NeedsTypo": "needs 'sandbx', which is no service; did you mean 'sandbox'?",
    "env show good.py:OwnInit": "remove it, or write `def __init__(self, config=None, services=None)`",
    "env show good.py:OwnTask": "line 43) cannot be called as grpo does; write `def task(self, key)`",
    "env card good.py:OwnVerify": "write `def verify(self, task, rollout)`",
    "env show good.py:DictConfig": "write it as a frozen dataclass",
    # what an option or a setting is called
    "run --env arithmetic --batch-size 4": "did you mean --prompts-per-step?",
    "run --env arithmetic --learning-rate 1": "did you mean --lr?",
    "run --env arithmetic --num-generations 4": "No such option: --num-generations; did you mean --group-size?",
    "run --env arithmetic --output x": "did you mean --out?",
    "run --env arithmetic --group_size 4": "--group-size",
    "run --env arithmetic --kl.beta 0": "it is a setting: --set kl.beta=VALUE",
    "run --env arithmetic --temperature 1": "--set sampling.temperature=VALUE or --set eval.temperature=VALUE",
    "run --env arithmetic --set lr=3": "setting 'lr' is not known; did you mean 'optimizer.lr'?",
    "run --env arithmetic --set lr 3": "write a setting in one word: --set lr=3",
    "run --env arithmetic --set batch_size=3": "did you mean 'prompts_per_step'?",
    "run --env arithmetic --set optimizer.lr": "--set needs key=value, for example",
    "run --env arithmetic --set optimizer.lr=abc": "found 'abc'",
    "run --env arithmetic --device gpu": "'gpu' is not one of 'auto', 'cpu', 'cuda', 'mps'",
    "run --env arithmetic --recipe grpoo": "did you mean 'grpo'?",
    "run --env arithmetic --group-size 1": "greater than or equal to 2; found 1",
    "run --resume nofolder": "nofolder holds no run",
    "config explain lr": "did you mean 'optimizer.lr'?",
    "env score arithmetic --answer 5": "echo 5 | grpo env score NAME --answer -",
    "env score arithmetic": "Missing option '--answer'. File with the completion to score",
    "env score arithmetic --task 3": "did you mean --index?",
    "env show arithmetic 5": "a task is named by an option: --index 5",
    "generate what is this": "quote a text of several words",
    "generate --prompt 2+2": "it stands without an option: grpo generate QUESTION",
    # what a command is called
    "train --env arithmetic": "Did you mean grpo run?",
    "check arithmetic": "Did you mean grpo env check?",
    "env list": "Did you mean grpo envs?",
    "config lr": "grpo config has: explain, schema, show",
    "model download smollm2-135m": "Did you mean grpo model pull?",
    "version": "Did you mean grpo --version?",
    "run help": "did you mean grpo run --help?",
}
_BOX = re.compile(r"[\s│╭╮╰╯─]+")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_one_message_with_the_remedy(
    mistake: str, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    install(toy, "grpo-env-lost", entry_points={"lost": "lost"}, group="grpo.envs")
    monkeypatch.chdir(tmp_path)
    result = grpo(*words(mistake))
    said = _BOX.sub(" ", result.stderr)
    assert result.exit_code == 2, said
    assert result.stdout == ""
    assert _BOX.sub(" ", MISTAKES[mistake].replace("{folder}", str(tmp_path))) in said
    assert len(re.findall("^error: | Error ", said)) == 1
    assert "grpo_file_" not in said
