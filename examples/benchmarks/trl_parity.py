"""Compare loss and gradient of grpo-core's update with those of TRL's GRPOTrainer, in float64.

    python3 -m venv TRL && TRL/bin/pip install torch==2.13.0 'trl==1.16.*'
    python examples/benchmarks/trl_parity.py --python TRL/bin/python

Both train the same tiny random model on the same completions and rewards: TRL with its trainer in a
process of its own, grpo-core with its own functions from verdicts to optimizer steps. After each
step both get the same prepared weights, so that later steps are as far off-policy as wanted and no
difference adds up. A setting is "equal" if losses and gradients of all steps differ by at most
1e-6. Where the two are known to differ, the difference itself is predicted, and TRL has to compute
what is predicted. Exits with 1 if a setting differs otherwise, or changes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from parity_batch import BUDGET, GROUP, ROWS, Batch, changed, make_batch, make_model
from parity_float64 import Weights, compute_in_float64, set_weights
from parity_ours import Ours
from parity_settings import PREDICTIONS, Result, Setting, read_settings

HERE = Path(__file__).parent
SETTINGS = read_settings()
COMMON = {
    "loss_type": "grpo",
    "beta": 0.0,
    "use_bias_correction_kl": False,
    "num_generations": GROUP,
    "max_completion_length": BUDGET,
    "max_grad_norm": 0.0,
}
"""What TRL has in all settings that do not say otherwise."""
VERSION = "1.16"
SHOWS = 1e-3
"""Least relative difference of the gradients of settings that have to be unlike."""
EQUAL = 1e-6
"""Largest relative difference of what counts as equal."""
LEAST_LOSS = 0.01
"""Differences of smaller losses are relative to this: some are 0 on-policy."""


def main() -> None:
    """Compare all settings, and exit with 1 if one is not explained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python",
        required=True,
        help=f"Python of the environment in which TRL {VERSION} is installed",
    )
    options = parser.parse_args()
    if found := other_than_trl(options.python):
        parser.error(
            f"{options.python} {found}; make an environment for it: python3 -m venv TRL && "
            f"TRL/bin/pip install torch==2.13.0 'trl=={VERSION}.*', then --python TRL/bin/python"
        )
    compute_in_float64()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, weights = make_model(folder / "model")
        set_weights(model, weights[0])
        batch = make_batch(model)
        theirs = trl_results(options.python, folder, weights, batch)
        ours = Ours(folder / "model", weights, batch)
        failed = report(ours, theirs, batch)
    if failed:
        sys.exit(f"not explained: {', '.join(failed)}")


def other_than_trl(python: str) -> str:
    """Return what is wrong with a Python that has to have TRL; "" if nothing is."""
    asked = "from importlib.metadata import version; print(version('trl'))"
    try:
        answer = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"cannot be started ({error.strerror})"
    if answer.returncode:
        return f"has no TRL {VERSION}"
    found = answer.stdout.strip()
    return "" if found.startswith(f"{VERSION}.") else f"has TRL {found}, not {VERSION}"


def trl_results(
    python: str, folder: Path, weights: list[Weights], batch: Batch
) -> dict[str, Result]:
    """Let TRL compute all settings, and return its results by their names."""
    torch.save(weights, folder / "weights.pt")
    jobs = {setting.name: job(setting, batch) for setting in SETTINGS}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [python, str(HERE / "trl_parity_side.py"), str(folder)]
    side = subprocess.run(command, capture_output=True, text=True, check=False)
    if side.returncode:
        sys.exit(f"TRL's process failed:\n{side.stderr[-3000:]}")
    return {name: Result(**fields) for name, fields in torch.load(folder / "trl.pt").items()}


def job(setting: Setting, batch: Batch) -> dict[str, Any]:
    """Return what trl_parity_side.py has to know of a setting."""
    passes = ROWS // setting.micro
    return {
        "batch": changed(batch, setting.change).for_trl(),
        "moves": None if setting.own_steps else setting.visited,
        "own_head": setting.own_head,
        "sampled_elsewhere": "loss.tis_cap" in setting.ours,
        "trl": {
            **COMMON,
            "per_device_train_batch_size": setting.micro,
            "gradient_accumulation_steps": passes // setting.minibatches,
            "steps_per_generation": passes,
            "num_iterations": setting.updates // setting.minibatches,
            "max_steps": setting.updates,
            **setting.trl,
        },
    }


def report(ours: Ours, theirs: Mapping[str, Result], batch: Batch) -> list[str]:
    """Print a table of all settings, and return the names of those that are not explained."""
    print(
        "| setting | grpo-core | TRL | steps | loss | TRL's loss | Δ loss | Δ gradient | result |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    failed = []
    by_name = {setting.name: setting for setting in SETTINGS}
    for setting in SETTINGS:
        mine, found = ours(setting), theirs[setting.name]
        verdict = judged(setting, mine, found, ours, batch)
        if setting.unlike and gradient_difference(mine, ours(by_name[setting.unlike])) < SHOWS:
            verdict = f"changes nothing: as {setting.unlike!r}"
        if not verdict.startswith(("equal", "predicted")):
            failed.append(setting.name)
        cells = (
            setting.name,
            shown(setting.ours),
            shown(setting.trl),
            str(setting.updates),
            f"{round(mine.losses[-1], 6) + 0.0:.6f}",
            f"{round(found.losses[-1], 6) + 0.0:.6f}",
            f"{loss_difference(mine, found):.0e}",
            f"{gradient_difference(mine, found):.0e}",
            verdict,
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return failed


def judged(setting: Setting, mine: Result, found: Result, ours: Ours, batch: Batch) -> str:
    """Return whether the results are equal, or differ as predicted."""
    if not setting.predict:
        return "equal" if difference(mine, found) <= EQUAL else "DIFFERS"
    predict = PREDICTIONS[setting.predict]
    predicted = predict(setting, changed(batch, setting.change), ours)
    left = difference(predicted, found)
    if left <= EQUAL:
        return f"predicted ({left:.0e}): {setting.why}"
    return f"DIFFERS by {left:.0e} from what is predicted: {setting.why}"


def shown(settings: Mapping[str, Any]) -> str:
    """Return settings as a cell of the table."""
    return ", ".join(f"`{name}={value}`" for name, value in settings.items())


def difference(one: Result, other: Result) -> float:
    """Return the largest relative difference of losses and gradients."""
    return largest([loss_difference(one, other), gradient_difference(one, other)])


def loss_difference(one: Result, other: Result) -> float:
    """Return the largest relative difference of the losses of an optimizer step."""
    return largest(
        [
            abs(a - b) / max(abs(a), abs(b), LEAST_LOSS)
            for a, b in zip(one.losses, other.losses, strict=True)
        ]
    )


def gradient_difference(one: Result, other: Result) -> float:
    """Return the largest difference of a parameter's gradients, relative to the whole gradient.

    Where the optimizers move the weights, the changes of the weights count, too.
    """
    pairs = list(zip(one.gradients, other.gradients, strict=False))
    if one.change and other.change:
        pairs.append((one.change, other.change))
    return largest([float((a[name] - b[name]).norm() / norm(b)) for a, b in pairs for name in a])


def norm(gradient: Weights) -> torch.Tensor:
    """Return the norm of all parameters together."""
    return torch.stack([tensor.norm() for tensor in gradient.values()]).norm()


def largest(values: list[float]) -> float:
    """Return the largest value, or NaN if there is one, which `max` may pass over."""
    return float(torch.tensor(values, dtype=torch.float64).max())


if __name__ == "__main__":
    main()
