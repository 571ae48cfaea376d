"""Counting the parts of JSON before it is parsed agrees with what a parser finds, wherever the bytes are cut."""

import json
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_core.calls.json_limits import JsonLimitError, JsonLimits, JsonScan, check_json

VALUES: Any = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(alphabet='a"\\{}[],:é\n', max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(alphabet='a"\\{[', max_size=3), inner, max_size=4),
    ),
    max_leaves=20,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None  # fmt: skip
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def strings(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(strings, value.values()))
    return sum(map(strings, value)) if isinstance(value, list) else isinstance(value, str)


def scanned(data: bytes, limits: JsonLimits, seed: int) -> bool:
    """Whether JSON that comes in pieces of random sizes is within limits."""
    rng, scan = random.Random(seed), JsonScan(limits)
    try:
        while data:
            size = rng.randint(1, 5)
            scan.add(data[:size])
            data = data[size:]
    except JsonLimitError:
        return False
    return True


@settings(suppress_health_check=[HealthCheck.too_slow])  # which other programs beside it cause
@given(VALUES, st.integers(0, 99), st.booleans())
def test_the_counts_are_those_of_a_parser(value: Any, seed: int, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    for most in range(max(0, depth(value) - 1), depth(value) + 2):
        assert scanned(data, JsonLimits(depth=most), seed) == (depth(value) <= most)
    for most in range(max(0, strings(value) - 1), strings(value) + 2):
        assert scanned(data, JsonLimits(strings=most), seed) == (strings(value) <= most)


@pytest.mark.parametrize(
    "text",
    ["[" * 65, '{"a":' * 65, "[" * 12_001, "[[]," + "[]," * 12_000, '["",' * 9 + '"",' * 60_000, "[" + "1," * 300_000],
)  # fmt: skip
def test_json_with_too_many_parts_is_refused(text: str) -> None:
    with pytest.raises(JsonLimitError, match="send"):
        check_json(text)


@pytest.mark.parametrize("text", ["]" * 10**6, '"' + "[" * 10**6 + '"', "\\" * 10**6, "", "\ud800"])
def test_what_no_parser_reads_far_is_left_to_it(text: str) -> None:
    started = time.process_time()
    check_json(text)
    assert time.process_time() - started < 1
