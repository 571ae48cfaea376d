"""Strings of brackets: the policy writes short functions on them, which run in a sandbox."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("parentheses", "grpo_env_parentheses.env:Parentheses", summary=__doc__)]
