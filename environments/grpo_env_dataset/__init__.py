"""Your own rows (a file or a published dataset), with rewards by name or functions of yours."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [
        Spec("dataset", "grpo_env_dataset.env:Dataset", summary=__doc__),
        Spec(
            "dataset/code",
            "grpo_env_dataset.code_rows:CodeRows",
            summary="Your own rows with tests: programs are run in a sandbox.",
        ),
        Spec(
            "dataset/judge",
            "grpo_env_dataset.judged_rows:JudgedRows",
            summary="Your own rows with a rubric: a judge model scores completions.",
        ),
    ]
