"""Small changes of the reference programs, each of which makes them wrong."""

from __future__ import annotations

from collections.abc import Mapping

Edit = tuple[str, str]
"""A part of a function's source, and what stands there by mistake."""

_MISMATCH = "(not open_ones or open_ones.pop() != closes[c])"
_STACK: Mapping[str, Edit] = {
    "kinds ignored": (_MISMATCH, "(not open_ones or not open_ones.pop())"),
    "a closing bracket too many is fine": (
        _MISMATCH,
        "(open_ones and open_ones.pop() != closes[c])",
    ),
    "a wrong kind around everything is fine": (
        _MISMATCH,
        "(not open_ones or (open_ones.pop() != closes[c] and open_ones))",
    ),
    "the first open bracket is closed first": ("open_ones.pop()", "open_ones.pop(0)"),
    "the innermost bracket stays open": ("open_ones.pop()", "open_ones[-1]"),
    "kinds the same": ("open_ones.pop() != closes[c]", "open_ones.pop() == closes[c]"),
}
"""Mistakes about the stack that several families share."""
EDITS: Mapping[str, Mapping[str, Edit]] = {
    "balanced": {
        **_STACK,
        "what stays open is fine": ("return not open_ones", "return True"),
        "one may stay open": ("return not open_ones", "return len(open_ones) < 2"),
        "inverted": ("return not open_ones", "return bool(open_ones)"),
        "wrong in the middle is fine": ("return False", "break"),
        "the end decides": ("return False", "return not open_ones"),
        "nothing is not balanced": ("return not open_ones", "return bool(s) and not open_ones"),
        "other characters are wrong": (
            f"elif c in closes and {_MISMATCH}",
            "elif not open_ones or open_ones.pop() != closes.get(c)",
        ),
        "the first balanced part decides": (
            "            return False\n",
            "            return False\n        elif not open_ones:\n            return True\n",
        ),
        "the last character is not looked at": ("for c in s:", "for c in s[:-1]:"),
        "the first character is not looked at": ("for c in s:", "for c in s[1:]:"),
    },
    "deepest": {
        **_STACK,
        "what stays open is fine": ("-1 if open_ones else most", "most"),
        "wrong in the middle gives the depth so far": ("return -1\n", "return most\n"),
        "wrong in the middle is fine": ("return -1\n", "open_ones.clear()\n"),
        "0 instead of -1": ("return -1 if", "return 0 if"),
        "0 instead of -1 in the middle": ("return -1\n", "return 0\n"),
        "the last depth": ("max(most, len(open_ones))", "len(open_ones)"),
        "too deep by 1": ("open_ones else most", "open_ones else most + 1"),
        "not deep enough by 1": ("open_ones else most", "open_ones else max(most - 1, 0)"),
        "nothing is 1 deep": ("most = 0", "most = 1"),
        "nothing is not balanced": ("-1 if open_ones else most", "-1 if open_ones else most or -1"),
        "the number of pairs": ("max(most, len(open_ones))", "most + 1"),
        "at most three deep": ("max(most, len(open_ones))", "min(3, max(most, len(open_ones)))"),
        "at most five deep": ("max(most, len(open_ones))", "min(5, max(most, len(open_ones)))"),
        "the depth of one kind": ("len(open_ones))", "open_ones.count(c))"),
        "the first character is not looked at": ("for c in s:", "for c in s[1:]:"),
        "the last character is not looked at": ("for c in s:", "for c in s[:-1]:"),
    },
    "first_error": {
        **_STACK,
        "too far by 1": ("return index", "return index + 1"),
        "too early by 1": ("return index", "return index - 1"),
        "what stays open is fine": ("len(s) if open_ones else -1", "-1"),
        "the last place": ("len(s) if open_ones", "len(s) - 1 if open_ones"),
        "where the string ends": ("len(s) if open_ones else -1", "len(s)"),
        "0 instead of -1": ("open_ones else -1", "open_ones else 0"),
        "the length instead of -1": ("open_ones else -1", "open_ones else len(s)"),
        "the bracket instead of its place": ("return index", "return c"),
        "the place among closing brackets": (
            "return index",
            "return sum(d in closes for d in s[:index])",
        ),
        "how many stay open": ("len(s) if open_ones", "len(open_ones) if open_ones"),
        "where it opened": ("len(s) if open_ones", "s.rindex(open_ones[-1]) if open_ones"),
        "where the first opened": ("len(s) if open_ones", "s.index(open_ones[0]) if open_ones"),
        "counted from 1": ("enumerate(s)", "enumerate(s, 1)"),
        "counted from behind": ("return index", "return len(s) - index"),
        "nothing has an error at 0": ("return len(s)", "return 0 if not s else len(s)"),
        "any closing bracket": (_MISMATCH, "True"),
    },
    "insertions": {
        "only those that open": ("missing + open_now", "missing"),
        "only those that close": ("missing + open_now", "open_now"),
        "the difference": ("missing + open_now", "abs(missing - open_now)"),
        "the larger number": ("missing + open_now", "max(missing, open_now)"),
        "at most one that opens": ("missing += 1", "missing = 1"),
        "one closes all": ("open_now -= 1", "open_now = 0"),
        "one too many": ("missing + open_now", "missing + open_now + 1"),
        "one too many unless balanced": ("missing + open_now", "(missing + open_now) * 2"),
        "whether it is balanced": ("missing + open_now", "int(missing + open_now > 0)"),
        "at most three": ("missing + open_now", "min(3, missing + open_now)"),
        "the sign of the difference": ("missing + open_now", "missing - open_now"),
        "pairs": ("missing + open_now", "(missing + open_now) // 2"),
        "pairs, rounded up": ("missing + open_now", "(missing + open_now + 1) // 2"),
        "a missing one opens": ("missing += 1", "missing += 1; open_now += 1"),
        "never closed": ("open_now -= 1", "pass"),
        "the last character is not looked at": ("for c in s:", "for c in s[:-1]:"),
        "the first character is not looked at": ("for c in s:", "for c in s[1:]:"),
    },
    "longest": {
        "counted from 0": ("= [-1], 0", "= [0], 0"),
        "too long by 1": ("index - starts[-1])", "index - starts[-1] + 1)"),
        "the last part": ("max(best, index - starts[-1])", "index - starts[-1]"),
        "the number of open brackets": ("index - starts[-1])", "len(starts))"),
        "a new start is forgotten": (
            "            else:\n                starts.append(index)",
            "            else:\n                starts.append(-1)",
        ),
        "a new start is too early": (
            "            else:\n                starts.append(index)",
            "            else:\n                starts.append(index - 1)",
        ),
        "pairs instead of characters": ("return best", "return best // 2"),
        "at most ten": ("return best", "return min(best, 10)"),
        "nothing is 2 long": ("= [-1], 0", "= [-1], 2"),
        "the last character is not looked at": ("enumerate(s)", "enumerate(s[:-1])"),
        "stops at the first error": (
            "            else:\n                starts.append(index)",
            "            else:\n                break",
        ),
    },
    "with_jokers": {
        "a joker always closes": ('most += -1 if c == ")" else 1', 'most += 1 if c == "(" else -1'),
        "a joker never opens": ('-1 if c == ")" else 1', '{"(": 1, ")": -1}.get(c, 0)'),
        "a joker never closes": ('1 if c == "(" else -1', '{"(": 1, ")": -1}.get(c, 0)'),
        "a joker is never nothing": (
            "return fewest == 0",
            "return fewest == 0 and len(s) % 2 == 0",
        ),
        "jokers before what they close": ("        fewest = max(fewest, 0)\n", ""),
        "jokers before what they close, in part": (
            "fewest = max(fewest, 0)",
            "fewest = max(fewest, -1)",
        ),
        "what stays open is fine": ("return fewest == 0", "return True"),
        "one may stay open": ("return fewest == 0", "return fewest <= 1"),
        "all must stay nothing": ("return fewest == 0", "return most == 0"),
        "too many closing ones are fine": ("        if most < 0:\n            return False\n", ""),
        "a joker opens twice": (
            'most += -1 if c == ")" else 1',
            'most += {"(": 1, ")": -1}.get(c, 2)',
        ),
        "a joker closes twice": (
            'fewest += 1 if c == "(" else -1',
            'fewest += {"(": 1, ")": -1}.get(c, -2)',
        ),
        "an opening one opens twice": (
            'most += -1 if c == ")" else 1',
            'most += {"(": 2, ")": -1}.get(c, 1)',
        ),
        "a closing one too many at the end is fine": (
            '        most += -1 if c == ")" else 1\n'
            "        if most < 0:\n            return False\n",
            "        if most < 0:\n            return False\n"
            '        most += -1 if c == ")" else 1\n',
        ),
        "one closing one too many is fine": ("most < 0", "most < -1"),
        "too many closing ones are right": ("return False", "return True"),
        "the first balanced part decides": ("most < 0", "most <= 0"),
        "inverted": ("return fewest == 0", "return fewest != 0"),
        "nothing is not balanced": ("return fewest == 0", "return bool(s) and fewest == 0"),
        "the last character is not looked at": ("for c in s:", "for c in s[:-1]:"),
        "the first character is not looked at": ("for c in s:", "for c in s[1:]:"),
    },
    "score": {
        "no doubling": ("2 * inner", "inner"),
        "1 more instead of twice": ("2 * inner if", "1 + inner if"),
        "2 more instead of twice": ("2 * inner if", "2 + inner if"),
        "three times": ("2 * inner", "3 * inner"),
        "squared": ("2 * inner", "inner * inner"),
        "2 for a pair": ("if inner else 1", "if inner else 2"),
        "nothing for a pair": ("if inner else 1", "if inner else 0"),
        "twice and 1": ("2 * inner if", "2 * inner + 1 if"),
        "only the last one side by side": (
            "+= 2 * inner if inner else 1",
            "= 2 * inner if inner else 1",
        ),
        "the larger one side by side": (
            "worth[-1] += 2 * inner if inner else 1",
            "worth[-1] = max(worth[-1], 2 * inner if inner else 1)",
        ),
        "one too many": ("worth[0]", "worth[-1] + 1"),
        "at most 16": ("return worth[0]", "return min(worth[0], 16)"),
        "at most 50": ("return worth[0]", "return min(worth[0], 50)"),
        "doubled once": ("2 * inner if inner else 1", "2 * inner if inner == 1 else inner or 1"),
    },
    "unfold": {
        "never repeated": ("inner * times.pop()", "inner * min(1, times.pop())"),
        "repeated once too often": ("inner * times.pop()", "inner * (times.pop() + 1)"),
        "repeated once too seldom": ("inner * times.pop()", "inner * (times.pop() - 1)"),
        "always twice": ("inner * times.pop()", "inner * min(2, times.pop() * 2)"),
        "at most three times": ("inner * times.pop()", "inner * min(3, times.pop())"),
        "at least twice": ("inner * times.pop()", "inner * max(2, times.pop())"),
        "the first number first": ("times.pop()", "times.pop(0)"),
        "what stood before is lost": ("parts[-1] += inner", "parts[-1] = inner"),
        "what stood before comes last": (
            "parts[-1] += inner * times.pop()",
            "parts[-1] = inner * times.pop() + parts[-1]",
        ),
        "only the last letter": ("parts[-1] += c", "parts[-1] = c"),
        "letters in reverse": ("parts[-1] += c", "parts[-1] = c + parts[-1]"),
        "digits stay": ("elif not c.isdigit()", "else"),
        "each letter repeated": (
            "parts[-1] += inner * times.pop()",
            "count = times.pop(); parts[-1] += ''.join(d * count for d in inner)",
        ),
        "letters behind a bracket are lost": (
            "elif not c.isdigit()",
            "elif not c.isdigit() and s[index - 1:index] != ')'",
        ),
        "letters at the start are lost": ("elif not c.isdigit()", "elif not c.isdigit() and times"),
        "only the outer ones are repeated": (
            "inner * times.pop()",
            "inner * (times.pop() if len(times) == 1 else times.pop() ** 0)",
        ),
        "at most two inside each other": (
            "inner * times.pop()",
            "inner * (times.pop() if len(times) < 3 else times.pop() ** 0)",
        ),
        "numbers add up": ("inner * times.pop()", "inner * (times.pop() + len(times))"),
        "the last character is not looked at": (
            "return parts[0]",
            "return parts[0] if s[-1:] == ')' else parts[0][:-1]",
        ),
    },
}
"""By family: changes of the reference, by the name of the mistake they make."""
ABOUT_KINDS = frozenset(
    {
        *("kinds ignored", "the first open bracket is closed first"),
        "a wrong kind around everything is fine",
    }
)
"""Mistakes that show only where there are several kinds of brackets."""
ABOUT_OTHERS = frozenset({"other characters are wrong"})
"""Mistakes that show only where there are characters that are not brackets."""
