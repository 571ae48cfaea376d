"""Folders and recipes of strangers, from outside: whatever they name, nothing of it runs, is read or is asked for."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app

from .runs import finished_arithmetic

LETTERS = Path(__file__).parent / "letters.py"
ROWS = '{"question": "1 + 1", "answer": "2"}\n' * 3
Content = Mapping[str, Any]
"""Settings, in which EVIL, HERE, ROWS and ADDRESS stand for the places of the stranger's."""


@dataclass(frozen=True)
class Planted:
    """What a stranger can write: a run folder, and files beside it that leave a mark when they run."""

    folder: Path
    evil: str
    rows: str
    address: str


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an installed environment, by its user."""
    return finished_arithmetic(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def listener() -> Iterator[tuple[str, list[Any]]]:
    """An address of the stranger, and the connections that arrived there."""
    arrived = list[Any]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    arrived.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", arrived
    for connection, _ in arrived:
        connection.close()


@pytest.fixture
def planted(
    honest: Path, listener: tuple[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Planted:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    (tmp_path / "with\nbreak").mkdir()
    names = ("evil.py", "evil.reward.py", "with\nbreak/evil.py", "evil_module.py")
    for file in (tmp_path / name for name in names):
        file.write_text(
            f"{LETTERS.read_text()}\nopen({str(tmp_path / 'mark')!r}, 'a').close()\n"
            "def f(*given, **named): return 0.0\nJudge = Box = Place = Letters\n"
        )
    for name in ("link.py", "run/link.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "evil.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text(ROWS)
    shutil.copytree(honest, tmp_path / "run", dirs_exist_ok=True)
    return Planted(
        tmp_path / "run", str(tmp_path / "evil.py"), str(tmp_path / "rows.jsonl"), listener[0]
    )


def dataset(reward: str) -> Content:
    return {"environment": "dataset", "weights": {}, "env": {"path": "ROWS", "reward": reward}}


def mixture(**members: Content) -> Content:
    members["arithmetic"] = {}
    return {"environment": None, "env": {}, "weights": {}, "mixture": members}


def vllm(**settings: Any) -> Content:
    return {"sampler": {"name": "vllm", "settings": settings}}


def ray(part: str, **settings: Any) -> Content:
    placed = {"name": "ray", "settings": settings}
    return {"sampler": placed} if part == "sampler" else {"verify": {"executor": placed}}


def sandboxed(name: str, **settings: Any) -> Content:
    return {"environment": "sql", "env": {}, "sandbox": {"name": name, "settings": settings}}


def judged(name: str = "llm", **settings: Any) -> Content:
    """A run whose environment asks a judge."""
    judges = {"default": {"name": name, "settings": settings}}
    return {"environment": "fillin", "env": {}, "judges": judges}


EVAL, RESCORE, EXPORT = (
    ("eval", "--run", "RUN", "--tasks", "1", "--samples", "1"),
    ("rescore", "RUN"),
    ("export", "RUN", "--rollouts", "out.jsonl", "--split", "all", "--min-reward", "0"),
)
GENERATE, RESUME = ("generate", "--run", "RUN", "?"), ("run", "--resume", "UNFINISHED")
RECIPE, SFT = ("run", "--recipe", "JSON"), ("sft", "--recipe", "TOML", "--steps", "1")
KINDS: dict[str, tuple[tuple[str, ...], Content]] = {
    "a function whose name is no identifier": (RESCORE, dataset("EVIL:f-")),
    "a function without a name": (RESCORE, dataset("EVIL:")),
    "a path with a line break": (RESCORE, dataset("HERE/with\nbreak/evil.py:f")),
    "a function of an installed module": (RESCORE, dataset("builtins:eval")),
    "a function of the stranger's module": (RESCORE, dataset("evil_module:f")),
    "white space around a path": (RESCORE, dataset(" EVIL:f ")),
    "a file of two dots": (EVAL, dataset("HERE/evil.reward.py:f")),
    "a link to a file": (GENERATE, dataset("HERE/link.py:f")),
    "a link in the folder": (EXPORT, dataset("HERE/run/link.py:f")),
    "a path with a detour": (RESUME, dataset("HERE/run/../evil.py:f")),
    "an environment in a recipe": (RECIPE, {"environment": "EVIL:Letters"}),
    "an environment in a recipe in TOML": (SFT, {"environment": "EVIL:Answered"}),
    "an environment in a mixture": (RECIPE, mixture(**{"EVIL:Letters": {}})),
    "a function in a mixture": (
        RESUME,
        mixture(dataset={"env": {"path": "ROWS", "reward": "EVIL:f"}}),
    ),
    "an evaluated environment": (RESUME, {"eval": {"tasks": 1, "also": ["EVIL:Letters"]}}),
    "evaluated environments in one text": (RECIPE, {"eval": {"also": "arithmetic, EVIL:Letters"}}),
    "an estimator": (RESUME, {"advantage": {"name": "plugin:EVIL:f"}}),
    "a surrogate": (RESUME, {"loss": {"name": "plugin:EVIL:f"}}),
    "a tracker": (RESUME, {"log": {"trackers": ["plugin:EVIL:f"]}}),
    "trackers in one text": (RECIPE, {"log": {"trackers": "tensorboard,plugin:EVIL:f"}}),
    "a sampler": (RESUME, {"sampler": {"name": "EVIL:f"}}),
    "an executor": (RESCORE, {"verify": {"executor": {"name": "EVIL:Place"}}}),
    "a sandbox": (RESCORE, sandboxed("EVIL:Box")),
    "a judge": (EVAL, judged("EVIL:Judge")),
    "arguments of the sampler": (RESUME, vllm(args=["--trust-remote-code"])),
    "arguments of the sampler in one text": (RECIPE, vllm(args="--trust-remote-code")),
    "the program of the sampler": (RESUME, vllm(python="python3")),
    "a cluster for the sampler": (RESUME, ray("sampler", address="ADDRESS")),
    "a sampler in the sampler": (RESUME, ray("sampler", sampler="EVIL:f")),
    "a cluster for the verifiers": (RESCORE, ray("executor", address="ADDRESS")),
    "the address of a judge": (EVAL, judged(base_url="http://ADDRESS/v1")),
    "the address of a judge with a control": (EVAL, judged(base_url="\x01http://ADDRESS/v1")),
    "the key of a judge": (EVAL, judged(model="m", key="HF_TOKEN")),
    "a file that a judge writes": (EVAL, judged(model="m", cache="cache")),
    "fields that a judge is sent": (EVAL, judged(model="m", request={"store": True})),
    "variables for workers": (RESCORE, {"verify": {"worker_environment": ["HF_TOKEN"]}}),
    "variables for workers in one text": (RECIPE, {"verify": {"worker_environment": "HF_TOKEN"}}),
    "workers that see the trainer": (RESCORE, {"verify": {"namespace": "off"}}),
    "where agents are listened to": (
        RESUME,
        {"endpoint": {"name": "http", "settings": {"host": "0"}}},
    ),
    "an image": (RESCORE, sandboxed("docker", image="evil")),
    "code of a model": (RESUME, {"model": {"trust_remote_code": True}}),
    "a file that is read": (EVAL, {"environment": "gsm8k", "env": {"path": "/etc"}}),
    "a template that reaches objects": (
        RESCORE,
        {
            "environment": "dataset",
            "env": {"name": "d", "prompt": "{answer.__class__.__str__.__globals__}"},
        },
    ),
    "examples that are read": (SFT, {"sft": {"data": "ROWS"}}),
}


def merged(into: dict[str, Any], change: Content) -> dict[str, Any]:
    for key, value in change.items():
        inner = isinstance(value, Mapping) and isinstance(into.get(key), dict) and key != "env"
        into[key] = merged(dict(into[key]), value) if inner else value
    return into


def as_toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML, in inline tables."""

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{json.dumps(key)} = {text(item)}' for key, item in value.items())}}}"
        return json.dumps(value)

    return "".join(f"{key} = {text(value)}\n" for key, value in settings.items())


def command_of(kind: str, planted: Planted) -> list[str]:
    """Plant the folder or the recipe, and return the command that its victim types."""
    command, change = KINDS[kind]
    here = planted.folder.parent
    text = json.dumps(change)
    places = {"EVIL": planted.evil, "ROWS": planted.rows, "ADDRESS": planted.address, "HERE": here}
    for word, place in places.items():
        text = text.replace(word, json.dumps(str(place))[1:-1])
    changed = json.loads(text)
    path = planted.folder / "config.json"
    config = merged(json.loads(path.read_text()), changed)
    config.pop("digest", None)
    path.write_text(json.dumps(config))
    unfinished = here / "unfinished"
    shutil.copytree(planted.folder, unfinished, symlinks=True)
    shutil.rmtree(unfinished / "final")
    shutil.rmtree(unfinished / "checkpoints", ignore_errors=True)
    del config["provenance"]  # as if no run had written it
    (here / "recipe.json").write_text(json.dumps(config))
    recipe = {"environment": "arithmetic", "model": {"name": config["model"]["name"]}, **changed}
    (here / "recipe.toml").write_text(as_toml(recipe))
    files = {"RUN": "run", "UNFINISHED": "unfinished", "JSON": "recipe.json", "TOML": "recipe.toml"}
    return [str(here / files[word]) if word in files else word for word in command]


def assert_refused(status: int, output: str, planted: Planted, arrived: list[Any]) -> None:
    shown = " ".join(output.split())
    assert not (planted.folder.parent / "mark").exists(), shown
    assert (status, "add --trust" in shown) == (2, True), shown
    assert not arrived
    assert not (planted.folder.parent / "state").exists()  # nothing is remembered


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_stranger_names_is_neither_run_nor_reached(kind, planted, listener, monkeypatch):
    monkeypatch.chdir(planted.folder.parent)
    done = CliRunner().invoke(app, command_of(kind, planted))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert_refused(done.exit_code, done.output, planted, listener[1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_no_process_of_grpo_runs_or_reaches_what_a_stranger_names(kind, planted, listener):
    done = subprocess.run(
        [str(Path(sys.executable).with_name("grpo")), *command_of(kind, planted)],
        cwd=planted.folder.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert_refused(done.returncode, done.stdout + done.stderr, planted, listener[1])


@pytest.mark.parametrize(
    "command",
    [
        ("report", "RUN"),
        ("plot", "RUN"),
        ("compare", "RUN", "RUN"),
        ("eval", "--run", "RUN", "--recorded"),
        ("config", "show", "--recipe", "JSON"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_that_only_look_load_nothing_and_need_no_consent(
    command, planted, listener, monkeypatch
):
    everything: dict[str, Any] = {}
    for kind in ("a judge", "a sampler", "an executor", "a tracker", "an estimator", "a sandbox"):
        everything = merged(everything, KINDS[kind][1])
    everything["environment"] = "EVIL:Letters"
    monkeypatch.setitem(KINDS, "everything", (command, everything))
    monkeypatch.chdir(planted.folder.parent)
    done = CliRunner().invoke(app, command_of("everything", planted))
    assert done.exit_code == 0, done.output
    assert not (planted.folder.parent / "mark").exists()
    assert not listener[1]
    assert not (planted.folder.parent / "state").exists()
