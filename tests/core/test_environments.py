"""How the settings of an environment are validated before it is made."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from grpo_core import ConfigError, Environment, PluginError, Spec, Task, TaskKey
from grpo_core.plugins.environments import build_environment


@dataclass(frozen=True, slots=True)
class Noise:
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    difficulty: int = 1
    style: Literal["plain", "chat"] = "chat"
    noise: Noise = Noise()

    def __post_init__(self) -> None:
        if self.difficulty < 0:
            raise ValueError("difficulty must not be negative")


@dataclass(frozen=True, slots=True)
class Lists:
    words: tuple[str, ...] = ()
    numbers: list[int] | None = None
    names: frozenset[str] = frozenset()
    text: str = ""
    either: str | tuple[str, ...] = ""
    table: dict[str, int] = field(default_factory=dict)


class Listing(Environment[None]):
    Config = Lists

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, "prompt", None)


class Example(Environment[None]):
    Config = Settings

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, "prompt", None)


class WithoutDataclass(Example):
    Config = dict


NOT_AN_ENVIRONMENT = 3


def build(target: str = "Example", **overrides: Any) -> Environment[Any]:
    sys.modules["grpo_test_settings"] = sys.modules[__name__]
    return build_environment(Spec("example", f"grpo_test_settings:{target}"), overrides)


def test_a_list_takes_one_value_or_texts_between_commas() -> None:
    assert build("Listing", words="salt").config.words == ("salt",)
    assert build("Listing", words="salt, tree").config.words == ("salt", "tree")
    assert build("Listing", words=["a, b"]).config.words == ("a, b",)
    assert build("Listing", numbers=5).config.numbers == [5]
    assert build("Listing", numbers="5,6").config.numbers == [5, 6]
    assert build("Listing", names="a").config.names == frozenset({"a"})
    assert build("Listing", text="a, b", either="a, b").config == Lists(text="a, b", either="a, b")
    with pytest.raises(ConfigError, match=r"env\.numbers\.0 of 'example'"):
        build("Listing", numbers="x")


def test_overrides_are_converted_to_the_types_of_the_config() -> None:
    built = build(difficulty=3, style="plain", noise={"amount": 1})
    assert built.config == Settings(difficulty=3, style="plain", noise=Noise(1.0))
    assert build().config == Settings()


def test_an_unknown_setting_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^env\.difficlty is not .* mean 'env\.difficulty'\?$"):
        build(difficlty=3)
    with pytest.raises(ConfigError, match=r"^env\.noise\.amont is not .* 'env\.noise\.amount'\?$"):
        build(noise={"amont": 3})
    known = r"^env\.zzz is not .*; it has env\.difficulty, env\.style, env\.noise\."
    with pytest.raises(ConfigError, match=known):
        build(zzz=3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"difficulty": "high"}, r"^env\.difficulty of 'example': .*integer.*; found 'high'$"),
        ({"style": "loud"}, r"^env\.style of .*: input should be 'plain' or 'chat'; found 'loud'$"),
        ({"noise": {"amount": "x"}}, r"^env\.noise\.amount of 'example': .*; found 'x'$"),
        ({"difficulty": -1}, r"^env of 'example': difficulty must not be negative$"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_key_and_what_was_found(
    overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**overrides)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("NOT_AN_ENVIRONMENT", "environment 'example' is 3, not a subclass of"),
        ("WithoutDataclass", "write it as a frozen dataclass"),
    ],
)
def test_a_target_that_is_no_environment_and_a_config_that_is_no_dataclass_are_refused(
    target: str, message: str
) -> None:
    with pytest.raises(PluginError, match=message):
        build(target)


HEIR = """
from grpo_core import Environment
from heir_base import Base

class Heir({bases}):
    pass
"""
BASE = """
from grpo_core import Environment, Reward, Task, Verdict

class Base({base}):
    def task(self, key):
        return Task(key, "x", None)

    def verify(self, task, rollout):
        return Verdict({{"reward": Reward({reward})}}, passed=True)
"""


@pytest.mark.parametrize("bases", ["Base", "Base, Environment"])
def test_the_fingerprint_knows_what_a_class_inherits(tmp_path: Path, bases: str) -> None:
    """Else verdicts of another verifier would be taken from a cache, and a run would go on with them."""
    (tmp_path / "inherited.py").write_text(HEIR.format(bases=bases))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from inherited import Heir; print(Heir().fingerprint())"
    found = set()
    for reward in ("0.25", "0.75", "0.25"):
        base = "Environment" if bases == "Base" else ""
        (tmp_path / "heir_base.py").write_text(BASE.format(base=base, reward=reward))
        command = [sys.executable, "-c", code]
        found.add(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 2
