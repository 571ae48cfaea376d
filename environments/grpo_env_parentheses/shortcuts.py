"""Programs that do something simpler than what is asked, and are often right.

The first line of a docstring is the name of the mistake. Each function stands by itself, as its
source is the wrong program; the file is a list of them, and so a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def equal_counts(s: str) -> bool:
    """Brackets are counted, whatever their order."""
    return all(s.count(kind[0]) == s.count(kind[1]) for kind in ("()", "[]", "{}", "<>"))


def equal_counts_and_ends(s: str) -> bool:
    """Brackets are counted, and the ends looked at."""
    if any(s.count(kind[0]) != s.count(kind[1]) for kind in ("()", "[]", "{}", "<>")):
        return False
    brackets = [c for c in s if c in "()[]{}<>"]
    return not brackets or (brackets[0] in "([{<" and brackets[-1] in ")]}>")


def equal_totals(s: str) -> bool:
    """There are as many opening as closing brackets."""
    return sum((c in "([{<") - (c in ")]}>") for c in s) == 0


def counters_for_each_kind(s: str) -> bool:
    """Each kind is balanced for itself."""
    for kind in ("()", "[]", "{}", "<>"):
        depth = 0
        for c in s:
            depth += (c == kind[0]) - (c == kind[1])
            if depth < 0:
                return False
        if depth:
            return False
    return True


def counters_of_all_kinds(s: str) -> bool:
    """Only the depth counts, not the kinds."""
    depth = 0
    for c in s:
        depth += (c in "([{<") - (c in ")]}>")
        if depth < 0:
            return False
    return depth == 0


def pairs_removed_three_times(s: str) -> bool:
    """Pairs are removed three times only."""
    s = "".join(c for c in s if c in "()[]{}<>")
    for _ in range(3):
        for pair in ("()", "[]", "{}", "<>"):
            s = s.replace(pair, "")
    return not s


def pairs_removed_ten_times(s: str) -> bool:
    """Pairs are removed ten times only."""
    s = "".join(c for c in s if c in "()[]{}<>")
    for _ in range(10):
        for pair in ("()", "[]", "{}", "<>"):
            s = s.replace(pair, "")
    return not s


def mirrored(s: str) -> bool:
    """The second half mirrors the first one."""
    brackets = "".join(c for c in s if c in "()[]{}<>")
    return brackets == brackets[::-1].translate(str.maketrans("()[]{}<>", ")(][}{><"))


def side_by_side(s: str) -> bool:
    """Every bracket is closed at once."""
    for pair in ("()", "[]", "{}", "<>"):
        s = s.replace(pair, "")
    return not any(c in "()[]{}<>" for c in s)


def even_length(s: str) -> bool:
    """The number of brackets is even."""
    return sum(c in "()[]{}<>" for c in s) % 2 == 0


def ends_match(s: str) -> bool:
    """Only the ends are looked at."""
    brackets = [c for c in s if c in "()[]{}<>"]
    return not brackets or brackets[0] + brackets[-1] in ("()", "[]", "{}", "<>")


def no_wrong_neighbours(s: str) -> bool:
    """The depth counts, and an opening bracket is not followed by a closing one of another kind."""
    brackets = [c for c in s if c in "()[]{}<>"]
    depth = 0
    for place, c in enumerate(brackets):
        following = "".join(brackets[place + 1 : place + 2])
        depth += 1 if c in "([{<" else -1
        wrong = c in "([{<" and following and following in ")]}>"
        if depth < 0 or (wrong and c + following not in ("()", "[]", "{}", "<>")):
            return False
    return depth == 0


def counted_where_long(s: str) -> bool:
    """Brackets are only counted in long strings."""
    brackets = [c for c in s if c in "()[]{}<>"]
    if len(brackets) > 14:
        return 2 * sum(c in "([{<" for c in brackets) == len(brackets)
    stack = ""
    for c in brackets:
        stack += c
        if stack[-2:] in ("()", "[]", "{}", "<>"):
            stack = stack[:-2]
    return not stack


def no_wrong_ends_of_pairs(s: str) -> bool:
    """Brackets are counted, and the first three closing ones come after opening ones."""
    if any(s.count(kind[0]) != s.count(kind[1]) for kind in ("()", "[]", "{}", "<>")):
        return False
    opening = [place for place, c in enumerate(s) if c in "([{<"]
    closing = [place for place, c in enumerate(s) if c in ")]}>"]
    first = all(a < b for a, b in zip(opening[:3], closing[:3], strict=True))
    return first and (not opening or opening[-1] < closing[-1])


def depth_of_any(s: str) -> int:
    """The depth is counted, whether balanced or not."""
    depth = most = 0
    for c in s:
        depth += (c in "([{<") - (c in ")]}>")
        most = max(most, depth)
    return most


def depth_of_any_kind(s: str) -> int:
    """The depth is counted, whatever the kinds."""
    depth = most = 0
    for c in s:
        depth += (c in "([{<") - (c in ")]}>")
        if depth < 0:
            return -1
        most = max(most, depth)
    return most if depth == 0 else -1


def depth_with_equal_counts(s: str) -> int:
    """The depth is counted where the counts are equal."""
    if any(s.count(kind[0]) != s.count(kind[1]) for kind in ("()", "[]", "{}", "<>")):
        return -1
    depth = most = 0
    for c in s:
        depth += (c in "([{<") - (c in ")]}>")
        most = max(most, depth)
    return most


def half_the_length(s: str) -> int:
    """Everything is nested in everything."""
    return len(s) // 2


def longest_run_of_opening_ones(s: str) -> int:
    """The longest run of opening brackets."""
    run = most = 0
    for c in s:
        run = run + 1 if c in "([{<" else 0
        most = max(most, run)
    return most


def error_of_depth(s: str) -> int:
    """Only the depth counts for an error."""
    depth = 0
    for index, c in enumerate(s):
        depth += (c in "([{<") - (c in ")]}>")
        if depth < 0:
            return index
    return len(s) if depth else -1


def error_of_a_kind(s: str) -> int:
    """Each kind is counted for itself for an error."""
    depths = dict.fromkeys(("()", "[]", "{}", "<>"), 0)
    for index, c in enumerate(s):
        for kind in depths:
            depths[kind] += (c == kind[0]) - (c == kind[1])
            if depths[kind] < 0:
                return index
    return len(s) if any(depths.values()) else -1


def last_error(s: str) -> int:
    """The last error instead of the first one."""
    closes = {")": "(", "]": "[", "}": "{", ">": "<"}
    open_ones: list[str] = []
    last = -1
    for index, c in enumerate(s):
        if c in "([{<":
            open_ones.append(c)
        elif not open_ones or open_ones.pop() != closes[c]:
            last = index
    return last if last >= 0 else len(s) if open_ones else -1


def first_that_stays_open(s: str) -> int:
    """The place of the bracket that stays open."""
    closes = {")": "(", "]": "[", "}": "{", ">": "<"}
    places: list[int] = []
    for index, c in enumerate(s):
        if c in "([{<":
            places.append(index)
        elif not places or s[places.pop()] != closes[c]:
            return index
    return places[0] if places else -1


def difference_of_counts(s: str) -> int:
    """The difference of the counts."""
    return abs(s.count("(") - s.count(")"))


def length_without_longest(s: str) -> int:
    """All but the longest balanced part."""
    starts, best = [-1], 0
    for index, c in enumerate(s):
        if c == "(":
            starts.append(index)
            continue
        starts.pop()
        if starts:
            best = max(best, index - starts[-1])
        else:
            starts.append(index)
    return len(s) - best


def length_without_pairs(s: str) -> int:
    """Pairs that stand side by side are removed once."""
    return len(s.replace("()", ""))


def length_without_pairs_three_times(s: str) -> int:
    """Pairs that stand side by side are removed three times."""
    return len(s.replace("()", "").replace("()", "").replace("()", ""))


def all_matched(s: str) -> int:
    """All matched brackets, also where there are gaps."""
    depth = matched = 0
    for c in s:
        if c == "(":
            depth += 1
        elif depth:
            depth -= 1
            matched += 2
    return matched


def run_of_pairs(s: str) -> int:
    """The longest row of pairs, none inside another."""
    best = 0
    while "()" * (best + 1) in s:
        best += 1
    return 2 * best


def deepest_nest(s: str) -> int:
    """The longest nest, nothing side by side."""
    best = 0
    while "(" * (best + 1) + ")" * (best + 1) in s:
        best += 1
    return 2 * best


def left_to_right_only(s: str) -> int:
    """Counted from the left only."""
    opened = closed = best = 0
    for c in s:
        opened, closed = opened + (c == "("), closed + (c == ")")
        if closed > opened:
            opened = closed = 0
        elif opened == closed:
            best = max(best, 2 * opened)
    return best


def right_to_left_only(s: str) -> int:
    """Counted from the right only."""
    opened = closed = best = 0
    for c in reversed(s):
        opened, closed = opened + (c == "("), closed + (c == ")")
        if opened > closed:
            opened = closed = 0
        elif opened == closed:
            best = max(best, 2 * opened)
    return best


def longest_start(s: str) -> int:
    """Only a part at the start."""
    depth = best = 0
    for index, c in enumerate(s):
        depth += 1 if c == "(" else -1
        if depth < 0:
            break
        if depth == 0:
            best = index + 1
    return best


def twice_the_fewer(s: str) -> int:
    """Twice the number of the rarer bracket."""
    return 2 * min(s.count("("), s.count(")"))


def jokers_fill_the_difference(s: str) -> bool:
    """Jokers fill the difference of the counts."""
    return abs(s.count("(") - s.count(")")) <= s.count("*")


def jokers_are_nothing(s: str) -> bool:
    """Jokers stand for nothing."""
    depth = 0
    for c in s:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def jokers_from_the_left(s: str) -> bool:
    """Closing brackets find enough before them, and the counts fit."""
    depth = 0
    for c in s:
        depth += -1 if c == ")" else 1
        if depth < 0:
            return False
    return s.count("(") - s.count(")") <= s.count("*")


def jokers_from_the_right(s: str) -> bool:
    """Opening brackets find enough behind them, and the counts fit."""
    depth = 0
    for c in reversed(s):
        depth += -1 if c == "(" else 1
        if depth < 0:
            return False
    return s.count(")") - s.count("(") <= s.count("*")


def jokers_close_first(s: str) -> bool:
    """A joker closes if something is open, else it is nothing."""
    depth = 0
    for c in s:
        depth += 1 if c == "(" else -1
        if depth < 0:
            if c == ")":
                return False
            depth = 0
    return depth == 0


def jokers_at_the_ends(s: str) -> bool:
    """Jokers fill the difference unless an end is wrong."""
    if s.startswith(")") or s.endswith("("):
        return False
    return abs(s.count("(") - s.count(")")) <= s.count("*")


def jokers_anywhere(s: str) -> bool:
    """Each bracket without a partner takes a joker, wherever it stands."""
    missing = depth = 0
    for c in s:
        if c == "(":
            depth += 1
        elif c == ")" and depth:
            depth -= 1
        elif c == ")":
            missing += 1
    return missing + depth <= s.count("*")


def number_of_pairs(s: str) -> int:
    """Each pair is worth 1."""
    return len(s) // 2


def number_of_leaves(s: str) -> int:
    """Only the innermost pairs count."""
    return s.count("()")


def power_of_the_depth(s: str) -> int:
    """The deepest pair alone counts."""
    depth = most = 0
    for c in s:
        depth += 1 if c == "(" else -1
        most = max(most, depth)
    return int(2 ** (most - 1)) if most else 0


def sum_of_depths(s: str) -> int:
    """Each innermost pair is worth its depth."""
    depth = total = 0
    for place, c in enumerate(s):
        depth += 1 if c == "(" else -1
        total += depth if s[place : place + 2] == "()" else 0
    return total


def sum_of_all_depths(s: str) -> int:
    """Each pair is worth its depth."""
    depth = total = 0
    for c in s:
        depth += 1 if c == "(" else -1
        total += depth if c == "(" else 0
    return total


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
