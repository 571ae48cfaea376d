"""Hold wrong programs for the families that ask for yes or no."""

from __future__ import annotations


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
