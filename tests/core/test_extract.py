"""Test that extractors find answers, return None otherwise, and take linear time on hostile text."""

import json
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from grpo_core.extract import (
    fenced_code,
    parse_decimal,
    parse_integer,
    parse_json,
    tag_counts,
    ungrouped,
    xml_tag,
)

MEGABYTE = 1_000_000


class TestXmlTag:
    def test_the_content_is_untouched_and_the_span_covers_the_marks(self) -> None:
        text = "so <answer> 4\n</answer>."
        block = xml_tag(text, tag="answer")
        assert block is not None
        assert block.content == " 4\n"
        assert text[block.start : block.end] == "<answer> 4\n</answer>"

    @pytest.mark.parametrize("which", ["only", "last"])
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "4",
            "<answer>4",
            "4</answer>",
            "</answer>4<answer>",
            "<Answer>4</Answer>",
            "<answer >4</answer>",
        ],
    )
    def test_without_a_complete_block_there_is_none(self, text: str, which: Any) -> None:
        assert xml_tag(text, tag="answer", which=which) is None

    @pytest.mark.parametrize(
        "text",
        ["<a>1</a><a>2</a>", "<a>1</a></a>", "<a><a>1</a>", "<a><a>1</a></a>"],
        ids=["two", "close", "open", "nested"],
    )
    def test_only_refuses_any_second_mark(self, text: str) -> None:
        assert xml_tag(text, tag="a", which="only") is None

    @pytest.mark.parametrize(
        ("text", "content"),
        [
            ("<a>1</a><a>2</a>", "2"),
            ("<a>1</a><a>2", "1"),
            ("<a>1<a>2</a>", "2"),
            ("<a>1</a> <a>", "1"),
            ("<a></a>", ""),
        ],
    )
    def test_last_takes_the_last_complete_block_from_its_innermost_opening(
        self, text: str, content: str
    ) -> None:
        block = xml_tag(text, tag="a", which="last")
        assert block is not None
        assert block.content == content

    def test_counts_tell_both_marks_apart(self) -> None:
        assert tag_counts("<a><a></a><b>", tag="a") == (2, 1)


class TestFencedCode:
    def test_the_last_closed_block_wins(self) -> None:
        text = "first\n```python\na = 1\n```\nthen\n```Python\nb = 2\n\nc = 3\n```\nend"
        block = fenced_code(text)
        assert block is not None
        assert (block.content, block.language) == ("b = 2\n\nc = 3", "python")
        assert text[block.start : block.end] == "```Python\nb = 2\n\nc = 3\n```"

    def test_a_block_that_is_never_closed_does_not_count(self) -> None:
        assert fenced_code("```python\nprint(1)\n") is None
        closed = fenced_code("```\nwhole\n```\n```\ncut off")
        assert closed is not None
        assert closed.content == "whole"

    def test_languages_choose_among_the_blocks(self) -> None:
        text = "```json\n{}\n```\n```\nplain\n```\n```python\nx\n```"
        assert [
            b.content
            for lang in ("json", "", "python")
            if (b := fenced_code(text, languages=(lang,)))
        ] == ["{}", "plain", "x"]
        assert fenced_code(text, languages=("rust",)) is None

    def test_a_longer_fence_holds_shorter_ones(self) -> None:
        block = fenced_code("````md\n```\ninner\n```\n````")
        assert block is not None
        assert block.content == "```\ninner\n```"

    def test_an_empty_block_is_empty_text(self) -> None:
        block = fenced_code("```\n```")
        assert block is not None
        assert block.content == ""

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "no code",
            "``\nx\n``",
            "inline ```x``` code",
            "```x```",
            "```\nx\n``",
            "```\nx\n``` trailing",
        ],
    )
    def test_text_without_a_fence_is_none(self, text: str) -> None:
        assert fenced_code(text) is None

    def test_a_fence_without_a_language_counts_only_where_no_block_has_one_of_them(self) -> None:
        right, output = "```python\nx = 1\n```\n", "Output:\n```\nFizz\n```\n"
        for text in (right + output, output + right):
            block = fenced_code(text, languages={"python", ""})
            assert block is not None
            assert (block.content, block.language) == ("x = 1", "python")
        (alone,) = [fenced_code(output, languages={"python", ""})]
        assert alone is not None
        assert alone.content == "Fizz"

    def test_the_indent_of_a_fence_is_taken_from_its_lines(self) -> None:
        text = "1. The function:\n\n   ```python\n   def f():\n       return 1\n  x\n   ```\n"
        block = fenced_code(text)
        assert block is not None
        assert block.content == "def f():\n    return 1\nx"
        assert text[block.start : block.end].startswith("   ```python")


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
            *" -²٣３",
            "",
            "--1",
            "+1",
            "- 1",
            "1 2",
            "1.0",
            "1e3",
            "1_000",
            "1,000",
            "0x10",
            "NaN",
            "inf",
            "1\x00",
            "\u00a01",
            "1" * 31,
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
        [
            "",
            ".",
            "-",
            "1.",
            ".5",
            "1.2.3",
            "1e999",
            "1E5",
            "NaN",
            "sNaN",
            "Infinity",
            "-inf",
            "1_0",
            "１.0",
            "1,5",
            "+1",
            "1.-2",
        ],
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
        [
            "",
            "18",
            "1,8",
            ",,1,2,",
            "1,0800",
            "1080,000",
            "1,080,",
            ",080",
            "1,080.5,000",
            "1,08٣",
            "1,080 2",
            "a,bcd",
        ],
    )
    def test_every_other_text_stays_as_it_is(self, text: str) -> None:
        assert ungrouped(text) == text


class TestJson:
    @pytest.mark.parametrize(
        "value",
        [None, True, 0, -1.5, 'a ] } [ { \\ " text', [], {"a": [1, {"b": None}]}, "\U0001f600"],
    )
    def test_a_json_value_is_read(self, value: object) -> None:
        parsed = parse_json(f" {json.dumps(value)}\n")
        assert parsed is not None
        assert parsed.value == value

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[1,]",
            "{'a': 1}",
            "1 2",
            "nul",
            '{"a": 1} trailing',
            "\ufeff1",
            '"\x00"',
            '"\\ud8"',
        ],
    )
    def test_text_that_is_not_json_is_none(self, text: str) -> None:
        assert parse_json(text) is None

    @pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "[-1e999]"])
    def test_numbers_that_are_not_finite_are_refused(self, text: str) -> None:
        assert parse_json(text) is None

    @pytest.mark.parametrize(
        "text",
        ['"\\ud800"', '["a", {"b": "\\udc00"}]', '{"\\ud800": 1}', '"\\udc00\\ud800"', '"\ud800"'],
    )
    def test_half_of_a_surrogate_pair_is_refused_at_any_depth(self, text: str) -> None:
        assert parse_json(text) is None

    def test_the_same_key_twice_is_refused_at_any_depth(self) -> None:
        assert parse_json('{"a": 1, "a": 1}') is None
        assert parse_json('[{"b": {"a": 1, "a": 2}}]') is None
        assert parse_json('[{"a": 1}, {"a": 2}]') is not None

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
    "closing tags": "</answer>" * (MEGABYTE // 9),
    "both tags": "<answer></answer>" * (MEGABYTE // 17),
    "half tags": "<answer" * (MEGABYTE // 7),
    "fences": "```\n" * (MEGABYTE // 4),
    "languages": "```a\n" * (MEGABYTE // 5),
    "backticks": "`" * MEGABYTE,
    "lines": "\n" * MEGABYTE,
    "spaces": " " * MEGABYTE,
    "digits": "1" * MEGABYTE,
    "minus": "-" * MEGABYTE,
    "fraction": "0." + "1" * MEGABYTE,
    "brackets": "[" * MEGABYTE,
    "objects": '{"a":' * (MEGABYTE // 5),
    "quotes": '"' * MEGABYTE,
    "escapes": '"' + "\\" * MEGABYTE,
    "numbers": "[" + "1," * (MEGABYTE // 2) + "1]",
    "nul": "\x00" * MEGABYTE,
    "surrogates": "\ud800" * MEGABYTE,
    "thousands": "1" + ",000" * (MEGABYTE // 4) + "x",
    "unicode digits": "٣" * MEGABYTE,
}
EXTRACTORS: dict[str, Callable[[str], object]] = {
    "only tag": lambda text: xml_tag(text, tag="answer"),
    "last tag": lambda text: xml_tag(text, tag="answer", which="last"),
    "counts": lambda text: tag_counts(text, tag="answer"),
    "code": fenced_code,
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
