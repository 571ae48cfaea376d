"""Work in a shell: print, write, count, sort and move files, write small scripts."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("terminal", "grpo_env_terminal.env:Terminal", summary=__doc__)]
