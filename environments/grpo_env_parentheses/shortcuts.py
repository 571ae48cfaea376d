"""List programs that do something simpler than what is asked, and are often right.

The first line of a program's docstring is the name of the mistake. Each program stands by itself,
as its source is the wrong program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo_env_parentheses.shortcuts_numbers import (
    all_matched,
    deepest_nest,
    depth_of_any,
    depth_of_any_kind,
    depth_with_equal_counts,
    difference_of_counts,
    error_of_a_kind,
    error_of_depth,
    first_that_stays_open,
    half_the_length,
    last_error,
    left_to_right_only,
    length_without_longest,
    length_without_pairs,
    length_without_pairs_three_times,
    longest_run_of_opening_ones,
    longest_start,
    number_of_leaves,
    number_of_pairs,
    power_of_the_depth,
    right_to_left_only,
    run_of_pairs,
    sum_of_all_depths,
    sum_of_depths,
    twice_the_fewer,
)
from grpo_env_parentheses.shortcuts_yes import (
    counted_where_long,
    counters_for_each_kind,
    counters_of_all_kinds,
    ends_match,
    equal_counts,
    equal_counts_and_ends,
    equal_totals,
    even_length,
    jokers_anywhere,
    jokers_are_nothing,
    jokers_at_the_ends,
    jokers_close_first,
    jokers_fill_the_difference,
    jokers_from_the_left,
    jokers_from_the_right,
    mirrored,
    no_wrong_ends_of_pairs,
    no_wrong_neighbours,
    pairs_removed_ten_times,
    pairs_removed_three_times,
    side_by_side,
)


def unfold_once(s: str) -> str:
    """Only the innermost repetitions, once."""
    import re

    text = re.sub(r"(\d)\(([a-z]*)\)", lambda match: match[2] * int(match[1]), s)
    return re.sub(r"[\d()]", "", text)


def unfold_twice(s: str) -> str:
    """Only two levels of repetitions."""
    import re

    for _ in range(2):
        s = re.sub(r"(\d)\(([a-z]*)\)", lambda match: match[2] * int(match[1]), s)
    return re.sub(r"[\d()]", "", s)


def unfold_three_times(s: str) -> str:
    """Only three levels of repetitions."""
    import re

    for _ in range(3):
        s = re.sub(r"(\d)\(([a-z]*)\)", lambda match: match[2] * int(match[1]), s)
    return re.sub(r"[\d()]", "", s)


def letters_only(s: str) -> str:
    """The letters as they stand."""
    return "".join(c for c in s if c.isalpha())


def first_group_only(s: str) -> str:
    """Return the text of the first repetition alone."""
    depth, parts, times = 0, [""], [0]
    for index, c in enumerate(s):
        if c == "(":
            times.append(int(s[index - 1]))
            parts.append("")
            depth += 1
        elif c == ")":
            inner = parts.pop()
            parts[-1] += inner * times.pop()
            depth -= 1
            if depth == 0:
                break
        elif not c.isdigit():
            parts[-1] += c
    return parts[0]


SHORTCUTS: Mapping[str, tuple[Callable[[str], Any], ...]] = {
    "balanced": (
        *(equal_counts, equal_counts_and_ends, equal_totals, counters_for_each_kind),
        *(counters_of_all_kinds, pairs_removed_three_times, pairs_removed_ten_times, mirrored),
        *(side_by_side, even_length, ends_match, no_wrong_neighbours, no_wrong_ends_of_pairs),
        counted_where_long,
    ),
    "deepest": (
        *(depth_of_any, depth_of_any_kind, depth_with_equal_counts, half_the_length),
        longest_run_of_opening_ones,
    ),
    "first_error": (error_of_depth, error_of_a_kind, last_error, first_that_stays_open),
    "insertions": (
        *(difference_of_counts, length_without_longest, length_without_pairs),
        length_without_pairs_three_times,
    ),
    "longest": (
        *(all_matched, run_of_pairs, deepest_nest, left_to_right_only, right_to_left_only),
        *(longest_start, twice_the_fewer),
    ),
    "with_jokers": (
        *(jokers_fill_the_difference, jokers_are_nothing, jokers_from_the_left),
        *(jokers_from_the_right, jokers_close_first, jokers_at_the_ends, jokers_anywhere),
    ),
    "score": (
        *(number_of_pairs, number_of_leaves, power_of_the_depth, sum_of_depths),
        sum_of_all_depths,
    ),
    "unfold": (unfold_once, unfold_twice, unfold_three_times, letters_only, first_group_only),
}
"""By family: the programs that are wrong for it."""
RIGHT_FOR_ONE_KIND = (counters_for_each_kind, counters_of_all_kinds, no_wrong_neighbours)
"""Programs that are right where there is one kind of brackets."""
