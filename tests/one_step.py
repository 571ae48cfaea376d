"""Train a tiny model for one step with the `grpo` beside this Python, then sample from what it saved.

    python tests/one_step.py

Needs no network and no test package, so it shows whether the installed packages work together.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "train"))

from tiny import save_tiny

SETTINGS = ("prompts_per_step=2", "group_size=4", "sampling.max_new_tokens=8", "eval.tasks=2")


def main() -> None:
    grpo = str(Path(sys.executable).with_name("grpo"))
    with tempfile.TemporaryDirectory() as folder:
        model, run = save_tiny(Path(folder) / "model"), f"{folder}/run"
        settings = [part for setting in SETTINGS for part in ("--set", setting)]
        commands = (
            ["run", "--env", "arithmetic", "--model", str(model), "--steps", "1", *settings],
            ["generate", "--run", run, "1 + 1", "--max-new-tokens", "4"],
        )
        for command, more in zip(commands, (["--out", run], []), strict=True):
            subprocess.run([grpo, *command, *more], cwd=folder, check=True, timeout=600)


if __name__ == "__main__":
    main()
