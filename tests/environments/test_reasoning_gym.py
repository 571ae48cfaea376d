"""Every dataset of reasoning-gym as an environment: whole, drawn by hashed keys, split by question, judged as published."""

import dataclasses
import functools
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

from grpo_core import ConfigError, MissingExtraError, Rollout, Task, TaskKey, Verdict
from grpo_core.plugins.environments import build_environment
from grpo_env_reasoning_gym import categories, grpo_environments
from grpo_env_reasoning_gym.items import item
from grpo_env_reasoning_gym.ladder import FIXED, ladder

from ..core.sampled import some_of

SPECS = {spec.name.partition("/")[2]: spec for spec in grpo_environments()}
WITHOUT_LEVELS = {"acre", "gsm_symbolic", "list_functions", "knight_swap", "self_reference"}
WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
OWN_ANSWER_FAILS = {
    "jugs": 0,  # it is searched for with the first 3 jugs only, and is "No solution" for 1 in 8 of those with 4
    "string_manipulation": 941,  # it is the empty string for 1 in 80, which gets 0
}
"""Datasets whose verifier refuses some of their own answers, with the index of such a task at level 1."""


@functools.cache
def environment(name: str) -> Any:
    """The dataset as published, also where it executes answers or pays for nothing."""
    return build_environment(SPECS[name], {"execute_answers": True, "allow_faulty": True})


def ask(
    name: str, index: int = 0, *, split: Any = "train", seed: int = 0, level: float = 0.0
) -> Task[Any]:
    task: Task[Any] = environment(name).task(
        TaskKey(f"reasoning-gym/{name}", split, index, seed, level)
    )
    return task


def question(task: Task[Any]) -> str:
    return task.prompt[1].content  # type: ignore[union-attr]


def questions(name: str, count: int, **key: Any) -> list[str]:
    return [question(ask(name, index, **key)) for index in range(count)]


def judge(name: str, task: Task[Any], answer: str) -> Verdict:
    verdict: Verdict = environment(name).verify(task, Rollout.of(f"<answer>{answer}</answer>"))
    return verdict


# The catalogue


def test_it_offers_every_dataset_of_the_library_with_its_category() -> None:
    published = {name: found.__module__.split(".")[1] for name, (found, _) in DATASETS.items()}
    del published["composite"]
    assert categories() == published
    assert set(SPECS) == set(published)
    assert len(SPECS) == 105


def test_listing_it_does_not_import_the_library_and_without_the_library_the_extra_is_named() -> (
    None
):
    program = (
        "import json, sys\nfrom grpo_env_reasoning_gym import grpo_environments\nspecs = grpo_environments()\n"
        "loaded = 'reasoning_gym' in sys.modules\nsys.modules['reasoning_gym'] = None\n"
        "try:\n    specs[0].load()\nexcept Exception as error:\n    print(json.dumps([loaded, type(error).__name__, str(error)]))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    loaded, error, message = json.loads(result.stdout)
    assert not loaded
    assert error == MissingExtraError.__name__
    assert "grpo-core[reasoning-gym]" in message


def test_a_class_is_made_once_and_found_by_its_module_and_name() -> None:
    found = SPECS["gcd"].load()
    assert found is SPECS["gcd"].load() is pickle.loads(pickle.dumps(found))


# Tasks


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    some_of(sorted(SPECS), default=[*sorted(SPECS)[::3], *WITHOUT_ANSWER, *OWN_ANSWER_FAILS]),
)
def test_a_dataset_makes_tasks_at_both_ends_and_its_own_answers_pass(name: str) -> None:
    tasks = [
        ask(name, split=split, level=level) for level in (0.0, 1.0) for split in ("train", "eval")
    ]
    assert ask(name) == tasks[0]
    assert len({question(task) for task in tasks}) == 4
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    references = [environment(name).reference(task) for task in tasks]
    assert {reference is None for reference in references} == {name in WITHOUT_ANSWER}
    if name in WITHOUT_ANSWER or name in OWN_ANSWER_FAILS:
        return
    for task, reference in zip(tasks, references, strict=True):
        verdict = environment(name).verify(task, Rollout.of(f"Let me see. {reference} That is it."))
        assert verdict.passed
        assert type(verdict.rewards["reward"].value) is float
        assert verdict.total == pytest.approx(1)


@pytest.mark.parametrize("name", OWN_ANSWER_FAILS)
def test_some_own_answers_of_the_library_do_not_pass_its_own_verifier(name: str) -> None:
    task = ask(name, OWN_ANSWER_FAILS[name], level=1.0)
    assert environment(name).verify(task, Rollout.of(environment(name).reference(task))).total == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_item_is_that_of_a_dataset_built_with_its_seed(name: str) -> None:
    """Others are built once and given the seed of each item: none may keep anything from before."""
    config, seed = ladder(name, {})[0], 11
    found = item(name, DATASETS[name][0](config), seed)
    random.seed(seed)
    np.random.seed(seed)
    assert found == DATASETS[name][0](dataclasses.replace(config, seed=seed))[seed % config.size]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["coin_flip", "n_queens", "propositional_logic", "tower_of_hanoi", "products"]
)
def test_no_held_out_question_is_trained_on_even_where_there_are_few(name: str) -> None:
    trained, held_out = (
        {
            text
            for seed, level in itertools.product((0, 1), (0.0, 0.5))
            for text in questions(name, count, split=split, seed=seed, level=level)
        }
        for split, count in (("train", 150), ("eval", 50))
    )
    assert trained
    assert held_out
    assert not trained & held_out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["codeio", "list_functions", "pool_matrix", "tsumego"])
def test_a_task_depends_on_nothing_that_happened_before(name: str) -> None:
    once = [ask(name, index, level=level) for level in (0.0, 1.0) for index in range(4)]
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), pickle.dumps(np.random.get_state())
    again = [ask(name, index, level=level) for level in (1.0, 0.0) for index in range(4)]
    assert again == once[4:] + once[:4]
    assert before == (random.getstate(), pickle.dumps(np.random.get_state()))


def test_a_draw_that_the_dataset_gives_up_is_drawn_again() -> None:
    env = environment("tsumego")
    config = ladder("tsumego", {})[-1]
    assert None in [item("tsumego", DATASETS["tsumego"][0](config), seed) for seed in range(300)]
    assert all(question(env.task(TaskKey("t", "train", index, level=1.0))) for index in range(60))


# Levels


def test_levels_change_the_config_where_there_is_a_curriculum() -> None:
    assert {name for name in SPECS if not SPECS[name].load().levels} == WITHOUT_LEVELS
    assert {name for name in SPECS if not has_curriculum(name)} < WITHOUT_LEVELS
    for name in SPECS:
        steps = ladder(name, {})
        assert (len(steps) == 1) == (name in WITHOUT_LEVELS)
        assert len(steps) == 1 or steps[0] != steps[-1]
        for step in steps:  # some levels are refused by the dataset's own validation, and left out
            getattr(step, "validate", bool)()
            held = FIXED.get(name, {})  # what would take minutes
            assert {key: getattr(step, key) for key in held} == held


def test_the_ends_of_the_curriculum_are_the_ends_of_the_levels() -> None:
    assert "1000" not in question(ask("prime_factorization"))
    curriculum = create_curriculum("leg_counting")
    curriculum.set_global_level(10**6)
    assert ladder("leg_counting", {})[-1] == curriculum.generate_configuration(
        {"seed": 0, "size": 1}
    )
    assert [ask("leg_counting", level=level).data.step for level in (0.0, 0.5, 1.0)] == [0, 18, 35]


# Settings


def test_settings_can_be_set_and_are_part_of_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = build_environment(SPECS["gcd"], {"settings": {"min_value": 7, "max_value": 8}})
    asked = env.task(TaskKey("reasoning-gym/gcd", "train", 0, level=1.0)).prompt[1].content  # type: ignore[union-attr]
    assert set("0123456789") & set(asked) <= set("78")
    known = {each.fingerprint() for each in (env, environment("gcd"), environment("lcm"))}
    monkeypatch.setattr("grpo_env_reasoning_gym.env.version", lambda distribution: "0.1.26")
    assert len({*known, environment("gcd").fingerprint()}) == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"most": 5}, r"env\.settings\.most is not a setting of 'reasoning-gym/gcd'; it has max_numbers"),
        ({"seed": 5}, r"env\.settings\.seed is not a setting"),
        ({"max_value": -5}, r"of 'reasoning-gym/gcd' are refused at curriculum level 0"),
        ({"max_value": "many"}, r"refused at curriculum level 0: '>' not supported"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_in_one_line(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build_environment(SPECS["gcd"], {"settings": settings})


# Verdicts


def test_the_holes_of_published_verifiers_show() -> None:
    """They are refused unless asked for, and not fixed: the rewards are those of the library."""
    assert judge("game_of_life_halting", ask("game_of_life_halting"), "asdf").passed
    assert not judge("complex_arithmetic", ask("complex_arithmetic"), "nan").passed  # but this is
    with pytest.raises(ValueError, match="invalid literal"):
        judge("prime_factorization", ask("prime_factorization"), "asdf")
