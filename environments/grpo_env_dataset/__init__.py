"""Your own rows (a file or a published dataset), with rewards by name or functions of yours."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [
        Spec(
            "dataset",
            "grpo_env_dataset.env:Dataset",
            summary=__doc__,
            row_rewards=(
                "exact",
                "number",
                "choice",
                "contains",
                "regex",
                "json_schema",
                "math",
                "*",
            ),
        ),
        Spec(
            "dataset/code",
            "grpo_env_dataset.code_rows:CodeRows",
            summary="Your own rows with tests: programs are run in a sandbox.",
            row_rewards=("code",),
        ),
        Spec(
            "dataset/judge",
            "grpo_env_dataset.judged_rows:JudgedRows",
            summary="Your own rows with a rubric: a judge model scores completions.",
            row_rewards=("judge",),
        ),
    ]
