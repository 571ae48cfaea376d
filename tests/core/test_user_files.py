"""Files of users are read in one way: a byte order mark, line ends of Windows and U+2028 change nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError
from grpo_core.config.recipe_files import read_recipe
from grpo_core.config.user_files import user_lines, user_text, user_values
from grpo_core.train.rollout.examples import read_examples
from grpo_env_fillin.corpus import from_file
from grpo_judge.agreement import read_pairs

from .distributions import grpo

ODD = "a\u2028b\x85c\u2029d\x0be\x0cf\x1cg\u00a0h"
"""A text with every character at which `str.splitlines` splits, but for those that end a line."""
ENDS = {"unix": "\n", "windows": "\r\n", "with blank lines": "\n \r\n\n"}


def written(path: Path, lines: list[str], end: str) -> Path:
    path.write_bytes(("\ufeff" + end.join(lines)).encode())
    return path


def as_json(value: Any) -> str:
    """JSON in which U+2028 and the like stand as they are, as other programs write it."""
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_lines_end_with_a_line_feed_and_nothing_else(tmp_path: Path, end: str) -> None:
    path = written(tmp_path / "texts.txt", [f" {ODD} ", "two", "\ufeffthree"], end)
    lines = [line for _, line in user_lines(path, holds="texts")]
    assert lines == [f" {ODD} ", "two", "three"]
    places = [where for where, _ in user_lines(path, holds="texts")]
    step = end.count("\n")
    assert places == [f"{path}, line {number}" for number in (1, 1 + step, 1 + 2 * step)]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_examples_pairs_and_texts_are_read_in_the_same_way(tmp_path: Path, end: str) -> None:
    rows = [{"prompt": ODD, "completion": "x"}, {"prompt": "y", "completion": ODD}]
    examples = read_examples(written(tmp_path / "examples.jsonl", list(map(as_json, rows)), end))
    assert [(example.prompt, example.answer) for example in examples] == [(ODD, "x"), ("y", ODD)]
    rows = [{"better": ODD, "worse": "x"}, {"better": "y", "worse": ODD}]
    pairs = read_pairs(written(tmp_path / "pairs.jsonl", list(map(as_json, rows)), end))
    both = [(pair.better.candidate, pair.worse.candidate) for pair in pairs]
    assert both == [(ODD, "x"), ("y", ODD)]
    texts = [f"Text number {number} is long.{ODD}" for number in range(50)]
    splits = from_file(written(tmp_path / "texts.txt", texts, end))
    read = {text for split in splits.values() for text in split}
    assert read == {" ".join(text.split()) for text in texts}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mark", [" ", "\u2028", "\x85", "\x0c"])
@pytest.mark.parametrize("source", ["d.jsonl", "-"])
def test_a_dialogue_with_such_characters_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    turn = f"See:{mark}\n```sql\nSELECT COUNT(*) FROM customers WHERE age < 71\n```"
    line = as_json({"role": "assistant", "content": turn})
    written(tmp_path / "d.jsonl", [line, ""], "\r\n")
    told = {"stdin": f"\ufeff{line}\r\n"} if source == "-" else {}
    result = grpo("env", "score", "sql", "--answer", source, "--json", **told)
    assert json.loads(result.stdout)["total"] == 1, result.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"role": "assistant", "content": "x"', "line 3 of the dialogue is not JSON"),
        ('{"role": "policy", "content": "x"}', "line 3 of the dialogue is no message; each line"),
        ('{"role": "assistant", "content": null}', "line 3 of the dialogue is no message"),
        (r'{"role": "assistant", "content": "\ud800"}', "holds half of a surrogate pair"),
    ],
)
def test_a_dialogue_with_a_line_that_is_no_message_is_not_taken_for_one_text(
    line: str, said: str
) -> None:
    first = '{"role": "assistant", "content": "SELECT 1"}'
    result = grpo("env", "score", "sql", "--answer", "-", stdin=f"{first}\n\n{line}\n")
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_answer_may_hold_any_character_but_none_of_another_encoding(tmp_path: Path) -> None:
    result = grpo("env", "score", "arithmetic", "--answer", "-", "--json", stdin=f"\0{ODD}")
    assert json.loads(result.stdout)["total"] == 0
    (tmp_path / "answer.txt").write_text("4", encoding="utf-16")
    result = grpo("env", "score", "arithmetic", "--answer", str(tmp_path / "answer.txt"))
    assert result.exit_code == 2
    assert "it is UTF-16 or UTF-32 text; name a text file (or - for stdin)" in result.stderr


def test_recipes_may_have_a_byte_order_mark_and_line_ends_of_windows(tmp_path: Path) -> None:
    toml = written(tmp_path / "recipe.toml", ["steps = 3", f'name = "{ODD[:5]}"'], "\r\n")
    assert read_recipe(toml) == {"steps": 3, "name": ODD[:5]}
    config = written(tmp_path / "config.json", ['{"steps": 3', "}"], "\r\n")
    assert read_recipe(config) == {"steps": 3}
    toml.write_text("steps = 3", encoding="utf-16")
    with pytest.raises(ConfigError, match=r"it is UTF-16 or UTF-32 text; name a recipe \(TOML"):
        read_recipe(toml)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'1\n"\xe9"', r"it is not UTF-8 text \(byte 0xe9 in line 2\); name a JSONL file of rows"),
        (b"1\n\x00", r"it is not plain text \(byte 0 in line 2\)"),
        (b"1\nNaN", "line 2 is not JSON: NaN is not a JSON value; write null"),
        (b"1\n[1e999]", "line 2 is not JSON: the number 1e999 is too large"),
        (b'1\n{"a": 1, "a": 1}', "line 2 is not JSON: the key 'a' is there twice"),
        (b"1\n" + b"[" * 10**5, "line 2 is not JSON: .*recursion"),
        (b"1\n" + b"1" * 5000, "line 2 is not JSON: Exceeds the limit"),
        (b'1\n"\\ud800"', "line 2 holds half of a surrogate pair"),
        (b"1\r2", "line 1 is not JSON: Extra data"),
    ],
)
def test_what_is_not_json_is_refused_with_its_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        list(user_values(tmp_path / "rows.jsonl", holds="rows"))


def test_a_file_that_is_not_there_and_one_that_is_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"rows cannot be read: No such file .*; name a text file"
    ):
        user_text(tmp_path / "rows", holds="a text file")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory; name a JSONL file of r"):
        list(user_values(tmp_path, holds="rows"))


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    for content in ("", "\ufeff", "\n \r\n", "\ufeff\n"):
        (tmp_path / "rows.jsonl").write_bytes(content.encode())
        assert list(user_values(tmp_path / "rows.jsonl", holds="rows")) == []
