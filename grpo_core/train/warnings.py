"""Said loudly, with advice: signs in the metrics that a run is not learning or cannot."""

from __future__ import annotations

from collections.abc import Mapping

PATIENCE = 10
TRUNCATED = 0.5


class Watch:
    """Looks at the metrics of each step; a sign is said when it has held for `patience` steps, and again only after it went away."""

    def __init__(self, *, patience: int = PATIENCE) -> None:
        self.patience = patience
        self._held: dict[str, int] = {}

    def look(self, metrics: Mapping[str, float]) -> list[str]:
        """The warnings that this step gives."""
        signs = {
            "equal": (metrics.get("groups/mixed") == 0, self.patience),
            "truncated": (metrics.get("completion_length/clipped", 0.0) > TRUNCATED, 3),
        }
        said = []
        for name, (seen, patience) in signs.items():
            self._held[name] = self._held.get(name, 0) + 1 if seen else 0
            if self._held[name] == patience:
                said.append(self._advice(name, metrics, patience))
        return said

    @staticmethod
    def _advice(name: str, metrics: Mapping[str, float], steps: int) -> str:
        if name == "equal":
            return (
                f"all rewards within every group were equal for {steps} steps (mean {metrics['reward/mean']:.3f}): there is nothing to "
                "learn from; try an easier or harder level, a larger group_size, a higher sampling.temperature, or a denser reward"
            )
        share = metrics["completion_length/clipped"]
        return (
            f"{share:.0%} of the completions reach sampling.max_new_tokens before they end: their answers are cut off; "
            "raise --max-new-tokens, or ask for shorter answers in the prompt"
        )
