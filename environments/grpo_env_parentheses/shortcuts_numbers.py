"""Hold wrong programs for the families that ask for a number."""

from __future__ import annotations


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
