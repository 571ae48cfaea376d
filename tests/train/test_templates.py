"""Chats written by templates in a process of their own: the same texts as transformers writes."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from grpo_core.engine.models import guarded
from grpo_core.engine.models.guarded import TrialError
from grpo_core.engine.models.templates import end_of_turn_id, write_chat
from grpo_core.protocol.tools import schemas

from .real_templates import TEMPLATES
from .tiny import END, SPECIAL, tiny_tokenizer


def add(a: int, b: list[int] | None = None) -> int:
    """Add numbers: <b> & "c".

    Args:
        a: one.
        b: more.
    """
    return a + sum(b or ())


CALL = {"id": "abcDEF123", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [3]}}}  # fmt: skip
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "2 + 3? \u00e9 <|im_end|>"}],
    [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "so"},
        {"role": "user", "content": "c"},
    ],
    [
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5", "tool_call_id": "abcDEF123", "name": "add"},
    ],
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_writes_what_transformers_writes(name: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATES[name].read_text(encoding="utf-8")
    written, thinking = 0, {"enable_thinking": False}
    for messages, tools, generates in product(CHATS, ([], schemas((add,))), (True, False)):
        options: dict[str, Any] = {"add_generation_prompt": generates}
        try:
            expected = tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, **thinking, **options
            )
        except Exception:  # noqa: BLE001 - a template may refuse a chat in any way
            with pytest.raises(TrialError):
                write_chat(tokenizer, messages, tools=tools, **options)
            continue
        text = write_chat(tokenizer, messages, tools=tools, arguments=thinking, **options)
        assert text == expected
        written += 1
    assert written


@pytest.mark.slow
def test_special_tokens_and_the_date_are_known_and_nothing_else_of_the_process_is(monkeypatch):
    monkeypatch.setenv("GRPO_TEST_SECRET", "key")
    guarded._trials.close()
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ eos_token }} {{ strftime_now('%Y')|length }} {{ messages[0] }}"
    message = {"role": "user", "content": "x", "name": None, "image": object()}
    assert write_chat(tokenizer, [message]) == (
        f"{END} 4 {{'role': 'user', 'content': 'x', 'image': '<object>'}}"
    )
    pid = guarded._trials._child.pid  # type: ignore[union-attr]
    assert b"GRPO_TEST_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_the_end_of_a_turn_is_found_again_when_the_template_changes() -> None:
    tokenizer = tiny_tokenizer()
    assert end_of_turn_id(tokenizer) == SPECIAL.index(END)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    assert end_of_turn_id(tokenizer) is None


def test_a_process_that_was_killed_is_replaced() -> None:
    assert guarded.render("{{ a }}", {"a": 1}) == "1"
    os.kill(guarded._trials._child.pid, signal.SIGKILL)  # type: ignore[union-attr]
    guarded._trials._child.wait(5)  # type: ignore[union-attr]
    assert guarded.render("{{ a }}", {"a": 2}) == "2"


def test_threads_get_their_own_texts() -> None:
    def write(number: int) -> list[str]:
        return [guarded.render("{{ a }}", {"a": f"{number} " * 5000}) for _ in range(20)]

    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(write, range(4)))
    assert texts == [[f"{number} " * 5000] * 20 for number in range(4)]


def test_a_forked_process_gets_a_child_of_its_own() -> None:
    own = guarded.render("{{ a }}", {"a": 1})
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        text = guarded.render("{{ a }}", {"a": 3})
        guarded._trials.close()
        os.write(writer, text.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert (own, os.read(reader, 10), guarded.render("{{ a }}", {"a": 4})) == ("1", b"3", "4")
