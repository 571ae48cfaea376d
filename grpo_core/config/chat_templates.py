"""Hold the chat templates that `model.chat_template` names, for models whose own has no tools."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from grpo_core.protocol.errors import did_you_mean

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

TEMPLATES: Mapping[str, str] = MappingProxyType({"chatml-tools": CHATML_TOOLS})
"""The templates by their names. The model's own writes chats without tools, if it has one."""
TURN_MARKS = ("<|im_start|>", "<|im_end|>")
"""The tokens that a model has to know for these templates."""


def check_template(template: str | None) -> str | None:
    """Return the value of `model.chat_template`; raise ValueError if it is no template."""
    if template and template not in TEMPLATES and "{" not in template:
        raise ValueError(
            "it is neither a Jinja template nor the name of one"
            f"{did_you_mean(template, TEMPLATES).removesuffix('.')}; names: "
            f"{', '.join(TEMPLATES)}; a template in a file: "
            '--set model.chat_template="$(cat FILE)"'
        )
    return template
