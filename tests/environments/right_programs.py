"""Right programs for fizzbuzz and parentheses, each written in another way than the references."""

from __future__ import annotations

import re
from typing import Any

from grpo_env_fizzbuzz.env import Numbers
from grpo_env_fizzbuzz.rules import Rule
from grpo_env_parentheses.env import Strings


def right_programs(problem: Any) -> list[str]:
    """Return the programs that solve a problem."""
    if isinstance(problem, Numbers):
        return _of_numbers(problem)
    assert isinstance(problem, Strings)
    return [program.replace("NAME", problem.entry) for program in STRINGS[problem.family]]


HELPERS = """
def naive_prime(n):
    if n < 2:
        return False
    d = 2
    while d < n:
        if n % d == 0:
            return False
        d += 1
    return True

def wheel_prime(n):
    if n in (2, 3):
        return True
    if n < 2 or n % 2 == 0 or n % 3 == 0:
        return False
    d = 5
    while d * d <= n:
        if n % d == 0 or n % (d + 2) == 0:
            return False
        d += 6
    return True

def sieve(top):
    found = set(range(2, top + 1))
    for n in range(2, top + 1):
        if n in found:
            found -= set(range(n * n, top + 1, n))
    return found

def digits(n):
    n = abs(n)
    parts = set()
    while True:
        parts.add(n % 10)
        n //= 10
        if not n:
            return parts
"""


def _test(rule: Rule, style: int) -> str:
    """Return a condition that is written in one of three ways."""
    value, last = rule.value, rule.last
    return {
        "divides": (f"not n % {value}", f"n // {value} * {value} == n", f"abs(n) % {value} < 1"),
        "contains": (f"{value} in digits(n)", f"str(n).count('{value}') > 0", f"any(c == '{value}' for c in str(n))"),
        "between": (f"n in range({value}, {last + 1})", f"not (n < {value} or n > {last})", f"n >= {value} and n < {last + 1}"),
        "prime": ("naive_prime(n)", "wheel_prime(n)", "n > 1 and n in sieve(n)"),
    }[rule.kind][style]  # fmt: skip


def _of_numbers(problem: Numbers) -> list[str]:
    return [HELPERS + _played(problem, style) for style in range(3)]


def _played(problem: Numbers, style: int) -> str:
    game = problem.game
    rest = "f'{n}'" if game.otherwise is None else repr(game.otherwise)
    tests = [(_test(rule, style), rule.word) for rule in game.rules]
    if style == 0 and game.joined:
        lines = ["text = ''", *(f"text += '{word}' if {test} else ''" for test, word in tests)]
        lines.append(f"return text or {rest}")
    elif style == 1 or not game.joined:
        if game.joined:
            pairs = ", ".join(f"({test}, {word!r})" for test, word in tests)
            lines = [
                f"names = [word for holds, word in [{pairs}] if holds]",
                f"return ''.join(names) if len(names) > 0 else {rest}",
            ]
        else:
            lines = [f"if {test}: return {word!r}" for test, word in tests] + [f"return {rest}"]
    else:
        lines = [f"a{i} = {word!r} * bool({test})" for i, (test, word) in enumerate(tests)]
        joined = " + ".join(f"a{i}" for i in range(len(tests)))
        lines += [f"text = {joined}", f"if text == '': return {rest}", "return text"]
    name = "one" if game.listed else problem.entry
    program = f"def {name}(n):\n    " + "\n    ".join(lines) + "\n"
    if game.listed:
        body = (
            "    return list(map(one, range(start, stop + 1)))",
            "    out = []\n    n = start\n    while n <= stop:\n        out.append(one(n))\n        n += 1\n    return out",
            "    return [one(start + i) for i in range(stop - start + 1)]",
        )[style]
        program += f"\ndef {problem.entry}(start, stop):\n{body}\n"
    return program


_STRINGS = r"""
#### balanced
def NAME(s):
    s = "".join(c for c in s if c in "()[]{}<>")
    while True:
        t = s
        for pair in ("()", "[]", "{}", "<>"):
            t = t.replace(pair, "")
        if t == s:
            return s == ""
        s = t
#### balanced
def NAME(s):
    partner = dict(zip("([{<", ")]}>"))
    s = [c for c in s if c in "()[]{}<>"]
    def read(i, end):
        while i < len(s) and s[i] != end:
            if s[i] not in partner:
                return -1
            i = read(i + 1, partner[s[i]])
            if i < 0 or i >= len(s):
                return -1
            i += 1
        return i
    return read(0, None) == len(s)
#### deepest
import re
def NAME(s):
    rounds = 0
    while s:
        t = re.sub(r"\(\)|\[\]|\{\}|<>", "", s)
        if t == s:
            return -1
        rounds += 1
        s = t
    return rounds
#### deepest
def NAME(s):
    stack, depths = "", [0]
    for c in s:
        if c in "([{<":
            stack += c
        else:
            if stack[-1:] + c not in ("()", "[]", "{}", "<>"):
                return -1
            stack = stack[:-1]
        depths.append(len(stack))
    return max(depths) if stack == "" else -1
#### first_error
def NAME(s):
    def rest(t):
        while True:
            u = t
            for pair in ("()", "[]", "{}", "<>"):
                u = u.replace(pair, "")
            if u == t:
                return t
            t = u
    for i in range(len(s)):
        if any(c in ")]}>" for c in rest(s[: i + 1])):
            return i
    return -1 if rest(s) == "" else len(s)
#### first_error
def NAME(s):
    need, i = [], 0
    while i < len(s):
        if s[i] in "([{<":
            need.insert(0, ")]}>"["([{<".index(s[i])])
        elif not need:
            return i
        elif need.pop(0) != s[i]:
            return i
        i += 1
    return i if need else -1
#### insertions
def NAME(s):
    while "()" in s:
        s = s.replace("()", "")
    return len(s)
#### insertions
def NAME(s):
    low = depth = 0
    for c in s:
        depth += 1 if c == "(" else -1
        low = min(low, depth)
    return depth - 2 * low
#### longest
def NAME(s):
    best = 0
    for i in range(len(s)):
        depth = 0
        for j in range(i, len(s)):
            depth += 1 if s[j] == "(" else -1
            if depth < 0:
                break
            if depth == 0:
                best = max(best, j - i + 1)
    return best
#### longest
def NAME(s):
    ends = [0] * (len(s) + 1)
    for i in range(1, len(s) + 1):
        if s[i - 1] == ")":
            j = i - ends[i - 1] - 1
            if j > 0 and s[j - 1] == "(":
                ends[i] = ends[i - 1] + 2 + ends[j - 1]
    return max(ends)
#### with_jokers
def NAME(s):
    depths = {0}
    for c in s:
        steps = {"(": (1,), ")": (-1,), "*": (1, 0, -1)}[c]
        depths = {d + step for d in depths for step in steps if d + step >= 0}
    return 0 in depths
#### with_jokers
def NAME(s):
    opened, stars = [], []
    for i, c in enumerate(s):
        if c == "(":
            opened.append(i)
        elif c == "*":
            stars.append(i)
        elif opened:
            opened.pop()
        elif stars:
            stars.pop()
        else:
            return False
    while opened and stars and opened[-1] < stars[-1]:
        opened.pop()
        stars.pop()
    return not opened
#### score
def NAME(s):
    total = depth = 0
    for i, c in enumerate(s):
        depth += 1 if c == "(" else -1
        if s[i : i + 2] == "()":
            total += 2 ** (depth - 1)
    return total
#### score
def NAME(s):
    if not s:
        return 0
    depth = 0
    for i, c in enumerate(s):
        depth += 1 if c == "(" else -1
        if depth == 0:
            return max(1, 2 * NAME(s[1:i])) + NAME(s[i + 1 :])
#### unfold
import re
def NAME(s):
    while "(" in s:
        s = re.sub(r"(\d)\(([a-z]*)\)", lambda m: m[2] * int(m[1]), s)
    return s
#### unfold
def NAME(s):
    def read(i):
        out = ""
        while i < len(s) and s[i] != ")":
            if s[i].isdigit():
                inner, end = read(i + 2)
                out += int(s[i]) * inner
                i = end + 1
            else:
                out += s[i]
                i += 1
        return out, i
    return read(0)[0]
"""
STRINGS: dict[str, list[str]] = {}
"""By family: programs whose function is called NAME."""
for _family, _program in re.findall(r"#### (\w+)\n((?:(?!####).*\n)+)", _STRINGS):
    STRINGS.setdefault(_family, []).append(_program)
