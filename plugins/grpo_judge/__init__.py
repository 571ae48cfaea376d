"""Judge models: a sequence scorer, a language model's likelihood, and any OpenAI-compatible endpoint."""

from grpo_core import Spec, hookimpl


class _Offer:
    """One judge as a plugin of its own, so that its name is its id."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    @hookimpl
    def grpo_judges(self) -> list[Spec]:
        return [self._spec]


offer_scorer = _Offer(
    Spec("scorer", "grpo_judge.scorer:Scorer", "A frozen sequence classifier.", extra="train")
)
offer_likelihood = _Offer(
    Spec(
        "likelihood",
        "grpo_judge.likelihood:Likelihood",
        "How likely a frozen language model finds what fills a gap.",
        extra="train",
    )
)
offer_llm = _Offer(
    Spec(
        "llm",
        "grpo_judge.llm:LLM",
        "A language model behind an OpenAI-compatible endpoint.",
        extra="judge",
    )
)
