"""What a model, a verifier, a judge, a plugin or a file wrote reaches no terminal, no pipe and no log raw, whatever the command."""

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
import yaml

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
SMALL = (
    "--steps 1 --set model.dtype=float32 --set prompts_per_step=2 --set group_size=2"
    " --set sampling.max_new_tokens=6 --set eval.tasks=2"
)
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
        self.run = folder / f"run {NAME}"
        self.pairs = folder / "pairs.jsonl"
        self.pairs.write_text(json.dumps({"better": EVIL, "worse": "fail"}) + "\n")
        self.server = Endpoint()
        self.server.reply = says_evil
        _install(folder, "evil", source)
        _install(folder, "broken", f"raise ValueError({EVIL!r})")

    def command(self, text: str) -> list[str]:
        """Return the words of a case, with what its names in capitals stand for in their places."""
        return [self._word(word) for word in words(text)]

    def _word(self, word: str) -> str:
        kind, _, name = word.partition("/")
        if kind == "NEW":
            return str(self.new(name))
        if kind == "FORGED":  # a copy of the run that somebody has changed
            copy = self.new("forged")
            shutil.copytree(self.run, copy)
            FORGERIES[name](copy)
            return str(copy)
        for place, text in self._texts().items():
            word = word.replace(place, text)
        return word

    def _texts(self) -> dict[str, str]:
        texts = {"FILE": self.file, "MODEL": self.model, "RUN": self.run, "PAIRS": self.pairs}
        return {
            **{place: str(path) for place, path in texts.items()},
            "URL": self.server.url,
            "NAME": NAME,
            "EVIL": EVIL.replace("\0", ""),
        }

    def new(self, name: str) -> Path:
        """Return a path that is not there."""
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


FORGERIES: dict[str, Callable[[Path], None]] = {"setting": add_setting, "damage": damage}


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
        command = made.command(f"run --env FILE:Bug --model MODEL {SMALL} --out RUN")
        shown = grpo(*command, terminal=True)
        assert shown.status == 0, shown.text
        check(shown)
        yield made
        made.server.close()
    for name in ("plugin_evil", "plugin_broken"):
        sys.modules.pop(name, None)


def check(shown: Shown, *, terminal: bool = True, seen: bool = True) -> None:
    assert_printable(shown.data, terminal=terminal)
    assert "Traceback" not in shown.text, shown.text
    is_seen = re.search(r"\\(x1b|u001b)\[5;35mCSI", shown.text)
    assert is_seen or not seen, shown.text  # else the case says nothing


NEW = ("env", "judge", "sandbox", "sampler", "executor", "algorithm", "tracker", "recipe")
"""What `grpo new` makes."""
AT_ENDPOINT = (
    "--env FILE:Bug --endpoint URL --tasks 2 --samples 2 --set verify.max_error_rate=1 --retries=0"
)
CASES: dict[str, list[str]] = {
    "run": [
        "--resume RUN --set steps=2",
        "--env 'nothing NAME'",
        "--env arithmetic --set NAME=1",
        "--recipe evil",
        "--NAME",
    ],
    "sft": [f"--env FILE:Bug --model MODEL --batch-size 2 {SMALL} --out NEW/sft"],
    "eval": [
        "--run RUN --tasks 2 --samples 2 --attempts NEW/attempts",
        "--run FORGED/setting",
        f"{AT_ENDPOINT} --model-name NAME --out NEW/evaluation",
        f"{AT_ENDPOINT} --model-name refused --out NEW/refused",
        f"{AT_ENDPOINT} --model-name busy --out NEW/busy",
    ],
    "rescore": ["RUN", "FORGED/setting"],
    "compare": ["RUN RUN", "RUN NAME"],
    "export": [
        "RUN --rollouts NEW/good --split all --min-reward 0",
        "FORGED/damage --rollouts NEW/good",
    ],
    "plot": ["RUN", "FORGED/damage", "NEW/nothing"],
    "report": ["RUN --out NEW/report", "FORGED/damage", "NEW/nothing"],
    "watch": ["FORGED/damage", "NEW/nothing --text"],
    "serve": ["no/modelNAME", "MODEL --host 1.2.3.4NAME", "MODEL --port=0 --socket RUN/no/NAME"],
    "generate": ["EVIL --run RUN --max-new-tokens 60 --temperature 1", "x --model no/modelNAME"],
    "envs": ["", "--json"],
    "plugins": ["", "--json", "broken --check"],
    "doctor": [""],
    "env new": ["word-sums --out NEW/package", "NAME"],
    **{f"new {kind}": ["word-sums --out NEW/package", "NAME"] for kind in NEW},
    "env show": ["FILE:Bug --reference", "evil --json --reference", "FILE:Long", "evil/EVIL"],
    "env score": [
        "FILE:Bug --answer -",
        "FILE:Bug --answer - --json",
        "FILE:Bug --answer - --set env.fail=true",
        "FILE:Bug --answer NEW/answer",
        "FILE:Caged --answer -",
    ],
    "env check": ["FILE:Bug --only verdict.form --only task.made --tasks 2"],
    "env export": ["FILE:Bug --to trl", "FILE:Bug --to trl --out NEW/train", "evil/EVIL --to trl"],
    "env card": ["FILE:Bug --tasks 2", "FILE:Bug --tasks 0 --markdown"],
    "env play": ["FILE:Bug"],
    "env probe": [
        "FILE:Bug --model MODEL --tasks 2 --samples 2 --level 0 --set sampling.max_new_tokens=6"
    ],
    "model pull": ["MODEL", "no/modelNAME"],
    "model list": [""],
    "config show": ["--env FILE:Bug --set env.text=NAME"],
    "config explain": ["NAME", "env.NAME --env FILE:Bug"],
    "config schema": [""],
    "judge check": ["PAIRS --judge evil"],
    "sandbox build": ["--name evil"],
    "sandbox check": ["--name evil"],
    "sandbox prune": ["--name evil"],
}
"""By command: its arguments, with names in capitals for what is hostile (see `Place.command`)."""
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


def test_every_command_has_a_case():
    assert set(commands(typer.main.get_command(app))) == set(CASES)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "terminal"),
    [(name, True) for name in CASES]
    + [
        pytest.param(name, False, marks=[pytest.mark.heavy] if name in SLOW else [])
        for name in CASES
        if name != "doctor"  # which loads every plugin in a process
    ],
)
def test_no_command_prints_hostile_text_raw(place, name, terminal):
    for case in CASES[name]:
        command = place.command(f"{name} {case}")
        shown = grpo(*command, terminal=terminal, stdin=STDIN)
        check(shown, terminal=terminal, seen=name not in UNSEEN)


def test_what_the_interpreter_and_libraries_say_is_printable(tmp_path):
    """Warnings, log records, exceptions of threads and destructors, and the traceback of a bug, in a process of its own."""
    script = tmp_path / "bug.py"
    script.write_text(BUG.format(evil=EVIL))
    command = [sys.executable, script, "model", "list"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert_printable(done.stdout + done.stderr, terminal=False)
    text = done.stderr.decode()
    for source in ("ValueError: a thread", "ValueError: a destructor", "RuntimeError: a bug"):
        assert rf"{source} \x1b[5;35mCSI" in text
    for source in ("UserWarning: a warning", "a record"):
        assert rf"{source} \x1b[5;35mCSI" in text


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


def test_the_files_of_a_run_can_be_shown(place):
    for name in words(
        "config.json cards.json metrics.jsonl rollouts.jsonl log.txt final/README.md"
    ):
        data = (place.run / name).read_bytes()
        # ensure_ascii leaves DEL, which terminals ignore
        assert_printable(data.replace(b"\x7f", b""), terminal=False)
        assert data
    card = (place.run / "final" / "README.md").read_text()
    head, _, rest = card.removeprefix("---\n").partition("\n---\n\n# ")
    assert set(yaml.safe_load(head)) == {"library_name", "pipeline_tag", "tags"}
    assert re.match(r"[^\n]+\n\n\* Base model: [^\n]+\n\* Trained: ", rest)
    assert r"\[bold red\]" in card
    assert any(EVIL in line["verdict"]["answer"] for line in RunFolder(place.run).rollout_lines())
