"""Extract answers from untrusted text; no extractor raises an exception.

Each takes linear time: no pattern backtracks and every parser has a size limit, because a policy in
training finds the input that makes a verifier hang. They read what a policy answered, which is
`Rollout.text` and `Message.content`: what it thought before is no part of it.
"""

from grpo_core.extract.answer_numbers import parse_answer_number
from grpo_core.extract.blocks import Block, NoAnswer
from grpo_core.extract.code import fenced_code, find_code
from grpo_core.extract.numbers import MAX_DIGITS, parse_decimal, parse_integer, ungrouped
from grpo_core.extract.tags import find_tag, tag_counts, xml_tag
from grpo_core.extract.texts import is_text
from grpo_core.extract.values import JSON_LABELS, Json, find_json, parse_json
from grpo_core.protocol.same_numbers import finite_number, same_number

__all__ = [
    "JSON_LABELS",
    "MAX_DIGITS",
    "Block",
    "Json",
    "NoAnswer",
    "fenced_code",
    "find_code",
    "find_json",
    "find_tag",
    "finite_number",
    "is_text",
    "parse_answer_number",
    "parse_decimal",
    "parse_integer",
    "parse_json",
    "same_number",
    "tag_counts",
    "ungrouped",
    "xml_tag",
]
