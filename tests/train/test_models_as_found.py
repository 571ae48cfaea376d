"""Models as people have them: templates in files and by names, without a system role, with opened thoughts; what lacks is named before the first step."""

import json
import os
import re
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core import ConfigError, Message, Task, TaskKey, Trainer, UserError
from grpo_core.config.chat_templates import TEMPLATES
from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.models import chat
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.models.templates import end_of_turn_id, set_template
from grpo_core.engine.policy.choose import load_policy
from grpo_core.protocol.errors import MissingExtraError
from grpo_core.runs.trust import Layer, checked_config
from grpo_report.html.opened import OpenRun

from .letters import Letters
from .runs import Heard, small_settings
from .test_unasked import REFUSES_SYSTEM
from .tiny import CHAT_TEMPLATE, END, save_tiny, tiny_model, tiny_tokenizer

DROPS_SYSTEM = CHAT_TEMPLATE.replace("messages %}", "messages if message['role'] != 'system' %}")
THINKS = CHAT_TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
CHAT = (Message("system", "Be brief."), Message("user", "hi"), Message("assistant", "yes"))


class Asked(Letters):
    """Letters whose prompts are chats with a system message."""

    def task(self, key: TaskKey) -> Task[str]:
        prompt = (Message("system", "Write letters."), Message("user", f"Go {key.index}."))
        return Task(key, prompt, "a")


def heard_of(folder: Path, model: Path, **more: Any) -> Heard:
    """Return what a run of one step says."""
    heard = Heard()
    short = {"steps": 1, "eval.tasks": 0, "prompts_per_step": 2, "group_size": 2, **more}
    config = build_config([small_settings(model), nested(short)])
    Trainer(config, Asked(), folder=folder, observer=heard).run()
    return heard


def rendered(template: str, **frame: Any) -> str:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return chat.render(tokenizer, CHAT[:2], ChatFrame(**frame))


# Templates


def test_the_template_in_a_file_is_read_recorded_and_no_longer_needed(tmp_path, monkeypatch):
    model = save_tiny(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jinja").write_text("\ufeff" + CHAT_TEMPLATE.replace("im_start", "pad"))
    heard = heard_of(tmp_path / "run", model, **{"model.chat_template": "mine.jinja"})
    (said,) = heard.about("the first prompt, as the model reads it")
    assert "'<|pad|>system\\nWrite letters.<|im_end|>\\n<|pad|>user\\nGo 0.<|im_end|>" in said
    assert said in (tmp_path / "run" / "log.txt").read_text()
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["model"]["chat_template"].startswith("{% for message in messages %}<|pad|>")
    opened = OpenRun(tmp_path / "run", name="run")
    assert opened.facts(0)["first_prompt"] == said
    opened.close()
    (tmp_path / "mine.jinja").unlink()
    assert build_config([recorded]).model.chat_template == recorded["model"]["chat_template"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine is a folder; name the file in it"),
        (b"no template", r"mine holds no Jinja template"),
        (b"\xff\xfe{", "UTF-16"),
        (b"{# #}" + b" " * 2**25, "too large"),
    ],
)
def test_what_is_no_template_is_refused_and_not_quoted(tmp_path, content, message):
    path = tmp_path / "mine"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        build_config([{"model": {"chat_template": str(path)}}])
    assert "no template at" not in str(error.value)


def test_a_recipe_of_a_stranger_has_no_file_read_as_a_template_without_consent(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    secret, recipe = tmp_path / "secret.jinja", tmp_path / "recipe.toml"
    secret.write_text("{{ messages }} my key")
    layer = Layer({"environment": "x", "model": {"chat_template": str(secret)}}, recipe)
    with pytest.raises(
        ConfigError, match=r"model.chat_template = .*secret.jinja.*--trust"
    ) as error:
        checked_config([layer])
    assert "my key" not in str(error.value)
    assert "my key" in str(checked_config([layer], trust=True).model.chat_template)
    assert checked_config([layer]).model.chat_template, "consent is remembered"
    text = Layer({"environment": "x", "model": {"chat_template": "{{ messages }}"}}, recipe)
    assert checked_config([text, Layer({"steps": 1})]).steps == 1
    own = Layer({"model": {"chat_template": str(secret)}})
    assert checked_config([text, own]).model.chat_template == secret.read_text()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_name_gives_a_template_that_writes_every_message_and_ends_each_turn(name):
    tokenizer = tiny_tokenizer()
    marks = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    set_template(tokenizer, name, ModelSource("tiny", "tiny"))
    text = chat.render(tokenizer, (*CHAT, Message("user", "Why?")), ChatFrame())
    places = [text.index(part) for part in ("Be brief.", "hi", "yes", "Why?")]
    assert places == sorted(places)
    assert "assistant" in text[places[-1] :].lower()
    end = "<|eot_id|>" if name == "llama3" else END
    assert end_of_turn_id(tokenizer) == tokenizer.convert_tokens_to_ids(end)


def test_a_template_that_does_not_depend_on_the_messages_is_refused_in_one_line(tmp_path):
    tokenizer, source = tiny_tokenizer(), ModelSource("tiny", "tiny")
    message = r"writes the same text whatever the messages are, '2 hi'"
    with pytest.raises(ConfigError, match=message):
        set_template(tokenizer, "{{ 1 + 1 }} hi", source)
    set_template(tokenizer, "{{ messages[0].content }}", source)
    set_template(tokenizer, "{{ raise_exception('only three turns') }}", source)


# System messages


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, DROPS_SYSTEM])
def test_a_system_message_is_folded_where_the_template_takes_none(template):
    user = "<|im_start|>user\nBe brief.\n\nhi<|im_end|>\n"
    assert user in rendered(template)
    assert user in rendered(CHAT_TEMPLATE, system_role="fold")
    assert "system" not in rendered(CHAT_TEMPLATE, system_role="fold")
    assert "<|im_start|>system\nBe brief." in rendered(CHAT_TEMPLATE)
    assert "<|im_start|>user\nNew.\n\nhi" in rendered(template, system_prompt="New.")


def test_a_template_that_refuses_a_system_message_that_is_kept_says_what_to_set():
    with pytest.raises(ConfigError, match=r"no system message.*model\.system_role"):
        rendered(REFUSES_SYSTEM, system_role="keep")
    assert "Be brief" not in rendered(DROPS_SYSTEM, system_role="keep")


def test_an_empty_system_prompt_removes_the_system_message():
    for template in (CHAT_TEMPLATE, REFUSES_SYSTEM):
        assert rendered(template, system_prompt="").startswith("<|im_start|>user\nhi")


def test_a_dialogue_goes_on_behind_a_folded_system_message():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = REFUSES_SYSTEM
    ids = chat.encode_reply(
        tokenizer, CHAT[:2], CHAT[2:], [Message("user", "Why?")], ChatFrame(), end_id=3
    )
    assert tokenizer.decode(ids) == "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


# What a run says of the model


Change = Callable[[Path], object]


def edit(name: str, **values: Any) -> Change:
    """Change values in a JSON file of a model; None removes one, and "none" becomes null."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | values
        kept = {
            key: None if value == "none" else value
            for key, value in content.items()
            if value is not None
        }
        (folder / name).write_text(json.dumps(kept))

    return change


def templated(text: str) -> Change:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


NO_END = (
    edit("config.json", eos_token_id="none"),
    edit("generation_config.json", eos_token_id=None),
    edit("tokenizer_config.json", eos_token=None),
    templated(CHAT_TEMPLATE.replace("<|im_end|>", "")),
)
"""What removes every end token of a tiny model; null in config.json, as Llama's default is one."""


def with_more_tokens(folder: Path, *, special: bool) -> None:
    """Give a model a tokenizer with more tokens than its embedding has rows."""
    tokenizer = tiny_tokenizer() if special else tiny_tokenizer(string.printable + "\u00e4")
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "more", "said", "warned"),
    [
        pytest.param(templated(CHAT_TEMPLATE), {}, "", "", id="nothing is missing"),
        pytest.param(
            templated(REFUSES_SYSTEM),
            {},
            r"takes no system message, so it stands at the beginning of the first user message",
            "",
            id="no system role",
        ),
        pytest.param(
            templated(REFUSES_SYSTEM), {"model.system_prompt": ""}, "", "", id="none is needed"
        ),
        pytest.param(
            templated(THINKS),
            {},
            r"end with <think>: .*the verifier sees what follows </think>",
            r"^4 new tokens rarely hold a thought and an answer; set sampling\.max_new_tokens",
            id="an opened thought",
        ),
        pytest.param(
            lambda folder: [change(folder) for change in NO_END],
            {},
            "",
            r"^neither the tokenizer nor the config of .*tiny' has an end token, so every completion",
            id="no end token",
        ),
        pytest.param(
            lambda folder: [change(folder) for change in NO_END],
            {"sampling.stop": "x"},
            "",
            "",
            id="a stop string instead",
        ),
        pytest.param(
            lambda folder: with_more_tokens(folder, special=True),
            {},
            "",
            r"^1 added tokens of the tokenizer have no row in the model's embedding \('<image>'",
            id="an added token without a row",
        ),
        pytest.param(
            templated(THINKS),
            {"sampling.max_new_tokens": 256, "model.thought_tags": ["<x>", "</x>"]},
            "",
            "",
            id="no thought",
        ),
    ],
)
def test_a_run_says_before_its_first_step_what_the_model_reads(
    tmp_path, change, more, said, warned
):
    model = save_tiny(tmp_path / "tiny")
    change(model)
    heard = heard_of(tmp_path / "run", model, **{"sampling.max_new_tokens": 4, **more})
    assert len(heard.about("the first prompt, as the model reads it")) == 1
    if "end token" in warned:
        assert not heard.about("--max-new-tokens")
    for pattern, texts, others in (
        (said, heard.said, ("takes no system", "begin as thoughts")),
        (warned, heard.warnings, ("new tokens rarely", "has an end token", "have no row")),
    ):
        if pattern:
            assert len([text for text in texts if re.search(pattern, text)]) == 1, texts
        else:
            assert not [text for text in texts if any(words in text for words in others)]


# What is refused


def only(*kept: str) -> Change:
    """Remove all other files."""
    return lambda folder: [p.unlink() for p in folder.iterdir() if p.name not in kept]


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 5_000)


def of_another_model(folder: Path) -> None:
    tiny_model(dtype=torch.float32, vocab=60).save_pretrained(folder)


WEIGHTS = ("config.json", "generation_config.json", "model.safetensors")
REFUSED: dict[str, tuple[Change, dict[str, Any], str]] = {
    "cut off weights": (
        cut_off,
        {},
        r"tiny/model\.safetensors is cut off: its header lists 87,680 bytes of weights, and the",
    ),
    "no tokenizer": (only(*WEIGHTS), {}, r"tiny' has no tokenizer: .* has no tokenizer\.json and"),
    "the settings of a tokenizer alone": (
        only(*WEIGHTS, "tokenizer_config.json"),
        {"model.chat_template": CHAT_TEMPLATE},
        r"tiny' has no tokenizer: ",
    ),
    "a tokenizer of a larger model": (
        of_another_model,
        {},
        r"has 104 tokens, and the model's embedding has 60 rows, so 44 tokens have no weights",
    ),
    "one token too many": (
        lambda folder: with_more_tokens(folder, special=False),
        {},
        r"embedding has 104 rows, so 1 tokens have no weights \('\u00e4' is one\); take the tok",
    ),
    "an unknown target": (
        lambda folder: None,
        {"lora.targets": "q_proj,v_prj"},
        r"lora.targets names 'v_prj', .* did you mean 'v_proj'\?; its linear layers: down_proj, ",
    ),
    "unknown targets alone": (
        lambda folder: None,
        {"lora.targets": "foo"},
        r"lora.targets names 'foo', and the model has no module of that name; its linear layers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_in_one_line_with_the_cause(tmp_path, name):
    change, more, message = REFUSED[name]
    model = save_tiny(tmp_path / "tiny")
    change(model)
    with pytest.raises(UserError, match=message) as error:
        load_policy(build_config([small_settings(model), nested(more)]), need_reference=False)
    assert "\n" not in str(error.value)


def test_without_peft_the_extra_is_named(tmp_path, monkeypatch):
    config = build_config([small_settings(save_tiny(tmp_path / "tiny"))])
    monkeypatch.setitem(sys.modules, "peft", None)
    message = r"needs the extra 'train' \('peft' is not installed\): pip install 'grpo-core\[train"
    with pytest.raises(MissingExtraError, match=message):
        load_policy(config, need_reference=False)


def test_targets_may_be_whole_paths(tmp_path):
    path = "model.layers.0.self_attn.q_proj"
    settings = [small_settings(save_tiny(tmp_path / "tiny")), {"lora": {"targets": [path]}}]
    policy = load_policy(build_config(settings), need_reference=False)
    assert {name.split(".lora_")[0] for name, _ in policy.trainable()} == {
        f"base_model.model.{path}"
    }
