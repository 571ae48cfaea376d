"""Test that extractors find answers, return None otherwise, and take linear time on hostile text."""

import json
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from grpo_core.extract import (
    Block,
    NoAnswer,
    fenced_code,
    find_code,
    find_json,
    find_tag,
    parse_answer_number,
    parse_decimal,
    parse_integer,
    parse_json,
    tag_counts,
    ungrouped,
    xml_tag,
)

MEGABYTE = 1_000_000


def content_of(found: Block | NoAnswer | None) -> str:
    assert isinstance(found, Block), found
    return found.content


class TestXmlTag:
    def test_the_content_is_untouched_and_the_span_covers_the_marks(self) -> None:
        text = "so <answer> 4\n</answer>."
        block = xml_tag(text, tag="answer")
        assert block is not None
        assert block.content == " 4\n"
        assert text[block.start : block.end] == "<answer> 4\n</answer>"

    @pytest.mark.parametrize("which", ["only", "last"])
    @pytest.mark.parametrize("text", ["", "<a>4", "4</a>", "</a>4<a>", "<A>4</A>", "<a >4</a>"])
    def test_without_a_complete_block_there_is_none(self, text: str, which: Any) -> None:
        assert xml_tag(text, tag="a", which=which) is None

    @pytest.mark.parametrize(
        ("text", "last"),
        [
            ("<a>1</a><a>2</a>", "2"),
            ("<a>1</a></a>", "1</a>"),
            ("<a><a>1</a>", "1"),
            ("<a>1</a><a>2", "1"),
            ("<a>1<a>2</a>", "2"),
        ],
    )
    def test_of_several_marks_only_takes_none_and_last_the_last_complete_block(
        self, text: str, last: str
    ) -> None:
        assert xml_tag(text, tag="a", which="only") is None
        assert content_of(xml_tag(text, tag="a", which="last")) == last

    def test_counts_tell_both_marks_apart(self) -> None:
        assert tag_counts("<a><a></a><b>", tag="a") == (2, 1)


class TestFencedCode:
    def test_the_last_closed_block_wins(self) -> None:
        text = "first\n```python\na = 1\n```\nthen\n```Python\nb = 2\n\nc = 3\n```\nend"
        block = fenced_code(text)
        assert block is not None
        assert (block.content, block.language) == ("b = 2\n\nc = 3", "python")
        assert text[block.start : block.end] == "```Python\nb = 2\n\nc = 3\n```"

    def test_languages_choose_among_the_blocks(self) -> None:
        text = "```json\n{}\n```\n```\nplain\n```\n```python\nx\n```"
        assert [
            b.content
            for lang in ("json", "", "python")
            if (b := fenced_code(text, languages=(lang,)))
        ] == ["{}", "plain", "x"]
        assert fenced_code(text, languages=("rust",)) is None

    @pytest.mark.parametrize(
        "text",
        [
            *("", "no code", "``\nx\n``", "inline ```x``` code", "```\nx\n`` trailing"),
            *("```python\nprint(1)\n", "```\na\n~~~"),
        ],
    )
    def test_text_without_a_closed_fence_is_none(self, text: str) -> None:
        assert fenced_code(text) is None

    def test_a_fence_without_a_language_counts_only_where_no_block_has_one_of_them(self) -> None:
        right, output = "```python\nx = 1\n```\n", "Output:\n```\nFizz\n```\n"
        for text in (right + output, output + right):
            block = fenced_code(text, languages={"python", ""})
            assert block is not None
            assert (block.content, block.language) == ("x = 1", "python")
        assert content_of(fenced_code(output, languages={"python", ""})) == "Fizz"

    def test_the_indent_of_a_fence_is_taken_from_its_lines(self) -> None:
        text = "1. The function:\n\n   ```python\n   def f():\n       return 1\n  x\n   ```\n"
        block = fenced_code(text)
        assert block is not None
        assert block.content == "def f():\n    return 1\nx"
        assert text[block.start : block.end].startswith("   ```python")

    @pytest.mark.parametrize(
        ("text", "content"),
        [
            ("```\n```", ""),
            ("```\nwhole\n```\n```\ncut off", "whole"),
            ("~~~~\n~~~\na\n~~~~", "~~~\na"),
            ("````python\n```\na\n````", "```\na"),
            ("``` {.python .numberLines}\na\n```", "a"),
            ("```{python, echo=FALSE}\na\n```", "a"),
            ("```python title='a.py'\na\n```", "a"),
            ("```python:a.py\na\n```", "a"),
            ("```\ufeffpython\n\ufeffa\n```", "a"),
            ("```python\r\na\r\n\r\nb\r\n```\r\n", "a\n\nb"),
            ("```python\ra\rb\r```\r", "a\nb"),
            ("1. ```python\nif a:\n  b\n```", "if a:\n  b"),
            ("10) ```python\n  if a:\n    b\n    ```", "if a:\n  b"),
            ("1.\t```python\n\tif a:\n\t    b\n\t```", "if a:\n    b"),
            ("\t```python\n\tif a:\n\t\tb\n\t```", "if a:\n\tb"),
            ("```python\n    a = '''\n  x'''\n```", "  a = '''\nx'''"),
        ],
    )
    def test_fences_are_read_as_models_write_them(self, text: str, content: str) -> None:
        block = find_code(text, languages=("python", ""))
        assert isinstance(block, Block)
        assert block.content == content
        assert text[block.start : block.end].strip("1.0) \t\ufeff\n")[0] in "`~"

    @pytest.mark.parametrize(
        "line", ["def f(x):", "async def f(x):", "class f:", "f = g", "f: int = g", "f=lambda x: x"]
    )
    def test_the_last_block_that_binds_the_name_counts(self, line: str) -> None:
        texts = ["f(1)", line, "def f2(): pass", "  def f(): pass", "f == 3", "x = f", "print(f)"]
        text = "\n".join(f"```python\n# {number}\n{text}\n```" for number, text in enumerate(texts))
        assert content_of(find_code(text, languages=("python",), binds="f")) == f"# 1\n{line}"

    def test_a_later_block_that_binds_the_name_counts_even_if_it_is_broken(self) -> None:
        text = "```python\ndef f(): return 1\n```\n```python\ndef f(:\n```"
        assert content_of(find_code(text, binds="f")) == "def f(:"

    def test_a_name_is_no_pattern(self) -> None:
        text = "```\na+ = 1\n```\n```\naa = 2\n```"
        assert content_of(find_code(text, binds="a+")) == "a+ = 1"


class TestJsonBlocks:
    @pytest.mark.parametrize(
        ("text", "content"),
        [
            ("[1]", "[1]"),
            ('So: {"a": "]"} it is.', '{"a": "]"}'),
            ("```json\n[1]\n```\n```json\n [2\n```", "[2"),
            ("```json\n[1]\n```\n```json\nnone\n```", "[1]"),
            ("```json\n[1]\n```\n```\n[2]\n```", "[1]"),
            ("```text\n[1]\n```\nor [2]", "[2]"),
            ("```json [3]```", "[3]"),
            ('A 5" wheel: [{"a": 1}]', '[{"a": 1}]'),
            ("cut off: [[1], [2", "[[1], [2"),
        ],
    )
    def test_it_is_chosen_by_its_marks(self, text: str, content: str) -> None:
        block = find_json(text)
        assert isinstance(block, Block)
        assert block.content == content
        assert content in text[block.start : block.end]


PYTHON = ("python", "py")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "the text is empty"),
            ("4", "there is none"),
            ("<a>4", "it is never closed"),
            ("</a><a>", "</a> precedes <a>"),
            ("<a>1</a><a>2</a>", "<a> occurs 2 times and </a> 2 times"),
            ("1</a>", "<a> occurs 0 times and </a> 1 times"),
        ],
    )
    def test_of_a_tag(self, text: str, reason: str) -> None:
        refusal = find_tag(text, tag="a")
        assert isinstance(refusal, NoAnswer)
        assert refusal.reason == f"looked for exactly one block <a>...</a>: {reason}"

    @pytest.mark.parametrize(
        ("languages", "text", "reason"),
        [
            (PYTHON, " ", "labelled py or python: found none, the text is empty"),
            (PYTHON, "x", "labelled py or python: found none"),
            (PYTHON, "```py\nx", "found one that is never closed"),
            (PYTHON, "```json\nx\n```\n```\nx\n```", "found only blocks labelled 'json', ''"),
            (None, "", "the text is empty"),
            (None, "true", "no list and no object"),
            (None, "[1] or [2]", "several texts stand in brackets"),
            (None, "```json\n3\n```\n[1]", "no block between code fences begins with"),
            (None, "```json\n[1]", "one that is never closed"),
        ],
    )
    def test_of_a_fence_or_of_json_without_languages(
        self, languages: tuple[str, ...] | None, text: str, reason: str
    ) -> None:
        refusal = find_code(text, languages=languages) if languages else find_json(text)
        assert isinstance(refusal, NoAnswer)
        assert reason in refusal.reason
        assert len(refusal.reason) < 300


class TestAnswerNumbers:
    @pytest.mark.parametrize(
        "text",
        [
            *("18", " 18\n", "+18", "018", "18.0", "18.", "$18", "-$18", "$-18", "\u221218"),
            *("x = 18", "x=18", "Total cost = $18", "**18**", "$18$", "$$18$$", r"\(18\)"),
            *(r"\boxed{18}", r"$\boxed{18}$", r"\boxed{18\text{ dollars}}", "**x = 18 dollars.**"),
            *("18%", r"18\%", "18\xa0%", "18\u202fkm", "18 hours.", "18kg", "**18** miles"),
        ],
    )
    def test_forms_in_which_models_write_a_number_are_read(self, text: str) -> None:
        number = parse_answer_number(text)
        assert number is not None
        assert abs(number) == 18
        assert (number < 0) == any(sign in text for sign in ("-", "\u2212"))

    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("1,080", "1080"),
            ("1 080", "1080"),
            ("12\xa0345\xa0678.5", "12345678.5"),
            ("1{,}080", "1080"),
            ("$1,080.50", "1080.5"),
            (".5", "0.5"),
        ],
    )
    def test_digits_are_grouped_in_threes(self, text: str, number: str) -> None:
        assert parse_answer_number(text) == Fraction(number)

    @pytest.mark.parametrize(
        "text",
        [
            *("", "eighteen", "18 or 19", "18 19", "1/2", r"\frac{1}{2}", "17 = 18", "1,8", "1 08"),
            *("18 million", "18th", "18k", "1e5", "0x12", "--18", "-$-18", "18..", "3.5.1"),
            *(
                "1_000",
                "２",
                "²",
                "nan",
                "inf",
                "**18",
                "$5 or $6$",
                "18 dollars and 50 cents",
                "18%%",
            ),
            *("x = y = 18", "not 17, 18", "**17** **18**", r"\boxed{17}\boxed{18}", "1" * 31),
            *("18" + " " * 200 + "x", "18 kg}"),
        ],
    )
    def test_everything_else_is_refused(self, text: str) -> None:
        assert parse_answer_number(text) is None

    def test_fractions_are_numbers_only_where_they_are_asked_for(self) -> None:
        for text in ("3/4", "$3/4$", r"\frac{3}{4}", "6/8", "+3 / 4"):
            assert parse_answer_number(text, fractions=True) == Fraction(3, 4)
        for text in ("3/0", "3/4/5", "3/4 or 1", "/4", "1/" + "1" * 40):
            assert parse_answer_number(text, fractions=True) is None


class TestIntegers:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("0", 0), ("-3", -3), (" 12\n", 12), ("007", 7), ("-0", 0), ("9" * 30, 10**30 - 1)],
    )
    def test_plain_integers_are_read(self, text: str, value: int) -> None:
        assert parse_integer(text) == value

    @pytest.mark.parametrize(
        "text",
        [
            *(*" -²٣３", "", "--1", "+1", "- 1", "1 2", "1.0", "1e3", "1_000", "1,000", "0x10"),
            *("NaN", "1\x00", "\u00a01", "1" * 31),
        ],
    )
    def test_everything_else_is_none(self, text: str) -> None:
        assert parse_integer(text) is None

    def test_the_digit_cap_is_the_callers(self) -> None:
        assert parse_integer("-123", max_digits=3) == -123
        assert parse_integer("1234", max_digits=3) is None


class TestDecimals:
    @pytest.mark.parametrize("text", ["0", "-3", "18.0", "0.1", "-0.50", "1234567890.0123456789"])
    def test_plain_numbers_are_read_exactly(self, text: str) -> None:
        assert parse_decimal(f" {text}\n") == Decimal(text)

    @pytest.mark.parametrize(
        "text",
        ["", ".", "-", "1.", ".5", "1.2.3", "1e999", "NaN", "-inf", "1_0", "１.0", "1,5", "+1"],
    )
    def test_everything_else_is_none(self, text: str) -> None:
        assert parse_decimal(text) is None

    def test_the_digit_cap_counts_both_sides_of_the_point(self) -> None:
        assert parse_decimal("12.34", max_digits=4) == Decimal("12.34")
        assert parse_decimal("12.345", max_digits=4) is None


class TestThousands:
    @pytest.mark.parametrize("text", ["1,080", "-12,345,678", "999,000.25", "70,000"])
    def test_the_commas_between_thousands_are_taken_out(self, text: str) -> None:
        assert ungrouped(text) == "".join(char for char in text if char != ",")

    @pytest.mark.parametrize(
        "text",
        ["", "18", "1,8", ",,1,2,", "1,0800", "1080,000", "1,080,", ",080", "1,08٣", "a,bcd"],
    )
    def test_every_other_text_stays_as_it_is(self, text: str) -> None:
        assert ungrouped(text) == text


class TestJson:
    @pytest.mark.parametrize(
        "value",
        [
            *(None, True, 0, -1.5, 'a ] } [ { \\ " text', []),
            *({"a": [1, {"b": None}]}, "\U0001f600", [{"a": 1}, {"a": 2}]),
        ],
    )
    def test_a_json_value_is_read(self, value: object) -> None:
        parsed = parse_json(f" {json.dumps(value)}\n")
        assert parsed is not None
        assert parsed.value == value

    @pytest.mark.parametrize(
        "text",
        [
            *("", "{", "[1,]", "{'a': 1}", "1 2", "nul", '{"a": 1} x', "\ufeff1"),
            *('"\x00"', '"\\ud8"'),
            *("NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "[-1e999]"),
            *('"\\ud800"', '["a", {"b": "\\udc00"}]', '{"\\ud800": 1}', '"\\udc00\\ud800"'),
            *('"\ud800"', '{"a": 1, "a": 1}', '[{"b": {"a": 1, "a": 2}}]'),
        ],
    )
    def test_what_is_no_json_or_not_finite_or_half_a_pair_or_ambiguous_is_none(
        self, text: str
    ) -> None:
        assert parse_json(text) is None

    def test_depth_is_bounded_exactly_and_ignores_brackets_in_strings(self) -> None:
        assert parse_json("[" * 3 + "]" * 3, max_depth=3) is not None
        assert parse_json("[" * 4 + "]" * 4, max_depth=3) is None
        assert parse_json('["[[[[", "\\"[[[["]', max_depth=1) is not None

    def test_size_and_digits_are_bounded(self) -> None:
        assert parse_json('"' + "x" * 8 + '"', max_chars=10) is not None
        assert parse_json('"' + "x" * 9 + '"', max_chars=10) is None
        assert parse_json("1" * 10**5) is None
        assert parse_json("0." + "1" * 10**4) is None


HOSTILE = {
    "opening tags": "<answer>" * (MEGABYTE // 8),
    "both tags": "<answer></answer>" * (MEGABYTE // 17),
    "fences": "```\n" * (MEGABYTE // 4),
    "backticks": "`" * MEGABYTE,
    "lines": "\n" * MEGABYTE,
    "spaces": " " * MEGABYTE,
    "digits": "1" * MEGABYTE,
    "fraction": "0." + "1" * MEGABYTE,
    "brackets": "[" * MEGABYTE,
    "quotes": '"' * MEGABYTE,
    "escaped quotes": '["' + '\\"' * (MEGABYTE // 2),
    "numbers": "[" + "1," * (MEGABYTE // 2) + "1]",
    "thousands": "1" + ",000" * (MEGABYTE // 4) + "x",
    "list markers": "1. ```\n" * (MEGABYTE // 7),
    "open fence": "```\n" + "x = 1\n" * (MEGABYTE // 6),
    "indented fence": " " * (MEGABYTE // 2) + "```\n" + " " * (MEGABYTE // 2) + "\n```",
    "blocks": "```\nf = 1\n```\n" * (MEGABYTE // 14),
    "annotations": "```\n" + "f" + ":" * MEGABYTE + "\n```",
}
EXTRACTORS: dict[str, Callable[[str], object]] = {
    "only tag": lambda text: xml_tag(text, tag="answer"),
    "last tag": lambda text: xml_tag(text, tag="answer", which="last"),
    "counts": lambda text: tag_counts(text, tag="answer"),
    "code": fenced_code,
    "code that binds a name": lambda text: find_code(text, binds="f"),
    "json in a text": find_json,
    "number of an answer": parse_answer_number,
    "code of a language": lambda text: fenced_code(text, languages=("python",)),
    "integer": parse_integer,
    "decimal": parse_decimal,
    "thousands": ungrouped,
    "json": parse_json,
    "json without caps": lambda text: parse_json(text, max_chars=2 * MEGABYTE),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("text", HOSTILE)
def test_a_megabyte_of_hostile_text_neither_raises_nor_takes_long(
    extractor: str, text: str
) -> None:
    started = time.process_time()
    EXTRACTORS[extractor](HOSTILE[text])
    assert time.process_time() - started < 2.0  # a quadratic extractor takes minutes
