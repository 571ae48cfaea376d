"""A run that is started from Python: what a script and a notebook show, how they are interrupted and go on, and one line that makes a trainer."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from grpo_core import ConfigError, Trainer, build_config
from grpo_core.config.short import OPTIONS, config_of
from grpo_core.runs.folder import RunFolder

from .letters import Letters
from .short_runs import tiny_settings

CLASS = """
from grpo_core import Environment, Message, Reward, Task, Trainer, Verdict

class Vowels(Environment[None]):
    max_new_tokens = 4
    levels = False

    def task(self, key):
        return Task(key, (Message("user", f"write vowels {key.index}"),), None)

    def verify(self, task, rollout):
        share = sum(letter in "aeiou" for letter in rollout.text) / max(1, len(rollout.text))
        return Verdict({"reward": Reward(share)}, passed=share == 1)
"""
QUICK = {
    "eval.tasks": 4,
    "alarms.enabled": False,
    "trainer.memory_check": "off",
    "checkpoint.every": 0,
}


def one_line(folder: Path, steps: int, *, name: str = "run", more: str = "") -> str:
    """Return a line of Python that makes a trainer of the class above."""
    return (
        f"trainer = Trainer(Vowels, model={str(folder / 'tiny')!r}, steps={steps}, group_size=4, "
        f"prompts_per_step=2, folder={str(folder / name)!r}, settings={QUICK!r}{more})"
    )


def start(folder: Path, body: str) -> "subprocess.Popen[str]":
    """Start a script that defines the class above and goes on with `body`."""
    script = folder / "script.py"
    script.write_text(f"{CLASS}\n{body}\n")
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def after_step(script: "subprocess.Popen[str]", step: int, number: int) -> tuple[int, str]:
    """Send a signal after a step; return the status, and all that was written to stderr."""
    assert script.stderr is not None
    lines = []
    for line in script.stderr:
        lines.append(line)
        if line.startswith(f"step {step}/"):
            script.send_signal(number)
            break
    _, rest = script.communicate(timeout=100)
    return script.returncode, "".join(lines) + rest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_settings(tmp_path)
    return tmp_path


def test_a_script_shows_what_the_command_shows_on_stderr_and_its_class_needs_no_module(folder):
    body = f"{one_line(folder, 2)}\nprint(sorted(trainer.run()), trainer.folder / 'final', f'{{trainer.folder}}')"
    out, err = start(folder, body).communicate(timeout=100)
    assert out == f"['pass_rate', 'reward'] {folder}/run/final {folder}/run\n"
    for shown in (
        "Vowels is judged in this process, as its class is in a notebook or script",
        f"Vowels: loading {folder}/tiny",
        f"writing to {folder}/run",
        "held-out after step 0: reward",
        "step 1/2  reward ",
        "step 2/2  reward ",
        "held-out after step 2: reward",
        "95 % interval",
        f"the trained adapter is in {folder}/run/final",
    ):
        assert err.count(shown) == 1, (shown, err)


@pytest.mark.slow
def test_a_quiet_run_shows_nothing(folder):
    out, err = start(
        folder, f"{one_line(folder, 1, more=', quiet=True')}\ntrainer.run()"
    ).communicate(timeout=100)
    assert (out, err) == ("", "")
    assert "the first lines" not in (folder / "run" / "log.txt").read_text()
    assert (folder / "run" / "final").is_dir()


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_is_one_keyboard_interrupt(folder):
    run = str(folder / "run")
    body = f"""
import os, sys
if os.path.exists({run!r}):
    trainer = Trainer.resumed({run!r}, Vowels(), changes={{"steps": int(open("steps").read())}})
else:
    {one_line(folder, 2000)}
trainer.run()
print(trainer.done)"""
    status, err = after_step(start(folder, body), 3, signal.SIGINT)
    assert status != 0
    assert err.count("Traceback") == 1
    assert err.count("stopping: finishing this step, then saving (again to leave at once)") == 1
    last = err.splitlines()[-1]
    done = int(
        re.search(
            r"KeyboardInterrupt: stopped after step (\d+) of 2000: SIGINT was received; saved", last
        )[1]
    )
    assert f"Trainer.resumed('{folder}/run').run()" in last
    (folder / "steps").write_text(str(done + 2))
    out, err = start(folder, body).communicate(timeout=100)
    assert out == f"{done + 2}\n"
    assert f"continuing {folder}/run after step {done} of {done + 2}" in err
    assert "step 1/" not in err


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once_by_one_traceback(folder):
    body = f"import time\nVowels.verify = lambda *_: time.sleep(30)\n{one_line(folder, 9)}\ntrainer.run()"
    script = start(folder, body.replace("'eval.tasks': 4", "'eval.tasks': 0"))
    lines = iter(script.stderr.readline, "")
    assert any(line.startswith("disk: ") for line in lines)
    time.sleep(1)  # the first attempts are judged now
    script.send_signal(signal.SIGINT)
    assert any(line.startswith("stopping: ") for line in lines)
    time.sleep(1.5)  # a second signal within a second may be the same key press
    script.send_signal(signal.SIGINT)
    _, err = script.communicate(timeout=20)
    assert err.count("Traceback") == 1
    assert (
        err.splitlines()[-1]
        == "KeyboardInterrupt: the run was left at once; its newest checkpoint is kept"
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_save_and_end_the_script_with_their_status(folder, number):
    body = f"{one_line(folder, 2000)}\ntrainer.run()\nprint('not reached')"
    status, err = after_step(start(folder, body), 3, number)
    assert status == 128 + number
    assert "Traceback" not in err
    assert list((folder / "run" / "checkpoints").glob("step-*"))
    assert "was received; saved" in err


@pytest.mark.slow
def test_handlers_that_somebody_else_has_set_stay(folder):
    body = f"""
import signal
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append('mine') or trainer.request_stop('asked'))
{one_line(folder, 2000)}
trainer.run()
print(heard, trainer.end.reason)"""
    script = start(folder, body)
    status, err = after_step(script, 2, signal.SIGTERM)
    assert status == 0, err
    assert "asked" in err


def run_cells(folder: Path, *sources: str, interrupt: int | None = None) -> list[Any]:
    """Run the cells of a notebook in a real kernel.

    interrupt: the cell that is interrupted after its third step; its error does not end the notebook.

    Returns:
        The cells with their outputs.
    """
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources]
    )
    client = NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(folder)}})
    with client.setup_kernel():
        for place, cell in enumerate(notebook.cells):
            if place != interrupt:
                client.execute_cell(cell, place)
                continue
            interrupter = threading.Thread(
                target=_interrupt_after, args=(client, cell, 3), daemon=True
            )
            interrupter.start()
            with pytest.raises(CellExecutionError):
                client.execute_cell(cell, place)
            interrupter.join(timeout=10)
    return notebook.cells


def _interrupt_after(client: NotebookClient, cell: Any, step: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if (found := re.search(r"step (\d+) of", shown(cell))) and int(found[1]) >= step:
            asyncio.run(client.km.interrupt_kernel())  # as a front end's button does
            return
        time.sleep(0.02)


def shown(cell: Any, kind: str = "text/plain") -> str:
    """Return what the outputs of a cell show in one form."""
    return "\n".join(output["data"].get(kind, "") for output in cell.outputs if "data" in output)


@pytest.mark.slow
def test_a_notebook_shows_a_bar_a_table_frames_and_pictures(folder):
    cells = run_cells(
        folder,
        f"{CLASS}\n{one_line(folder, 3)}\ngains = trainer.run()",
        "print(trainer.metrics().shape, list(trainer.metrics(evaluations=True)['step']), len(trainer.rollouts([1])))",
        "print([path.name for path in trainer.plot()])",
    )
    text, page = shown(cells[0]), shown(cells[0], "text/html")
    said = [output.text for output in cells[0].outputs if output.output_type == "stream"]
    assert not [
        text for text in said if "IProgress not found" not in text
    ]  # of tqdm, without widgets
    assert [output.output_type for output in cells[0].outputs].count("display_data") == 1
    assert '<progress value="3" max="3">' in page
    assert page.count("<tr>") == 5  # titles, before the first step, and three steps
    assert re.search(r"step +held-out reward +held-out pass +reward", text)
    assert re.search(r"\n +3 .*\n", text)
    assert "the trained adapter is in" in text
    assert "95 % interval" in page
    frames = cells[1].outputs[0].text
    assert re.match(r"\(3, \d+\) \[0, 3\] 8\n", frames), frames
    assert "training_curve.png" in cells[2].outputs[-1].text
    assert sum("image/png" in output.get("data", {}) for output in cells[2].outputs) >= 2


@pytest.mark.slow
def test_an_interrupted_cell_raises_once_ends_run_all_and_the_run_goes_on(folder):
    cells = run_cells(
        folder,
        CLASS,
        f"{one_line(folder, 300)}\ntrainer.run()",
        "print(trainer.done, list((trainer.folder / 'checkpoints').glob('step-*')) != [])",
        "done = trainer.done\ntrainer.resume\ntrainer.request_stop('enough') if trainer.done else None\ntrainer.run()\n"
        "print(trainer.done >= done, trainer.end.kind)",
        interrupt=1,
    )
    (error,) = [output for output in cells[1].outputs if output.output_type == "error"]
    assert error.ename == "KeyboardInterrupt"
    assert re.match(
        r"stopped after step \d+ of 300: SIGINT was received; saved step-\d+", error.evalue
    )
    assert "Call run() again to go on" in error.evalue
    assert "Traceback" not in "".join(error.traceback).split("KeyboardInterrupt", 2)[-1]
    assert "stopping: finishing this step, then saving" in shown(cells[1])
    done, has_checkpoint = cells[2].outputs[0].text.split()
    assert 3 <= int(done) < 300
    assert has_checkpoint == "True"


def test_one_line_makes_the_config_that_the_command_makes(folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"say {n}", "answer": str(n)}) + "\n" for n in range(8))
    )
    config, env = config_of(
        str(rows), {"reward": "number", "model": "m", "lr": 1e-4, "settings": {"kl.beta": 0.5}}
    )
    assert env is None
    assert (config.environment, config.env["path"], config.env["reward"]) == (
        "dataset",
        str(rows),
        ["number"],
    )
    assert (config.model.name, config.optimizer.lr, config.kl.beta) == ("m", 1e-4, 0.5)
    own, env = config_of(Letters, {"steps": 3})
    assert (own.environment, own.steps, type(env)) == ("Letters", 3, Letters)


@pytest.mark.slow
def test_a_function_of_a_script_rewards_rows(folder):
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"say {n}", "answer": str(n)}) + "\n" for n in range(40))
    )
    line = one_line(folder, 1).replace("Vowels,", "'rows.jsonl', reward=short,")
    script = start(
        folder,
        f"def short(text, row):\n    return 1 / (1 + len(text))\n{line}\ntrainer.run()\nprint(trainer.done)",
    )
    out, err = script.communicate(timeout=100)
    assert out == "1\n", err


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("arithmetic", {"step": 3}, "Trainer has no option 'step'; did you mean 'steps'?"),
        (
            build_config([{"environment": "arithmetic"}]),
            {"steps": 3},
            "steps: a config holds all settings",
        ),
        (3, {}, "and this is a int"),
        (Letters, {"reward": "number"}, "Letters has a verifier; remove it"),
        (
            "rows.jsonl",
            {"reward": lambda text, row: 1.0},
            "has no name at the top level of a module",
        ),
        ("arithmetic", {"settings": {"kl.bta": 1}}, "'kl.bta' is not known"),
    ],
)
def test_a_wrong_line_is_told_in_one_sentence(given, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Trainer(given, **options)


def test_the_options_are_those_of_the_command():
    from grpo_core.cli.given import Sets
    from grpo_core.cli.run import RunOptions

    flags = {
        name: mark.name
        for name, annotation in __import__("typing")
        .get_type_hints(RunOptions, include_extras=True)
        .items()
        for mark in getattr(annotation, "__metadata__", ())
        if isinstance(mark, Sets)
    }
    assert flags == OPTIONS


def test_a_run_folder_stands_for_its_path(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert (os.fspath(folder), str(folder), folder / "log.txt") == (
        f"{tmp_path}/run",
        f"{tmp_path}/run",
        tmp_path / "run" / "log.txt",
    )
    assert repr(folder) == f"RunFolder('{tmp_path}/run')"
