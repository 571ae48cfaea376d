"""Hold the chat templates that `model.chat_template` names, and read one from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grpo_core.config.model_files import MAX_JSON_BYTES, check_kind
from grpo_core.config.user_files import user_text
from grpo_core.protocol.errors import ConfigError, UserError, did_you_mean

CHATML_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call one or more of these functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, write its name and its arguments as a JSON object:\\n' }}
    {{- '<tool_call>\\n{"name": <name>, "arguments": {<name>: <value>}}\\n</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif not (tools and loop.first and message['role'] == 'system') %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
        {%- for call in message['tool_calls'] or [] %}
            {%- set function = call['function'] or call %}
            {{- '\\n' if message['content'] or not loop.first }}
            {{- '<tool_call>\\n{"name": ' + function['name'] | tojson + ', "arguments": ' }}
            {{- function['arguments'] | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""ChatML, with tools and calls in the form of Hermes and Qwen."""

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""ChatML, as Qwen and SmolLM2 write it, without a system message of its own."""

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
"""The turns of Llama 3, without the dates of its own template."""

PLAIN = """\
{{- bos_token if bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] + '\\n\\n' }}
    {%- else %}
        {{- message['role'] | capitalize + ': ' + message['content'] }}
        {{- eos_token if eos_token and message['role'] == 'assistant' }}
        {{- '\\n\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:' }}
{%- endif %}
"""
"""A dialogue as text, for base models of any tokenizer."""

TEMPLATES: Mapping[str, str] = MappingProxyType(
    {"chatml": CHATML, "chatml-tools": CHATML_TOOLS, "llama3": LLAMA3, "plain": PLAIN}
)
"""The templates by their names."""
FOR_TOOLS = frozenset({"chatml-tools"})
"""Those that write chats with tools alone; the model's own writes the others, if it has one."""
_CHATML_MARKS = ("<|im_start|>", "<|im_end|>")
TURN_MARKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "chatml": _CHATML_MARKS,
        "chatml-tools": _CHATML_MARKS,
        "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "plain": (),
    }
)
"""The tokens that a model has to know for each of these templates."""


def check_template(template: str | None) -> str | None:
    """Return the value of `model.chat_template`; raise ValueError if it is no template."""
    if template and template not in TEMPLATES and "{" not in template:
        raise ValueError(
            "it is neither a Jinja template, nor a file, nor the name of a template"
            f"{did_you_mean(template, TEMPLATES).removesuffix('.')}; names: {', '.join(TEMPLATES)}"
        )
    return template


def absolute_template(value: str) -> str:
    """Return the file of a chat template as an absolute path, and any other value unchanged."""
    file = _template_file(value)
    return value if file is None else str(file.absolute())


def read_template(settings: dict[str, Any]) -> None:
    """Replace the file of a chat template by the text in it, which the run records, in place.

    Raises:
        ConfigError: the file cannot be read, or holds no Jinja template.
    """
    model = settings.get("model")
    if isinstance(model, dict) and (file := _template_file(model.get("chat_template"))):
        model["chat_template"] = _text_of(file)


def _template_file(value: object) -> Path | None:
    """Return the file that a value of `model.chat_template` names; None: it names none."""
    if not isinstance(value, str) or value in TEMPLATES or {"{", "\n", "\0"} & set(value):
        return None
    try:
        path = Path(value).expanduser()
        return path if value and path.exists() else None
    except (OSError, RuntimeError):  # a name that is too long, or "~user" of an unknown user
        return None


def _text_of(path: Path) -> str:
    """Return the chat template in a file."""
    holds = "a chat template (Jinja)"
    try:
        check_kind(path)
        if path.is_dir():
            raise ConfigError(f"model.chat_template={path} is a folder; name the file in it")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ConfigError(f"model.chat_template={path} is too large to be {holds}")
    except ConfigError:
        raise
    except (OSError, UserError) as error:
        raise ConfigError(f"model.chat_template={path} cannot be read: {error}") from None
    text = user_text(path, holds=holds)
    if "{{" not in text and "{%" not in text:
        raise ConfigError(
            f"model.chat_template={path} holds no Jinja template: there is neither "
            "'{{' nor '{%' in it; name a file such as chat_template.jinja"
        )
    return text
