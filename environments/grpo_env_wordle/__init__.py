"""Find a secret word by guesses whose letters are marked, in a few turns."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("wordle", "grpo_env_wordle.env:Wordle", summary=__doc__)]
