"""Write the model of a run for other programs, and say what rounding costs of what was trained."""

from __future__ import annotations

from pathlib import Path

from grpo_core.api.runs import RunFolder, model_card
from grpo_core.cli.imports import needs_training
from grpo_core.cli.output import remark
from grpo_report.gguf_file import Precision, write_gguf


def write_weights(opened: RunFolder, path: Path, dtype: str) -> None:
    """Write the run's model with the adapter merged into its weights.

    Raises:
        MissingExtraError: a package of the extra "train" is not installed.
    """
    with needs_training("grpo export --weights"):
        from grpo_core.api.training import save_merged
    final = opened.path / "final"
    card = model_card(opened, final, location=str(path), merged=True)
    share = save_merged(final, path, dtype=dtype, card=card)
    remark(f"the model is in {path}{_rounded(share, dtype)}")


def write_gguf_file(opened: RunFolder, path: Path, dtype: str) -> None:
    """Write the same model as a GGUF file.

    Raises:
        MissingExtraError: a package of the extra "train" is not installed.
        UserError: the model is of a kind that is not written here.
    """
    with needs_training("grpo export --gguf"):
        from grpo_core.api.training import load_merged
    model, tokenizer, share = load_merged(opened.path / "final", dtype=dtype)
    precision: Precision = "float16" if dtype == "float16" else "float32"
    name = f"{opened.path.resolve().name} (grpo-core)"
    write_gguf(model, tokenizer, path, dtype=precision, name=name)
    remark(f"the model is in {path}{_rounded(share, dtype)}")


def _rounded(share: float | None, dtype: str) -> str:
    """Return what rounding did to what was trained; "" if it did next to nothing."""
    if share is None or share < 0.01:
        return ""
    return (
        f"; rounding to {dtype} changed its weights by {share:.0%} of what training changed, and "
        "--dtype float32 keeps all of it"
    )
