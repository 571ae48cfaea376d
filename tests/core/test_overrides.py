"""Settings: merged from left to right, validated at the border, explained in one line."""

import json
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, known_keys, nested, parse_setting
from grpo_core.config.recipe_files import read_recipe
from grpo_core.protocol.errors import ConfigError

BASE = {"environment": "arithmetic"}


def test_later_layers_win_key_by_key_and_earlier_ones_stay_as_they_were_or_are_read_only():
    kl = {"beta": 0.1, "estimator": "k1"}
    for base in (BASE | {"kl": kl}, MappingProxyType(BASE | {"kl": MappingProxyType(kl)})):
        config = build_config([base, {"kl": {"beta": 0.2}}])
        assert (config.kl.beta, config.kl.estimator) == (0.2, "k1")
        assert kl == {"beta": 0.1, "estimator": "k1"}


def test_every_setting_survives_a_round_trip_through_json():
    given = {"sampling": {"stop": ["</answer>"]}, "env": {"shots": 1}, "lora": {"targets": ["q"]}}
    config = build_config([BASE, given])
    assert build_config([json.loads(config.model_dump_json())]) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kl.beta=0.1", {"kl": {"beta": 0.1}}),
        ("a.b.c=true", {"a": {"b": {"c": True}}}),
        ("sampling.stop=['a', 'b']", {"sampling": {"stop": ["a", "b"]}}),
        ("model.name=org/model@rev", {"model": {"name": "org/model@rev"}}),
        ("x = a=b", {"x": "a=b"}),
    ],
)
def test_settings_on_the_command_line_are_toml_values_or_plain_text(text, expected):
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["kl.beta", "=1", "kl..beta=1", ""])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="key=value"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"kl": {"betta": 1}}, "did you mean 'kl.beta'"),
        ({"group_size": 1}, "group_size"),
        ({"kl": 1}, "kl"),
        ({"kl": "x"}, "kl"),
        ({"kl": [2]}, "kl"),
        ({"kl": {"beta": float("nan")}}, "kl.beta"),
        ({"optimizer": {"max_grad_norm": float("inf")}}, "max_grad_norm"),
        ({"stop": {"max_kl": 1.0}, "kl": {"beta": 0}}, r"max_kl needs the reference policy"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr"),
        ({"loss": {"name": "clipp"}}, "loss.name"),
        ({"trainer": {"minibatches": 9}}, "only 8 prompts per step"),
        ({"steps": 1, "epochs": 1.0}, "exclude each other"),
        ({"sampling": {"temperature": 0}}, "all completions of a group would be equal"),
        ({"kl": {"estimator": "k9"}, "lora": {"r": 0}}, "; setting"),
    ],
)
def test_what_is_wrong_is_said_with_the_key_and_what_was_found(layer, message):
    with pytest.raises(ConfigError, match=message):
        build_config([BASE, layer])


def test_every_setting_says_what_it_does():
    def undocumented(section, prefix=""):
        for name, info in section.model_fields.items():
            if isinstance(info.annotation, type) and hasattr(info.annotation, "model_fields"):
                yield from undocumented(info.annotation, f"{prefix}{name}.")
            elif not info.description:
                yield prefix + name

    assert list(undocumented(RunConfig)) == []
    assert {"kl.beta", "sampling.min_p", "trainer.micro_batch_tokens", "log.samples_every"} <= set(
        known_keys()
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.toml", "[kl]\nbeta = 0.5\n"),
        ("r.json", '{"kl": {"beta": 0.5}}'),
        ("r.yaml", "kl:\n  beta: 0.5\n"),
        ("r.yml", "kl.beta: 0.5  # as after --set\n"),
    ],
)
def test_recipes_are_toml_or_yaml_or_a_runs_config(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_recipe(tmp_path / name) == {"kl": {"beta": 0.5}}


def test_a_scalar_of_yaml_is_what_it_is_after_set(tmp_path):
    """By the rules of YAML 1.1, 1e-4 would be a text, off and no would be false, and 1:30 a number."""
    (tmp_path / "r.yaml").write_text(
        "optimizer: {lr: 1e-4}\ntrainer.memory_check: off\nmixture:\n  env.py:A: {share: 2}\n"
        "a: no\nb: 1:30\nc: '3'\nd: [true, ~, 0x10]\ne: |\n  two\n  lines\nf:\ntrainer.threads: 2\n"
    )
    assert read_recipe(tmp_path / "r.yaml") == {
        "optimizer": {"lr": 1e-4},
        "trainer": {"memory_check": "off", "threads": 2},
        "mixture": {"env.py:A": {"share": 2}},
        "a": "no",
        "b": "1:30",
        "c": "3",
        "d": [True, None, 16],
        "e": "two\nlines\n",
        "f": None,
    }
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_recipe(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kl: {beta: 1\n", "is not valid YAML"),
        ("kl: 1\nkl: 2\n", "the key 'kl' is there twice"),
        ("kl: &x {beta: 1}\nloss: *x\n", "used twice by an alias"),
        ("a: &x\n  b: *x\n", "used twice by an alias"),
        ("? [a, b]\n: 1\n", "has to be the name of a setting"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML"),
        ("- kl\n", "must hold settings by name; found a list"),
        ("!!python/object/apply:os.abort []\n", "must hold settings by name"),
        ("[" * 5000, "is not valid YAML"),
    ],
)
def test_yaml_that_is_no_recipe_is_refused_by_one_line(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        read_recipe(tmp_path / "r.yaml")
    assert "\n" not in str(refused.value)


def test_yaml_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "r.yaml").write_text("kl.beta: 1\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install pyyaml .* or write the recipe as TOML"):
        read_recipe(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    ("name", "text"), [("r.toml", "[kl\n"), ("r.json", "{"), ("r.json", "[1]"), ("r.toml", "\x00")]
)
def test_a_broken_recipe_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_recipe(tmp_path / name)


def test_a_part_of_a_key_that_holds_dots_stands_in_quotes() -> None:
    mixture = {"mixture": {"a/mine.py:T": {"share": 3}}}
    assert parse_setting('mixture."a/mine.py:T".share=3') == mixture
    assert nested({'mixture."a/mine.py:T".share': 3, "a.b": 1}) == mixture | {"a": {"b": 1}}


def test_environments_that_are_files_are_named_in_full_wherever_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    full = str(tmp_path / "mine.py:T")
    assert build_config([{"environment": "mine.py:T"}]).environment == full
    share = parse_setting('mixture."mine.py:T".share=3')
    also = {"eval": {"also": "./other.py:U"}, "sandbox": {"name": "own.py:S"}}
    mixed = build_config([{"mixture": {"mine.py:T": {}}}, share, also])
    assert {name: member.share for name, member in mixed.mixture.items()} == {full: 3}
    assert mixed.eval.also == (str(tmp_path / "other.py:U"),)
    assert mixed.sandbox.name == f"{tmp_path}/own.py:S"


def test_what_is_there_as_a_file_is_named_in_full_so_that_a_run_can_be_continued_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "smollm2-135m"):
        (tmp_path / name).mkdir()
    (tmp_path / "rows.jsonl").touch()
    judges = {
        "default": {"name": "scorer", "settings": {"model": "tiny"}},
        "asked": {"name": "llm", "settings": {"model": "tiny"}},  # what an endpoint calls its model
    }
    files = {"model": {"name": "./tiny"}, "judges": judges, "sft": {"data": "rows.jsonl"}}
    found = build_config([BASE, files])
    assert found.model.name == str(tmp_path / "tiny")
    assert found.sft.data == str(tmp_path / "rows.jsonl")
    assert found.judges["default"].settings == {"model": str(tmp_path / "tiny")}
    assert found.judges["asked"].settings == {"model": "tiny"}
    for name in ("smollm2-135m", "org/name@v1", "a" * 300):
        assert build_config([BASE, {"model": {"name": name}}]).model.name == name
    with pytest.raises(ConfigError, match="'~nobody-at-all/model' is not a path"):
        build_config([{"environment": "e", "model": {"name": "~nobody-at-all/model"}}])


@pytest.mark.parametrize("value", [3, None])
def test_an_estimator_after_a_section_that_is_none_is_no_crash(value: object) -> None:
    layers = [{"environment": "e"}, {"advantage": value}]
    assert build_config([*layers, {"advantage": {"name": "grpo"}}]).advantage.name == "grpo"
    with pytest.raises(ConfigError, match="advantage"):
        build_config(layers)


def test_another_estimator_takes_back_the_k_of_the_one_before() -> None:
    passk = {"environment": "e", "advantage": {"name": "passk", "k": 4}}
    assert build_config([passk, {"advantage": {"name": "grpo"}}]).advantage.k is None
    assert build_config([passk, {"advantage": {"name": "maxk"}}]).advantage.k == 4
    assert build_config([passk, {"advantage": {"clip": 2.0}}]).advantage.k == 4
    with pytest.raises(ConfigError, match="has no k"):
        build_config([passk, {"advantage": {"name": "grpo", "k": 4}}])
