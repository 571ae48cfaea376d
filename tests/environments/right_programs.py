"""Right programs for fizzbuzz and parentheses, each written in another way than the references."""

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
    return [STRINGS[problem.family].replace("NAME", problem.entry)]


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
#### insertions
def NAME(s):
    while "()" in s:
        s = s.replace("()", "")
    return len(s)
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
#### with_jokers
def NAME(s):
    depths = {0}
    for c in s:
        steps = {"(": (1,), ")": (-1,), "*": (1, 0, -1)}[c]
        depths = {d + step for d in depths for step in steps if d + step >= 0}
    return 0 in depths
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
"""
STRINGS: dict[str, str] = dict(re.findall(r"#### (\w+)\n((?:(?!####).*\n)+)", _STRINGS))
"""By family: a program whose function is called NAME, and which works unlike the reference."""
