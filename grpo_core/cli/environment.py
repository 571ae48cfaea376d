"""Share code of the commands `grpo env ...`: options, opening an environment, printing of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from grpo_core.cli.completion import environment_names
from grpo_core.cli.output import MESSAGE_LIMIT, print_line, print_text
from grpo_core.cli.run_config import read_config
from grpo_core.config.config import RunConfig
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, UserError
from grpo_core.protocol.types import Message, Script, Split, Task, TaskKey, Verdict
from grpo_core.verify.episodes.playing import turns_of
from grpo_core.verify.judge.checks import size_of
from grpo_core.verify.sources import Sources

Name = Annotated[
    str,
    typer.Argument(
        help="An environment that `grpo envs` lists, FILE.py:CLASS, or a file of rows.",
        show_default=False,
        autocompletion=environment_names,
    ),
]
SplitOption = Annotated[
    Literal["train", "eval"],
    typer.Option("--split", help="Use a training task or a held-out task."),
]
Index = Annotated[int, typer.Option("--index", min=0, help="Number of the task within its split.")]
Seed = Annotated[
    int, typer.Option("--seed", help="Random seed of generated tasks; corresponds to a run's seed.")
]
Level = Annotated[
    float, typer.Option("--level", min=0.0, max=1.0, help="Difficulty, from 0 (easiest) to 1.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="env.KEY=VALUE",
        help="Change a setting of the environment (or of judges., sandbox., endpoint. or "
        "verify.); may be repeated.",
    ),
]
CALL_FORM = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
"""How the policy calls a tool."""
_USED_SECTIONS = ("env", "judges", "sandbox", "endpoint", "verify")


def open_environment(
    name: str,
    settings: Sequence[str],
    *,
    services_for: Callable[[type[Environment[Any]], Any], Services] | None = None,
) -> tuple[str, Sources]:
    """Open an environment with the verification engine of a run: same deadlines, same errors.

    Args:
        name: the environment.
        settings: the values of --set.
        services_for: returns the services for an environment class and its settings; None to open
            those that the settings name.

    Returns:
        The environment's name in task keys, and its sources.

    Raises:
        ConfigError: a setting is wrong or would not be used.
    """
    refuse_other_settings(_USED_SECTIONS, settings)
    sources = Sources.of(read_config([name], [], {}, settings), {}, lend=services_for)
    return next(iter(sources)).name, sources


def refuse_other_settings(sections: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse settings of other sections, which would be read but not used.

    Args:
        sections: the sections that the command uses.
        settings: the values of --set.

    Raises:
        ConfigError: a setting is not in one of the sections.
    """
    for text in settings:
        if text.partition(".")[0] not in sections:
            raise ConfigError(
                f"--set changes settings of {', '.join(sections)} here, "
                f"as in --set env.digits=2; found {text!r}"
            )


def open_task(
    name: str, settings: Sequence[str], split: Split, index: int, seed: int, level: float
) -> tuple[Sources, TaskKey]:
    """Open an environment for one of its tasks.

    Args:
        name: the environment.
        settings: the values of --set.
        split: the split of the task.
        index: its number within the split.
        seed: the random seed of generated tasks.
        level: the difficulty, from 0 to 1.

    Returns:
        The sources of the environment, and the key of the task.

    Raises:
        UserError: the index is not below the size of the split, or a setting is wrong.
    """
    env_name, sources = open_environment(name, settings)
    size = size_of(sources[env_name].env, split)
    if size is not None and index >= size:
        raise UserError(
            f"--index {index} is too large: the {split} split of {env_name!r} "
            f"holds {size} tasks, numbered from 0"
        )
    return sources, TaskKey(env_name, split, index, seed, level)


def messages_before_question(
    config: RunConfig, *, advice: str
) -> tuple[str, tuple[Message, ...] | None]:
    """Return the name of a run's environment, and what its prompts have before the question.

    In a mixture this is the first environment that has a share of the training.

    Args:
        config: the settings of the run.
        advice: what to do if the environment cannot be used.

    Returns:
        The name ("" without an environment), and the system prompt and examples; None if the
        environment asks for continuations of raw texts.

    Raises:
        ConfigError: the environment cannot be used.
    """
    members = [(name, member) for name, member in config.members().items() if member.share]
    if not members or members[0][0] == "none":  # grpo sft --data trains on a file
        return "", ()
    name, member = members[0]
    try:
        environment = load_environment(PluginHost(), name, member.env)
    except UserError as error:
        raise ConfigError(f"the run's environment cannot be used ({error}); {advice}") from None
    prompt = environment.task(TaskKey(name, "train", 0, level=member.level or 0.0)).prompt
    return name, None if isinstance(prompt, str) else tuple(prompt[:-1])


def turns(prompt: str | Sequence[Message]) -> list[tuple[str, str]]:
    """Return the (role, content) of each message of a prompt; a text has the role "text"."""
    if isinstance(prompt, str):
        return [("text", prompt)]
    return [(message.role, message_text(message)) for message in prompt]


def message_text(message: Message) -> str:
    """Return the content of a message, and its calls of tools as the policy writes them."""
    values = [
        {"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls or ()
    ]
    calls = [f"<tool_call>{json.dumps(value)}</tool_call>" for value in values]
    return "\n".join([*([message.content] if message.content or not calls else []), *calls])


def print_prompt(task: Task[Any]) -> None:
    """Print the prompt of a task, message by message."""
    for role, content in turns(task.prompt):
        print_turn(role, content)


def print_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Print the tools of an environment and how they are called; nothing if there are none."""
    if not tools:
        return
    print_line("[tools]", bold=True)
    for line in tool_lines(tools):
        print_text(line)
    print_text(f"called by {CALL_FORM}")


def tool_lines(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the signature and the description of each tool, one line each."""
    lines = []
    for tool in tools:
        function = tool["function"]
        properties = function["parameters"].get("properties", {})
        required = function["parameters"].get("required", [])
        parameters = ", ".join(
            f"{name}{'' if name in required else '?'}: {_parameter_type(schema)}"
            for name, schema in properties.items()
        )
        lines.append(f"{function['name']}({parameters})  {function['description']}".rstrip())
    return lines


def _parameter_type(schema: Mapping[str, Any]) -> str:
    """Return the type of a tool's parameter in short form, "a | b" where it is one of several."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(_parameter_type, schema["anyOf"]))
    return str(schema.get("type", "any"))


def print_reference(answer: Script | None) -> None:
    """Print the reference answer of a task, turn by turn, or that there is none."""
    texts = turns_of("(this environment has no reference answer)" if answer is None else answer)
    for number, text in enumerate(texts, 1):
        print_turn("reference" if len(texts) == 1 else f"reference, turn {number}", text)


def print_turn(role: str, content: str) -> None:
    """Print a message below its role."""
    print_line(f"[{role}]", bold=True)
    print_text(content)


def print_verdict(verdict: Verdict) -> None:
    """Print the reward parts, the total and the extracted answer of a verdict."""
    for name, reward in verdict.rewards.items():
        turns = (
            ""
            if reward.turns is None
            else f"by turn: {' '.join(map('{:.4g}'.format, reward.turns))}"
        )
        remarks = "; ".join(filter(None, (turns, reward.note)))
        print_text(
            f"{name:<20} {reward.value:>8.4g}  x {reward.weight:<6.4g} {remarks}".rstrip(),
            limit=MESSAGE_LIMIT,
        )
    print_line(
        f"{'total':<20} {verdict.total:>8.4g}  {'passed' if verdict.passed else 'not passed'}",
        bold=True,
    )
    print_text(
        f"{'answer':<20} {'(none found)' if verdict.answer is None else verdict.answer}",
        limit=MESSAGE_LIMIT,
    )
    if not verdict.passed:
        print_detail(verdict)


def print_detail(verdict: Verdict) -> None:
    """Print the verifier's further data, such as what a program wrote; texts keep their lines."""
    for name, value in verdict.detail.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if text:
            text = text.rstrip("\n")
            shown = f"{name}\n{text}" if "\n" in text else f"{name:<20} {text}"
            print_text(shown, limit=MESSAGE_LIMIT)
