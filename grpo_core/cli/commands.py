"""Name all commands, and import the module of a command only when that command is used.

So `grpo --help` imports no command, and a command imports what it needs at the top of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

from grpo_core.calls.streams import printable_streams
from grpo_core.cli.output import default_to_false

ROOT = "grpo"
"""The name of the outermost group."""

GROUPS: Mapping[str, str] = {
    "env": "Inspect, try, check or create an environment.",
    "new": "Write the package of a new environment or of another plugin, with tests.",
    "model": "Download models, and list those that are on this machine.",
    "config": "Show and explain the settings of a run, or print their JSON schema.",
    "judge": "Test judge models before they give rewards.",
    "sandbox": "Build, check and clean up the sandbox in which code of a model runs.",
}
"""The help of each group of commands within `grpo`."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Say where a command is defined, and what it does."""

    module: str
    """The module whose Typer `app` holds the command."""
    help: str
    """The first line of the command's docstring, for the list of commands."""


COMMANDS: Mapping[str, Mapping[str, CommandEntry]] = {
    ROOT: {
        "run": CommandEntry("grpo_core.cli.run", "Train a model on an environment with GRPO."),
        "sft": CommandEntry(
            "grpo_core.cli.sft",
            "Fine-tune a model on given answers before GRPO "
            "(supervised fine-tuning, a warm start).",
        ),
        "eval": CommandEntry(
            "grpo_core.cli.evaluate", "Measure a run or a model on held-out tasks."
        ),
        "rescore": CommandEntry(
            "grpo_core.cli.rescore",
            "Judge the saved rollouts of a run again, and list which verdicts changed.",
        ),
        "compare": CommandEntry(
            "grpo_core.cli.compare",
            "Compare two runs or evaluations on the same held-out tasks, B against A.",
        ),
        "export": CommandEntry(
            "grpo_core.cli.export",
            "Write the good rollouts of a run as examples (rejection sampling), "
            "or its merged weights.",
        ),
        "plot": CommandEntry(
            "grpo_core.cli.plot",
            "Draw reward and pass rate, KL, reward parts and the time per phase, as PNG and SVG.",
        ),
        "report": CommandEntry(
            "grpo_core.cli.report",
            "Write curves, groups, forensics and settings of runs as one HTML file, "
            "to be opened offline.",
        ),
        "watch": CommandEntry(
            "grpo_core.cli.watch",
            "Show runs live: as a page for this machine's browser, or in the terminal.",
        ),
        "generate": CommandEntry(
            "grpo_core.cli.generate", "Answer a question with a trained run or a model."
        ),
        "serve": CommandEntry(
            "grpo_core.cli.serve",
            "Serve a run or a model to clients of the OpenAI API, such as evaluation harnesses.",
        ),
        "envs": CommandEntry(
            "grpo_core.cli.plugins", "List the environments that can be trained on."
        ),
        "plugins": CommandEntry(
            "grpo_core.cli.plugins",
            "List the installed plugins and the components that they offer.",
        ),
        "doctor": CommandEntry(
            "grpo_core.cli.doctor",
            "Check versions, hardware, memory, disk, sandboxes, clusters and plugins.",
        ),
    },
    "env": {
        "show": CommandEntry(
            "grpo_core.cli.show",
            "Print the prompt of one task, and the tools that the policy may call.",
        ),
        "score": CommandEntry("grpo_core.cli.score", "Score one answer to one task."),
        "new": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new environment with tests, ready to install and to train on.",
        ),
        "check": CommandEntry(
            "grpo_core.cli.check",
            "Check an environment and its verifier with the calls of a run "
            "and the exploits of a model.",
        ),
        "probe": CommandEntry(
            "grpo_core.cli.probe",
            "Tell whether a model can be trained on an environment, "
            "and suggest the settings for it.",
        ),
        "play": CommandEntry(
            "grpo_core.cli.play",
            "Answer tasks yourself, in place of the policy, and see the rewards.",
        ),
        "card": CommandEntry(
            "grpo_core.cli.card", "Print the description of an environment and its reward floors."
        ),
        "export": CommandEntry(
            "grpo_core.cli.env_export",
            "Write a script that trains on an environment with another trainer, TRL's GRPOTrainer.",
        ),
    },
    "new": {
        "env": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new environment with tests, ready to install and to train on.",
        ),
        "judge": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new judge, which scores texts, with tests.",
        ),
        "sandbox": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new sandbox, which runs untrusted programs, with tests.",
        ),
        "sampler": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new sampler, which draws completions, with tests.",
        ),
        "executor": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new executor, which verifies elsewhere, with tests.",
        ),
        "algorithm": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new advantage estimator and a new loss, with tests.",
        ),
        "tracker": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new tracker, which shows the metrics of a run, with tests.",
        ),
        "recipe": CommandEntry(
            "grpo_core.cli.new",
            "Write the package of a new recipe, settings that belong together, with tests.",
        ),
    },
    "model": {
        "pull": CommandEntry(
            "grpo_core.cli.model",
            "Download a model so that later runs need no network, or update a cached hub model.",
        ),
        "list": CommandEntry(
            "grpo_core.cli.model",
            "List the models that need no network, then the aliases that can be downloaded.",
        ),
    },
    "config": {
        "show": CommandEntry(
            "grpo_core.cli.config",
            "Print every setting that `grpo run` would use, with the default if it differs.",
        ),
        "explain": CommandEntry(
            "grpo_core.cli.config",
            "Explain a setting: its meaning, the values that it takes and its default.",
        ),
        "schema": CommandEntry(
            "grpo_core.cli.config",
            "Print the JSON schema of recipes, for editors that complete and check them.",
        ),
    },
    "judge": {
        "check": CommandEntry(
            "grpo_core.cli.judge",
            "Score both texts of each pair, and count how often the better one "
            "gets the higher score.",
        ),
    },
    "sandbox": {
        "build": CommandEntry(
            "grpo_core.cli.sandbox",
            "Build the image in which programs run, and test it with a program.",
        ),
        "check": CommandEntry(
            "grpo_core.cli.sandbox",
            "Attack a sandbox with hostile programs to check its limits, isolation and clean-up.",
        ),
        "prune": CommandEntry(
            "grpo_core.cli.sandbox", "Remove the containers that killed trainers left behind."
        ),
    },
}
"""The commands of each group, in the order in which its help lists them."""


class LazyCommand(TyperCommand):
    """Stand for a command in the list of its group, without its options."""

    def __init__(self, name: str, entry: CommandEntry, *, markup_mode: Any) -> None:
        super().__init__(name, help=entry.help, rich_markup_mode=markup_mode)
        self._module = entry.module

    def load(self) -> Any:
        """Import the command's module, and return the command as typer builds it.

        Raises:
            VersionError: a package that is always needed has a version that is not supported.
        """
        # `grpo --help` compares no versions, so it does not import this either.
        import_module("grpo_core.plugins.versions").check_versions(ROOT)
        app = import_module(self._module).app
        command: Any = typer.main.get_group(app).commands[self.name or ""]
        command.callback = printable_streams()(command.callback)
        command.rich_markup_mode = self.rich_markup_mode
        return command


class LazyGroup(TyperGroup):
    """Load the commands of a group one by one, when the command line names them.

    `get_command` returns what the help lists; typer calls `resolve_command` to run a command, to
    show its help or to complete its options.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        lazy = {
            name: LazyCommand(name, entry, markup_mode=self.rich_markup_mode)
            for name, entry in COMMANDS[self.name or ""].items()
        }
        self.commands = {**lazy, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, and import its module."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, which is False where it is not given."""
        return default_to_false(super().get_help_option(ctx))
