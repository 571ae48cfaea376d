"""The forms in which models write answers, and what each bundled environment makes of them.

`READ` says that the answer is read and judged as right. Any other outcome is a pattern of the note
of a verdict with the lowest reward. `test_answer_forms.py` holds every environment to this table,
and the page of the environments shows it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

READ = "read"
WRONG = "nothing, it is read as wrong"
"""The answer is read, and is not right."""
WHOLE = "WHOLE ANSWER"
"""Stands for a whole right answer, with its marks."""
TAGGED = ("arithmetic", "gsm8k", "dataset", "reasoning-gym")
NUMBERS = ("arithmetic", "gsm8k", "dataset")
PROGRAMS = ("fizzbuzz", "parentheses")
FENCED = (*PROGRAMS, "sql", "terminal")
JSON = ("besiege", "fillin")
WORDS = ("wordle",)
ALL = (*TAGGED, *FENCED, *JSON, *WORDS)


@dataclass(frozen=True, slots=True)
class Given:
    """Holds the pieces of which an answer in some form is made."""

    right: str
    """The content of a right answer: a number, a program, a command or JSON."""
    wrong: str
    """The content of a wrong one of the same kind."""
    broken: str
    """Content that is not of the kind at all."""
    usage: str
    """A piece of the kind that is no answer: it uses what the right program defines."""
    label: str
    """The label of a fence around it."""


@dataclass(frozen=True, slots=True)
class Form:
    """Describes one form of answers."""

    name: str
    write: Callable[[Given], str]
    """Returns the text of an answer in this form."""
    environments: tuple[str, ...]
    """The environments that the form is tried with."""
    outcome: str = READ
    """What they make of it."""
    others: Mapping[str, str] = field(default_factory=dict)
    """What some of them make of it instead, by the environment's name."""

    def outcome_of(self, environment: str) -> str:
        """Return what an environment makes of it."""
        return self.others.get(environment, self.outcome)


def _tag(content: str) -> str:
    return f"<answer>{content}</answer>"


def _fence(given: Given, content: str, marks: str = "```", label: str | None = None) -> str:
    label = given.label if label is None else label
    return f"{marks}{label}\n{content}\n{marks}"


def _indent(text: str, by: str) -> str:
    return "\n".join(by + line for line in text.split("\n"))


def _two(given: Given, first: str, second: str) -> str:
    return f"So:\n{_fence(given, first)}\nOr better:\n{_fence(given, second)}"


def _crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def _forms(
    environments: tuple[str, ...],
    writers: Mapping[str, Callable[[Given], str]],
    outcomes: Mapping[str, str] = {},
) -> tuple[Form, ...]:
    """Return forms by their names, which are read where no other outcome is given."""
    return tuple(
        Form(name, write, environments, outcomes.get(name, READ)) for name, write in writers.items()
    )


_TEXT_FOLLOWS = {"arithmetic": "text follows the answer"}
_NO_NUMBER = {"arithmetic": "not a whole number"}
_ONE_TAG = "exactly one block <answer>"
_ONE_FENCE = "looked for a block between code fences"
_BAD_JSON = {"besiege": "not valid JSON", "fillin": "not a JSON array"}
_THOUGHTS = "only thoughts"

TAG_FORMS = (
    Form("the tags alone", lambda g: _tag(g.right), TAGGED),
    Form("text before", lambda g: f"That makes it.\n{_tag(g.right)}", TAGGED),
    Form("text behind", lambda g: f"{_tag(g.right)}\nDone.", TAGGED, others=_TEXT_FOLLOWS),
    Form("lines and spaces inside", lambda g: _tag(f"\n  {g.right}\t\n"), TAGGED),
    Form("lines that end with CRLF", lambda g: "So:\r\n" + _tag(f"\r\n{g.right}\r\n"), TAGGED),
    Form("a byte order mark in front", lambda g: f"\ufeff{_tag(g.right)}", TAGGED),
    Form(
        "a fence around the tags",
        lambda g: f"```\n{_tag(g.right)}\n```",
        TAGGED,
        others=_TEXT_FOLLOWS,
    ),
    Form("two answers", lambda g: _tag(g.wrong) + _tag(g.right), TAGGED, _ONE_TAG),
    Form("the same answer twice", lambda g: _tag(g.right) * 2, TAGGED, _ONE_TAG),
    Form("nested tags", lambda g: _tag(_tag(g.right)), TAGGED, _ONE_TAG),
    Form("a tag that is never closed", lambda g: f"<answer>{g.right}", TAGGED, "never closed"),
    Form("a tag in capitals", lambda g: f"<Answer>{g.right}</Answer>", TAGGED, _ONE_TAG),
    Form(
        "a tag with an attribute", lambda g: f'<answer n="1">{g.right}</answer>', TAGGED, _ONE_TAG
    ),
    Form("no tag", lambda g: f"The answer is {g.right}.", TAGGED, "there is none"),
    Form(
        "thoughts that mention the tag",
        lambda g: f"<think>I write <answer>...</answer>.</think>\n{_tag(g.right)}",
        TAGGED,
    ),
    Form(
        "a second answer behind later thoughts",
        lambda g: f"<think>a</think>{_tag(g.right)}<think>b</think>{_tag(g.wrong)}",
        TAGGED,
        _ONE_TAG,
    ),
)
NUMBER_FORMS = tuple(
    Form(f"the number as {name}", lambda g, w=wrap: _tag(w(g.right)), NUMBERS, others=_NO_NUMBER)
    for name, wrap in {
        "`**N**`": lambda n: f"**{n}**",
        "`$N$`": lambda n: f"${n}$",
        "`$N`": lambda n: f"${n}",
        r"`$\boxed{N}$`": lambda n: rf"$\boxed{{{n}}}$",
        "`x = N`": lambda n: f"x = {n}",
        "`N.`": lambda n: f"{n}.",
        "`N dollars`": lambda n: f"{n} dollars",
        "`N%`": lambda n: f"{n}%",
        "`N.00`": lambda n: f"{n}.00",
        "`+N`": lambda n: f"+{n}",
    }.items()
) + tuple(
    Form(f"the number as {name}", lambda g, w=wrap: _tag(w(g)), NUMBERS, "number:")
    for name, wrap in {
        "`N or M`": lambda g: f"{g.right} or {g.wrong}",
        "`N/1`": lambda g: f"{g.right}/1",
        "`N million`": lambda g: f"{g.right} million",
        "`N, M`": lambda g: f"{g.right}, {g.wrong}",
        "`**N** **M**`": lambda g: f"**{g.right}** **{g.wrong}**",
        "`Ne0`": lambda g: f"{g.right}e0",
    }.items()
)
FENCE_FORMS = (
    *_forms(
        FENCED,
        {
            "a labelled fence": lambda g: _fence(g, g.right),
            "a plain fence": lambda g: _fence(g, g.right, label=""),
            "a label in capitals": lambda g: _fence(g, g.right, label=g.label.upper()),
            "`{.label}`": lambda g: _fence(g, g.right, label=f"{{.{g.label} .numberLines}}"),
            "a label with a title": lambda g: _fence(g, g.right, label=f"{g.label} title=a"),
            "`~~~`": lambda g: _fence(g, g.right, "~~~"),
            "four ticks": lambda g: _fence(g, g.right, "````"),
            "indented in a list": lambda g: f"1. This:\n\n{_indent(_fence(g, g.right), '   ')}",
            "indented by tabs": lambda g: "* This:\n" + _indent(_fence(g, g.right), "\t"),
            "a fence behind a list marker": lambda g: (
                "1. " + _indent(_fence(g, g.right), "   ").lstrip()
            ),
            "a byte order mark behind the fence": lambda g: _fence(g, f"\ufeff{g.right}"),
            "lines that end with CRLF": lambda g: _crlf(f"So:\n{_fence(g, g.right)}\n"),
            "its output in a plain fence behind it": lambda g: (
                f"{_fence(g, g.right)}\nOutput:\n{_fence(g, g.wrong, label='')}"
            ),
            "its output labelled text behind it": lambda g: (
                f"{_fence(g, g.right)}\nOutput:\n{_fence(g, g.wrong, label='text')}"
            ),
        },
    ),
    Form(
        "an example of its use behind it",
        lambda g: f"{_fence(g, g.right)}\nFor example:\n{_fence(g, g.usage)}",
        PROGRAMS,
    ),
    *_forms(
        FENCED,
        {
            "an earlier draft before it": lambda g: _two(g, g.wrong, g.right),
            "a right one, then a wrong one": lambda g: _two(g, g.right, g.wrong),
            "a right one, then one with a syntax error": lambda g: _two(g, g.right, g.broken),
            "a fence that is never closed": lambda g: f"```{g.label}\n{g.right}",
            "no fence": lambda g: g.right,
            "ticks inside a line": lambda g: f"Use ```{g.usage}```.",
            "another language": lambda g: _fence(g, g.right, label="rust"),
            "thoughts that mention a fence": lambda g: (
                f"<think>In ```{g.label}\nhere</think>\n{_fence(g, g.right)}"
            ),
        },
        {
            "a right one, then a wrong one": WRONG,
            "a right one, then one with a syntax error": WRONG,
            "a fence that is never closed": "is never",
            "no fence": _ONE_FENCE,
            "ticks inside a line": _ONE_FENCE,
            "another language": "only blocks labelled 'rust'",
        },
    ),
)
JSON_FORMS = (
    *_forms(
        JSON,
        {
            "the JSON alone": lambda g: g.right,
            "the JSON in a sentence": lambda g: f"Here it is: {g.right} I hope it works.",
            "a fence labelled json": lambda g: f"So:\n{_fence(g, g.right)}",
            "a plain fence": lambda g: f"So:\n{_fence(g, g.right, label='')}",
            "a label in capitals": lambda g: f"So:\n{_fence(g, g.right, label='JSON')}",
            "`~~~`": lambda g: f"So:\n{_fence(g, g.right, '~~~')}",
            "lines that end with CRLF": lambda g: _crlf(f"So:\n{_fence(g, g.right)}"),
            "a byte order mark behind the fence": lambda g: (
                f"So:\n{_fence(g, chr(0xFEFF) + g.right)}"
            ),
            "indented in a list": lambda g: f"1. This:\n\n{_indent(_fence(g, g.right), '   ')}",
            "a list of another label before it": lambda g: (
                f"{_fence(g, '[1, 2]', label='necessary_blocks')}\n{_fence(g, g.right)}"
            ),
            "a plain fence behind it": lambda g: (
                f"So:\n{_fence(g, g.right)}\nIts size:\n{_fence(g, '[3, 4]', label='')}"
            ),
            "a labelled text behind it that is not JSON": lambda g: _two(g, g.right, "none"),
        },
    ),
    Form(
        "a valid one, then an invalid one",
        lambda g: _two(g, g.right, g.broken),
        JSON,
        others=_BAD_JSON,
    ),
    *_forms(
        JSON,
        {
            "an invalid one, then a valid one": lambda g: _two(g, g.broken, g.right),
            "two in a sentence": lambda g: f"Here: {g.broken} or {g.right}",
            "a fence that is never closed": lambda g: f"So:\n```json\n{g.right}",
            "no JSON": lambda g: "A machine with wheels.",
        },
        {
            "two in a sentence": "several texts stand in brackets",
            "a fence that is never closed": "never closed",
            "no JSON": "no list and no object",
        },
    ),
)
WORD_FORMS = (
    Form("the word alone", lambda g: g.right, WORDS),
    Form("lines and spaces around it", lambda g: f"\n {g.right}\r\n", WORDS),
    Form("the word in capitals", lambda g: g.right.upper(), WORDS, "no guess"),
    Form("the word in a sentence", lambda g: f"I guess {g.right}.", WORDS, "no guess"),
    Form("two words", lambda g: f"{g.right} {g.wrong}", WORDS, "no guess"),
    Form("the word between tags", lambda g: _tag(g.right), WORDS, "no guess"),
)
THOUGHT_FORMS = (
    Form("thoughts before it", lambda g: f"<think>Hm.</think>\n\n{WHOLE}", ALL),
    Form(
        "it stands in thoughts only",
        lambda g: f"<think>{WHOLE}</think>\nDone.",
        ALL,
        "looked for",
        others={"wordle": "no guess"},
    ),
    Form(
        "thoughts that are never closed",
        lambda g: f"<think>{WHOLE}",
        ALL,
        _THOUGHTS,
        {"wordle": "no guess"},
    ),
    Form("nothing", lambda g: "", ALL, "the text is empty", {"wordle": "no guess"}),
)
FORMS = (*TAG_FORMS, *NUMBER_FORMS, *FENCE_FORMS, *JSON_FORMS, *WORD_FORMS, *THOUGHT_FORMS)
