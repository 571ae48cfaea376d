# ruff: noqa: E501  # a function's source, line breaks included, is the text of the reference answer
"""The problem families, one function each.

A function is used three times: its docstring is the problem's statement, the verifier computes the
expected results with it, and its source is the reference answer. So each function stands by itself:
it imports nothing and calls nothing of this module.
"""

from __future__ import annotations


def balanced(s: str) -> bool:
    """Whether every bracket in s is closed by its own kind, in the right order; other characters do not matter."""
    closes = {")": "(", "]": "[", "}": "{", ">": "<"}
    open_ones: list[str] = []
    for c in s:
        if c in "([{<":
            open_ones.append(c)
        elif c in closes and (not open_ones or open_ones.pop() != closes[c]):
            return False
    return not open_ones


def deepest(s: str) -> int:
    """How many brackets are open at once at most, or -1 if s is not balanced."""
    closes = {")": "(", "]": "[", "}": "{", ">": "<"}
    open_ones: list[str] = []
    most = 0
    for c in s:
        if c in "([{<":
            open_ones.append(c)
            most = max(most, len(open_ones))
        elif c in closes and (not open_ones or open_ones.pop() != closes[c]):
            return -1
    return -1 if open_ones else most


def first_error(s: str) -> int:
    """The index of the first closing bracket that does not close the innermost open one; len(s) if there is none, but something stays
    open; -1 if s is balanced."""
    closes = {")": "(", "]": "[", "}": "{", ">": "<"}
    open_ones: list[str] = []
    for index, c in enumerate(s):
        if c in "([{<":
            open_ones.append(c)
        elif c in closes and (not open_ones or open_ones.pop() != closes[c]):
            return index
    return len(s) if open_ones else -1


def insertions(s: str) -> int:
    """The smallest number of brackets that have to be put into s, anywhere, to balance it."""
    missing = open_now = 0
    for c in s:
        if c == "(":
            open_now += 1
        elif open_now:
            open_now -= 1
        else:
            missing += 1
    return missing + open_now


def longest(s: str) -> int:
    """The length of the longest part of s (without gaps) that is balanced."""
    starts, best = [-1], 0
    for index, c in enumerate(s):
        if c == "(":
            starts.append(index)
        else:
            starts.pop()
            if starts:
                best = max(best, index - starts[-1])
            else:
                starts.append(index)
    return best


def with_jokers(s: str) -> bool:
    """Whether s can be balanced when each * may stand for "(", for ")" or for nothing."""
    fewest = most = 0
    for c in s:
        fewest += 1 if c == "(" else -1
        most += -1 if c == ")" else 1
        if most < 0:
            return False
        fewest = max(fewest, 0)
    return fewest == 0


def score(s: str) -> int:
    """The score of the balanced s: "()" is worth 1, a pair around something is worth twice that, and what stands side by side adds up."""
    worth = [0]
    for c in s:
        if c == "(":
            worth.append(0)
        else:
            inner = worth.pop()
            worth[-1] += 2 * inner if inner else 1
    return worth[0]


def unfold(s: str) -> str:
    """The text of s in which every digit with a bracket behind it is carried out: "2(ab)" means "abab", also one inside the other."""
    parts: list[str] = [""]
    times: list[int] = []
    for index, c in enumerate(s):
        if c == "(":
            times.append(int(s[index - 1]))
            parts.append("")
        elif c == ")":
            inner = parts.pop()
            parts[-1] += inner * times.pop()
        elif not c.isdigit():
            parts[-1] += c
    return parts[0]
