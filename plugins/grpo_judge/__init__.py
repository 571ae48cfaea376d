"""Judge models: a sequence scorer, a likelihood under a language model, an OpenAI-like endpoint."""

from grpo_core import Spec, hookimpl


class _Offer:
    """Offers a judge as a separate plugin, because a plugin's name is the judge's id."""

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
        "The likelihood of a gap's fill under a frozen language model.",
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
