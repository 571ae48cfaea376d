"""Maps levels to configs of a dataset: the levels of its curriculum, without unusable ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

from grpo_core import ConfigError

USED: Mapping[str, tuple[int, ...]] = {
    "arc_1d": (0, 1),  # above 25 cells it may look for a tenth of nine colours, for ever
    "bf": (0, 1),  # the programs of 2 count beyond one byte, which never ends
    "caesar_cipher": (0, 1),  # refused: rotations of 50 letters
    "game_of_life_halting": (0, 1),  # boards of 50 x 50 are printed as "...": 5 questions in all
    "jugs": (0, 1),  # 5 jugs: searches of minutes
    "knight_swap": (),  # refused: boards of 4 squares, at every level
    "modulo_grid": (0, 2, 3, 4, 5),  # refused: a largest target of 0
    "number_sequence": (0, 1),  # more operations square numbers until they have millions of digits
    "rubiks_cube": (0, 1, 2, 3),  # refused: cubes of 7
    "self_reference": (),  # its difficulty changes nothing
    "survo": (0, 1),  # refused: 16 empty cells in the 9 of the smallest board
    "zebra_puzzles": (0, 1, 2, 3),  # 6 x 6 takes 2 s, 7 x 7 minutes
}
"""The curriculum levels that are used, of datasets where some cannot be. "refused" means refused by
the dataset's own validation."""

FIXED: Mapping[str, Mapping[str, Any]] = {
    "number_sequence": {"max_terms": 5},  # with 8 terms, squares of squares take minutes
    "sokoban": {"max_boxes": 5, "max_depth": 40},  # 10 boxes, or 80 moves, are searched for minutes
}
"""Settings that are the same at every level, whatever the curriculum says."""

SIZES: Mapping[str, int] = {"acre": 20}
"""Number of items that a dataset makes at once, where it mixes kinds of items and a single item
would always be of the same kind."""

_OURS = ("seed", "size")


def steps(name: str) -> tuple[int | None, ...]:
    """Return a dataset's curriculum levels, the easiest first, or (None,) without a curriculum.

    None stands for the dataset's defaults.
    """
    if not has_curriculum(name):
        return (None,)
    attributes = create_curriculum(name).attributes.values()
    return USED.get(name, tuple(range(max(len(attribute.levels) for attribute in attributes)))) or (
        None,
    )


def ladder(name: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the dataset's config at each step, overridden by `settings`.

    Raises:
        ConfigError: A setting is unknown, or the dataset refuses a value.
    """
    known = sorted({field.name for field in fields(DATASETS[name][1])}.difference(_OURS))
    if unknown := sorted(settings.keys() - set(known)):
        raise ConfigError(
            f"env.settings.{unknown[0]} is not a setting of 'reasoning-gym/{name}'; it has "
            f"{', '.join(known)}"
        )
    return tuple(_checked_config(name, step, settings) for step in steps(name))


def _checked_config(name: str, step: int | None, settings: Mapping[str, Any]) -> Any:
    config = replace(_published_config(name, step), **{**FIXED.get(name, {}), **settings})
    validate = getattr(config, "validate", lambda: None)
    try:
        validate()
    except (AssertionError, TypeError, ValueError) as error:
        where = "" if step is None else f" at curriculum level {step}"
        raise ConfigError(
            f"env.settings {dict(settings)} of 'reasoning-gym/{name}' are refused{where}: "
            f"{str(error) or 'no reason is given'}"
        ) from error
    return config


def _published_config(name: str, step: int | None) -> Any:
    basics = {"seed": 0, "size": SIZES.get(name, 1)}
    if step is None:
        return DATASETS[name][1](**basics)
    curriculum = create_curriculum(name)
    curriculum.set_global_level(step)
    return curriculum.generate_configuration(basics)
