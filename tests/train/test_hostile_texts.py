"""What a model, a verifier, a judge, a plugin or a file wrote reaches no terminal, no pipe and no log raw, whatever the command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from grpo_core.cli.app import app
from grpo_core.runs.folder import RunFolder

from ..commandline import words
from ..plugins.endpoint import Endpoint
from .terminals import ESCAPES, EVIL, HALF, HIDDEN, Shown, assert_printable, grpo
from .tiny import SPECIAL, tiny_model, tiny_tokenizer

SOURCE = (Path(__file__).parent / "evil.py").read_text()
LETTERS = "".join(
    dict.fromkeys(f"{EVIL}{ESCAPES}{HIDDEN}[red]:bug%s{{}}0123456789abcdefghijklmnopqrstuvwxyz")
)
SMALL = [
    *(
        "--set=prompts_per_step=2",
        "--set=group_size=2",
        "--set=sampling.max_new_tokens=6",
        "--set=eval.tasks=2",
    ),
    "--set=model.dtype=float32",
]
NAME = "\x1b[5;35mCSI\x1b]0;T\x07\r\u202e\u200b[bold red]:bug:%s{}"
"""What can be in a file's name."""


class Place:
    """A folder with everything hostile in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / f"model {NAME}"
        model = tiny_model(vocab=len(SPECIAL) + len(LETTERS)).float()
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        model.save_pretrained(self.model)
        tiny_tokenizer(LETTERS).save_pretrained(self.model)
        self.file = folder / f"env {NAME}.py"
        source = SOURCE.replace('EVIL = HALF = ""', f"EVIL, HALF = {EVIL!r}, {HALF!r}")
        self.file.write_text(source)
        self.env = f"{self.file}:Bug"
        self.run = folder / f"run {NAME}"
        self.pairs = folder / "pairs.jsonl"
        self.pairs.write_text(json.dumps({"better": EVIL, "worse": "fail"}) + "\n")
        self.server = Endpoint()
        self.server.reply = says_evil
        _install(folder, "evil", source)
        _install(folder, "broken", f"raise ValueError({EVIL!r})")

    def at_endpoint(self, model: str) -> list[object]:
        """The options for a few attempts of a model behind an endpoint."""
        at = ["--endpoint", self.server.url, "--model-name", model, "--tasks", 2, "--samples", 2]
        return [*at, "--set", "verify.max_error_rate=1"]

    def forged(self, change: Callable[[Path], object]) -> Path:
        """A copy of the run that somebody has changed."""
        copy = self.new("forged")
        shutil.copytree(self.run, copy)
        change(copy)
        return copy

    def new(self, name: str) -> Path:
        """A path that is not there."""
        path = self.folder / f"{name} {NAME}"
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True) if path.is_file() else None
        return path


def says_evil(asked: dict[str, Any]) -> Any:
    """An answer, a refusal or a failure that says what should reach no terminal."""
    status = {"refused": 401, "busy": 503}.get(asked["model"])
    return EVIL + HALF if status is None else (status, {"error": {"message": EVIL + HALF}})


def add_setting(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {EVIL: EVIL}))


def damage(folder: Path) -> None:
    for name in ("rollouts.jsonl", "metrics.jsonl"):
        (folder / name).write_bytes(b'{"\x1b[5;35mCSI": \xff}\n')


def _install(folder: Path, name: str, source: str) -> None:
    info = folder / f"grpo_env_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: grpo-env-{name}\nVersion: 1.0\nLicense: {NAME.replace(chr(13), '')}\n"
    )
    (info / "entry_points.txt").write_text(f"[grpo]\n{name} = plugin_{name}\n")
    (folder / f"plugin_{name}.py").write_text(source)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        patch.setenv("GRPO_CACHE", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        made = Place(folder)
        shown = grpo(
            "run",
            "--env",
            made.env,
            "--model",
            made.model,
            "--steps",
            "1",
            *SMALL,
            "--out",
            made.run,
            terminal=True,
        )
        assert shown.status == 0, shown.text
        check(shown)
        yield made
        made.server.close()
    for name in ("plugin_evil", "plugin_broken"):
        sys.modules.pop(name, None)


def check(shown: Shown, *, terminal: bool = True, seen: bool = True) -> None:
    assert_printable(shown.data, terminal=terminal)
    assert "Traceback" not in shown.text, shown.text
    assert not seen or re.search(r"\\(x1b|u001b)\[5;35mCSI", shown.text), (
        shown.text
    )  # else the case says nothing


Case = Callable[[Place], list[object]]
NEW = ("env", "judge", "sandbox", "sampler", "executor", "algorithm", "tracker", "recipe")
"""What `grpo new` makes."""
CASES: dict[str, list[Case]] = {
    "run": [
        lambda p: ["run", "--resume", p.run, "--set", "steps=2"],
        lambda p: ["run", "--env", f"nothing {NAME}"],
        lambda p: ["run", "--env", "arithmetic", "--set", f"{NAME}=1"],
        lambda p: ["run", "--recipe", "evil"],
        lambda p: ["run", f"--{NAME}"],
    ],
    "sft": [
        lambda p: [
            "sft",
            "--env",
            p.env,
            "--model",
            p.model,
            "--steps",
            "1",
            "--batch-size",
            "2",
            *SMALL,
            "--out",
            p.new("sft"),
        ]
    ],
    "eval": [
        lambda p: [
            "eval",
            "--run",
            p.run,
            *words("--tasks 2 --samples 2 --attempts"),
            p.new("attempts"),
        ],
        lambda p: ["eval", "--run", p.forged(add_setting)],
        lambda p: ["eval", "--env", p.env, *p.at_endpoint(NAME), "--out", p.new("evaluation")],
        lambda p: ["eval", "--env", p.env, *p.at_endpoint("refused"), "--out", p.new("refused")],
        lambda p: [
            "eval",
            "--env",
            p.env,
            *p.at_endpoint("busy"),
            "--retries=0",
            "--out",
            p.new("b"),
        ],
    ],
    "rescore": [lambda p: ["rescore", p.run], lambda p: ["rescore", p.forged(add_setting)]],
    "compare": [lambda p: ["compare", p.run, p.run], lambda p: ["compare", p.run, NAME]],
    "export": [
        lambda p: [
            "export",
            p.run,
            "--rollouts",
            p.new("good"),
            "--split",
            "all",
            "--min-reward",
            "0",
        ],
        lambda p: ["export", p.forged(damage), "--rollouts", p.new("good")],
    ],
    "plot": [
        lambda p: ["plot", p.run],
        lambda p: ["plot", p.forged(damage)],
        lambda p: ["plot", p.new("nothing")],
    ],
    "report": [
        lambda p: ["report", p.run, "--out", p.new(f"report{NAME}".replace("\0", ""))],
        lambda p: ["report", p.forged(damage)],
        lambda p: ["report", p.new("nothing")],
    ],
    "watch": [
        lambda p: ["watch", p.forged(damage)],
        lambda p: ["watch", p.new(f"no{NAME}"), "--text"],
    ],
    "serve": [
        lambda p: ["serve", f"no/model{NAME}"],
        lambda p: ["serve", p.model, "--host", f"1.2.3.4{NAME}"],
        lambda p: ["serve", p.model, "--port=0", "--socket", p.new(f"no/{NAME}")],
    ],
    "generate": [
        lambda p: [
            "generate",
            EVIL.replace("\0", ""),
            "--run",
            p.run,
            "--max-new-tokens",
            "60",
            "--temperature",
            "1",
        ],
        lambda p: ["generate", "x", "--model", f"no/model{NAME}"],
    ],
    "envs": [lambda p: ["envs"], lambda p: ["envs", "--json"]],
    "plugins": [
        lambda p: ["plugins"],
        lambda p: ["plugins", "--json"],
        lambda p: ["plugins", "broken", "--check"],
    ],
    "doctor": [lambda p: ["doctor"]],
    "env new": [
        lambda p: ["env", "new", "word-sums", "--out", p.new("package")],
        lambda p: ["env", "new", NAME],
    ],
    **{
        f"new {kind}": [
            lambda p, kind=kind: ["new", kind, "word-sums", "--out", p.new("package")],
            lambda p, kind=kind: ["new", kind, NAME],
        ]
        for kind in NEW
    },
    "env show": [
        lambda p: ["env", "show", p.env, "--reference"],
        lambda p: ["env", "show", "evil", "--json", "--reference"],
        lambda p: ["env", "show", f"{p.file}:Long"],
        lambda p: ["env", "show", f"evil/{EVIL}".replace("\0", "")],
    ],
    "env score": [
        lambda p: ["env", "score", p.env, "--answer", "-"],
        lambda p: ["env", "score", p.env, "--answer", "-", "--json"],
        lambda p: ["env", "score", p.env, "--answer", "-", "--set", "env.fail=true"],
        lambda p: ["env", "score", p.env, "--answer", p.new("answer")],
        lambda p: ["env", "score", f"{p.file}:Caged", "--answer", "-"],
    ],
    "env check": [
        lambda p: [
            "env",
            "check",
            p.env,
            *words("--only verdict.form --only task.made --tasks 2"),
        ]
    ],
    "env export": [
        lambda p: ["env", "export", p.env, "--to", "trl"],
        lambda p: ["env", "export", p.env, "--to", "trl", "--out", p.new("train")],
        lambda p: ["env", "export", f"evil/{EVIL}".replace("\0", ""), "--to", "trl"],
    ],
    "env card": [
        lambda p: ["env", "card", p.env, "--tasks", "2"],
        lambda p: ["env", "card", p.env, "--tasks", "0", "--markdown"],
    ],
    "env play": [lambda p: ["env", "play", p.env]],
    "env probe": [
        lambda p: [
            "env",
            "probe",
            p.env,
            "--model",
            p.model,
            *words("--tasks 2 --samples 2 --level 0"),
            *SMALL[2:3],
        ]
    ],
    "model pull": [
        lambda p: ["model", "pull", p.model],
        lambda p: ["model", "pull", f"no/model{NAME}"],
    ],
    "model list": [lambda p: ["model", "list"]],
    "config show": [lambda p: ["config", "show", "--env", p.env, "--set", f"env.text={NAME}"]],
    "config explain": [
        lambda p: ["config", "explain", NAME],
        lambda p: ["config", "explain", f"env.{NAME}", "--env", p.env],
    ],
    "config schema": [lambda p: ["config", "schema"]],
    "judge check": [lambda p: ["judge", "check", p.pairs, "--judge", "evil"]],
    "sandbox build": [lambda p: ["sandbox", "build", "--name", "evil"]],
    "sandbox check": [lambda p: ["sandbox", "check", "--name", "evil"]],
    "sandbox prune": [lambda p: ["sandbox", "prune", "--name", "evil"]],
}
UNSEEN = {"doctor", "model list", "config schema", "env new", *(f"new {kind}" for kind in NEW)}
"""Commands of which one case shows nothing of others."""

STDIN = f"crash {EVIL}\n.\nlong\n.\nx\n.\n:{NAME}\n:reference\n:next\n:quit\n".replace("\0", "")


def commands(group: Any, prefix: str = "") -> Iterator[str]:
    """The commands of a group and of the groups in it."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name


SLOW = ("run", "sft", "plot", "env check")
"""Commands that the default run tries with a terminal only."""


def test_every_command_has_a_case() -> None:
    assert set(commands(typer.main.get_command(app))) == set(CASES)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("name", "terminal"),
    [(name, True) for name in CASES]
    + [
        pytest.param(name, False, marks=[pytest.mark.heavy] if name in SLOW else [])
        for name in CASES
        if name != "doctor"  # which loads every plugin in a process
    ],
)
def test_no_command_prints_hostile_text_raw(place: Place, name: str, terminal: bool) -> None:
    for case in CASES[name]:
        shown = grpo(*map(str, case(place)), terminal=terminal, stdin=STDIN)
        check(shown, terminal=terminal, seen=name not in UNSEEN)


def test_what_the_interpreter_and_libraries_say_is_printable(tmp_path: Path) -> None:
    """Warnings, log records, exceptions of threads and destructors, and the traceback of a bug, in a process of its own."""
    script = tmp_path / "bug.py"
    script.write_text(BUG.format(evil=EVIL))
    done = subprocess.run(
        [sys.executable, script, "model", "list"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert_printable(done.stdout + done.stderr, terminal=False)
    text = done.stderr.decode()
    for word in (
        "UserWarning: a warning",
        "a record",
        "ValueError: a thread",
        "ValueError: a destructor",
        "RuntimeError: a bug",
    ):
        assert rf"{word} \x1b[5;35mCSI" in text


BUG = """
import logging, threading, warnings
from grpo_core.cli import main, model
EVIL = {evil!r}

def thread():
    raise ValueError("a thread " + EVIL)

class Destroyed:
    def __del__(self):
        raise ValueError("a destructor " + EVIL)

def cached_models():
    warnings.warn("a warning " + EVIL)
    logging.getLogger("other").error("a record " + EVIL)
    started = threading.Thread(target=thread)
    started.start()
    started.join()
    Destroyed()
    raise RuntimeError("a bug " + EVIL)

model.cached_models = cached_models
main()
"""


def test_the_files_of_a_run_can_be_shown(place: Place) -> None:
    names = [
        "config.json",
        "cards.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "log.txt",
        "final/README.md",
    ]
    for name in names:
        data = (place.run / name).read_bytes()
        assert_printable(
            data.replace(b"\x7f", b""), terminal=False
        )  # ensure_ascii leaves DEL, which terminals ignore
        assert data
    card = (place.run / "final" / "README.md").read_text()
    assert re.match(
        r"---\nlibrary_name: peft\ntags: \[grpo, grpo-core\]\n---\n\n# [^\n]+\n\nTrained with", card
    )
    assert r"\[bold red\]" in card
    assert any(EVIL in line["verdict"]["answer"] for line in RunFolder(place.run).rollout_lines())
