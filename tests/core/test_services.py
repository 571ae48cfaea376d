"""What environments borrow: opened when one needs it, with the settings of the config, and closed at the end."""

import asyncio
from pathlib import Path

import pytest

from grpo_core import (
    ConfigError,
    Environment,
    Outcome,
    Rollout,
    Services,
    Task,
    TaskKey,
    UnknownNameError,
)
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import JudgeConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import fingerprint, open_judge
from grpo_core.protocol.errors import PluginError
from grpo_core.testing import FakeSandbox
from grpo_core.verify.sources import Sources

from .distributions import TOY_ENVIRONMENT, grpo

CODE = '''
from dataclasses import dataclass
from grpo_core import Environment, Outcome, Program, Reward, Task, Verdict

@dataclass(frozen=True)
class Settings:
    plus: int = 1

class Adder:
    """A sandbox that runs nothing: every program returns its input and `plus`."""
    Config = Settings

    def __init__(self, config):
        self.config = config
        print("opened", config.plus)

    async def run(self, programs):
        print("asked")
        return [[Outcome("ok", arguments[0] + self.config.plus) for arguments in program.inputs] for program in programs]

    async def close(self):
        print("closed")

class Broken(Adder):
    def __init__(self, config):
        raise RuntimeError("no such device")

class OneMore(Adder):
    async def run(self, programs):
        return [[Outcome("ok", outcome.value + 1) for outcome in row] for row in await super().run(programs)]

class Coder(Environment):
    """Pays what the sandbox says."""
    needs = frozenset({"sandbox"})
    reward_range = (0.0, 100.0)

    def task(self, key):
        return Task(key, "write code", key.index)

    async def averify(self, task, rollout):
        ((outcome,),) = await self.services.sandbox().run([Program(rollout.text, "f", [(task.data,)])])
        return Verdict({"reward": Reward(float(outcome.value))})

class Other(Coder):
    pass

class Thinker(Environment):
    def task(self, key):
        return Task(key, "think", None)

    def verify(self, task, rollout):
        return Verdict({"reward": Reward(1.0)})
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "coders.py").write_text(CODE)
    return str(tmp_path / "coders.py")


def reward(config: dict[str, object], name: str) -> float:
    async def judged() -> float:
        async with Sources.of(build_config([config]), {}) as sources:
            tasks = await sources.tasks([TaskKey(name, "train", 3)])
            ((verdict,),) = await sources.verify(tasks, [[Rollout.of("def f(x): ...")]])
        assert verdict.error is None, verdict.error
        return verdict.total

    return asyncio.run(judged())


def test_a_sandbox_is_opened_with_its_settings_lent_and_closed(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = {"name": f"{file}:Adder", "settings": {"plus": 4}}
    assert reward({"environment": f"{file}:Coder", "sandbox": sandbox}, "coders.py:Coder") == 7
    assert capsys.readouterr().out == "opened 4\nasked\nclosed\n"


def test_verdicts_on_disk_are_those_of_the_sandbox_with_its_settings_and_stay_with_them(
    file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    config = {"environment": f"{file}:Coder", "verify": {"cache": "disk"}}
    for name, settings, expected, is_new in (
        ("Adder", {"plus": 4}, 7, True),
        ("Adder", {"plus": 1}, 4, True),
        ("Adder", {}, 4, False),
        ("OneMore", {"plus": 1}, 5, True),
        ("Adder", {"plus": 4}, 7, False),
    ):
        sandbox = {"name": f"{file}:{name}", "settings": settings}
        assert reward({**config, "sandbox": sandbox}, "coders.py:Coder") == expected
        assert ("asked" in capsys.readouterr().out) is is_new


def test_a_sandbox_that_tells_nothing_of_itself_may_be_lent_all_the_same() -> None:
    class Borrower(Environment[None]):
        needs = frozenset({"sandbox"})

        def task(self, key: TaskKey) -> Task[None]:
            return Task(key, "write code", None)

    def lent() -> Services:
        return Services(sandboxes={"default": FakeSandbox(lambda program, one: Outcome("ok", 1))})

    first, second = (fingerprint(Borrower(None, lent())) for _ in range(2))
    assert first == second != fingerprint(Borrower())


def test_a_mixture_shares_one_sandbox(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "mixture": {f"{file}:Coder": {}, f"{file}:Other": {}},
        "sandbox": {"name": f"{file}:Adder"},
    }
    assert reward(config, "coders.py:Other") == 4
    assert capsys.readouterr().out == "opened 1\nasked\nclosed\n"


def test_none_is_opened_where_none_is_needed(file: str) -> None:
    config = {"environment": f"{file}:Thinker", "sandbox": {"name": "nobody has this"}}
    assert reward(config, "coders.py:Thinker") == 1


def test_what_cannot_be_made_is_named_in_one_line(file: str) -> None:
    said = r"the {} '.*:Broken' cannot be created: RuntimeError: no such device"
    with pytest.raises(PluginError, match=said.format("sandbox")):
        reward({"environment": f"{file}:Coder", "sandbox": {"name": f"{file}:Broken"}}, "")
    with pytest.raises(PluginError, match=said.format("judge")):
        open_judge(PluginHost(), "default", JudgeConfig(name=f"{file}:Broken"))


def test_an_unknown_sandbox_and_an_unknown_setting_are_named(file: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'docker'"):
        reward({"environment": f"{file}:Coder", "sandbox": {"name": "docke"}}, "")
    wrong = {"name": f"{file}:Adder", "settings": {"minus": 1}}
    with pytest.raises(ConfigError, match=r"sandbox\.settings\.minus is not a setting"):
        reward({"environment": f"{file}:Coder", "sandbox": wrong}, "")


CHOOSY = """
from dataclasses import dataclass
from grpo_core import Environment, JudgeRequest, Message, Reward, Task, Verdict

@dataclass(frozen=True)
class Config:
    judged: bool = False

class Choosy(Environment[int]):
    Config = Config
    levels = False

    @classmethod
    def needed(cls, config):
        return frozenset({"judge"} if config.judged else ())

    def task(self, key):
        return Task(key, (Message("user", f"Say {key.index}."),), key.index)

    async def averify(self, task, rollout):
        right = rollout.text == str(task.data)
        if self.config.judged:
            (found,) = await self.services.judge().judge([JudgeRequest(rollout.text)])
            return Verdict({"reward": Reward(found.score)}, passed=right)
        return Verdict({"reward": Reward(right)}, passed=right)

    def reference(self, task):
        return str(task.data)
"""


@pytest.mark.slow
def test_what_an_environment_needs_may_depend_on_its_settings(site: Path) -> None:
    (site / "choosy.py").write_text(CHOOSY)
    name, judged = "choosy.py:Choosy", ("--set", "env.judged=true")
    plain = grpo("env", "score", name, "--answer", "-", stdin="0")
    assert plain.exit_code == 0, plain.output
    assert "needs          nothing" in grpo("env", "card", name, "--tasks", "0").stdout
    needy = grpo("env", "score", name, "--answer", "-", *judged, stdin="0")
    assert needy.exit_code == 2
    assert "needs a judge model, but none is named" in needy.stderr
    assert "needs          judge" in grpo("env", "card", name, "--tasks", "0", *judged).stdout
    blind = grpo("env", "check", name, "--only", "verdict.form", *judged)
    assert blind.exit_code == 3, blind.output
    assert grpo("env", "check", name, "--only", "verdict.form").exit_code == 0


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        (
            '"sandbox"',
            "declares needs = 'sandbox', a str and no set; write needs = frozenset({\"sandbox\"})",
        ),
        ('["judge"]', 'a list and no set; write needs = frozenset({"judge"})'),
        (
            '{"sandbx"}',
            "needs 'sandbx', which is no service; did you mean 'sandbox'? There are sandbox, judge, endpoint",
        ),
    ],
)
@pytest.mark.parametrize(
    "command", ["env check", "env score --answer answer.txt", "run --steps 1 --env"]
)
def test_needs_that_are_no_services_are_one_line_everywhere(
    needs: str, told: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("answer.txt").write_text("1")
    file = tmp_path / "coder.py"
    file.write_text(TOY_ENVIRONMENT + f"\n\nToy.needs = {needs}\n")
    result = grpo(*command.split(), f"{file}:Toy")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert told in result.stderr
