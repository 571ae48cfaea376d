"""Learning rate and weight of the KL by a model's size."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import sizes
from grpo_core.config.overrides import build_config, find_setting
from grpo_core.config.sizes import with_defaults

from .distributions import grpo


def chosen(weights: float, **settings: Any) -> tuple[Any, Any, str]:
    config, line = with_defaults(build_config([{"environment": "x", **settings}]), int(weights))
    return config.optimizer.lr, config.kl.beta, line


@pytest.mark.parametrize(
    ("weights", "adapter", "full", "beta"),
    [
        (134_515_008, 3e-4, 1e-5, 0.12),
        (0.2e9, 3e-4, 1e-5, 0.12),
        (0.2e9 + 1, 5e-5, 5e-6, 0.04),
        (494_032_768, 5e-5, 5e-6, 0.04),
        (1e9 + 1, 1e-5, 1e-6, 0.04),
        (4e9 + 1, 5e-6, 1e-6, 0.04),
        (1e12, 5e-6, 1e-6, 0.04),
    ],
)
def test_what_is_unset_follows_the_size_and_what_is_trained(weights, adapter, full, beta) -> None:
    assert chosen(weights)[:2] == (adapter, beta)
    assert chosen(weights, lora={"enabled": False})[:2] == (full, beta)


def test_supervised_fine_tuning_has_rates_of_its_own_and_no_kl() -> None:
    given = {"method": "sft", "lora": {"enabled": True}}
    assert chosen(1e8, **given)[:2] == (3e-4, None)
    assert chosen(7e9, **given)[:2] == (2e-4, None)
    assert chosen(7e9, method="sft", lora={"enabled": False})[:2] == (2e-5, None)
    assert "beta" not in chosen(1e8, **given)[2]


def test_what_is_set_wins_and_is_not_spoken_of() -> None:
    assert chosen(5e8, optimizer={"lr": 1e-3}, kl={"beta": 0}) == (1e-3, 0, "")
    assert chosen(5e8, optimizer={"lr": 1e-3}) == (
        1e-3,
        0.04,
        "kl.beta=0.04 (DeepSeekMath's for 7 billion): the default for an adapter on 500 million "
        "weights; set --beta to change it",
    )


def test_the_line_says_which_defaults_and_why() -> None:
    assert chosen(494_032_768)[2] == (
        "optimizer.lr=5e-5 (TRL's for 0.6 billion) and kl.beta=0.04 (DeepSeekMath's for 7 "
        "billion): the defaults for an adapter on 494 million weights; set --lr and --beta to "
        "change them"
    )
    full = chosen(7_615_616_512, lora={"enabled": False})[2]
    assert "optimizer.lr=1e-6 (DeepSeekMath's for 7 billion)" in full
    assert "for training all of 7.6 billion weights" in full


def test_an_unset_beta_needs_the_reference_and_a_zero_does_not() -> None:
    config = build_config([{"environment": "x"}])
    assert config.kl.beta is None
    assert config.needs_reference
    assert not build_config([{"environment": "x", "kl": {"beta": 0}}]).needs_reference
    assert all(default.value > 0 for default in sizes.BETAS)


def test_the_settings_explain_every_default() -> None:
    """Numbers in the text of a setting are those of the tables."""
    expected = {
        "optimizer.lr": {default.value for table in sizes.RATES.values() for default in table},
        "kl.beta": {default.value for default in sizes.BETAS},
    }
    for key, values in expected.items():
        ((_, info),) = find_setting(key)
        text = grpo("config", "explain", key).stdout
        assert "unset" in text
        numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d)?", text)}
        assert values <= numbers, f"{key}: {values - numbers} are not in: {info.description}"


ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_table() -> None:
    page = (ROOT / "grpo_core/train/README.md").read_text()
    heading = "| billion weights, up to | rate, adapter | rate, all weights | beta |"
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", page.partition(heading)[2], re.M)
    bounds = {"0.2": 0.2e9, "1": 1e9, "4": 4e9, "more": 1e12}
    assert [row[0] for row in rows[1:5]] == list(bounds)
    for weights, row in zip(bounds.values(), rows[1:5], strict=True):
        (adapter, beta, _), full = chosen(weights), chosen(weights, lora={"enabled": False})[0]
        assert tuple(map(float, row[1:])) == (adapter, full, beta)


@pytest.mark.parametrize(
    "path", ["README.md", "grpo_core/train/README.md", "grpo_core/train/grpo.py"]
)
def test_the_documentation_says_how_to_get_plain_grpo(path: str) -> None:
    text = " ".join((ROOT / path).read_text().split())
    place = text.index("not plain GRPO")
    said = text[place : place + 500]
    assert all(word in said for word in ("gdpo", "k3_st", "--recipe grpo"))


def test_the_recipe_of_plain_grpo_leaves_the_rate_to_what_is_trained() -> None:
    shown = grpo("config", "show", "--env", "arithmetic", "--recipe", "grpo", "--json").stdout
    config = build_config([json.loads(shown)])
    assert (config.advantage.name, config.kl.estimator, config.kl.beta) == ("grpo", "k3", 0.04)
    assert config.optimizer.lr is None
    full = build_config([json.loads(shown), {"lora": {"enabled": False}}])
    assert with_defaults(config, 134_515_008)[0].optimizer.lr == 3e-4
    assert with_defaults(full, 6_910_365_696)[0].optimizer.lr == 1e-6  # the paper's
