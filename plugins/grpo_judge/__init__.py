"""Judge models: a sequence scorer, a likelihood under a language model, an OpenAI-like endpoint."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_judges() -> list[Spec]:
    return [
        Spec("scorer", "grpo_judge.scorer:Scorer", "A frozen sequence classifier.", extra="train"),
        Spec(
            "likelihood",
            "grpo_judge.likelihood:Likelihood",
            "The likelihood of a gap's fill under a frozen language model.",
            extra="train",
        ),
        Spec(
            "llm",
            "grpo_judge.llm:LLM",
            "A language model behind an OpenAI-compatible endpoint.",
            extra="judge",
            remote=True,
        ),
    ]
