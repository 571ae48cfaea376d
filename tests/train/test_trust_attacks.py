"""Folders and recipes of strangers, from outside: whatever they name, nothing of it runs, is read or is asked for."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.train.trainer import Trainer

from .tiny import save_tiny

LETTERS = Path(__file__).parent / "letters.py"
ROWS = '{"question": "1 + 1", "answer": "2"}\n' * 3
Change = Callable[["Planted"], Mapping[str, Any]]


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
    root = tmp_path_factory.mktemp("honest")
    settings = {
        "environment": "arithmetic",
        "model": {"name": str(save_tiny(root / "tiny")), "dtype": "float32"},
        "prompts_per_step": 2,
        "group_size": 2,
        "steps": 1,
        "eval": {"tasks": 2},
        "sampling": {"max_new_tokens": 3},
    }
    Trainer(build_config([settings]), folder=root / "run").run()
    return root / "run"


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


def dataset(reward: Callable[[Planted], str]) -> Change:
    return lambda planted: {
        "environment": "dataset",
        "weights": {},
        "env": {"path": planted.rows, "reward": reward(planted)},
    }


def mixture(member: Change) -> Change:
    return lambda planted: {
        "environment": None,
        "env": {},
        "weights": {},
        "mixture": {"arithmetic": {}, **member(planted)},
    }


def section(name: str, content: Callable[[Planted], Mapping[str, Any]]) -> Change:
    return lambda planted: {name: content(planted)}


def judged(settings: Callable[[Planted], Mapping[str, Any]], name: str = "llm") -> Change:
    """A run whose environment asks a judge."""
    return lambda planted: {
        "environment": "fillin",
        "env": {},
        "judges": {"default": {"name": name, "settings": settings(planted)}},
    }


EVAL, RESCORE, EXPORT = (
    ("eval", "--run", "RUN", "--tasks", "1", "--samples", "1"),
    ("rescore", "RUN"),
    ("export", "RUN", "--rollouts", "out.jsonl", "--split", "all", "--min-reward", "0"),
)
GENERATE, RESUME = ("generate", "--run", "RUN", "?"), ("run", "--resume", "UNFINISHED")
RECIPE, SFT = ("run", "--recipe", "JSON"), ("sft", "--recipe", "TOML", "--steps", "1")
KINDS: dict[str, tuple[tuple[str, ...], Change]] = {
    "a function whose name is no identifier": (RESCORE, dataset(lambda p: f"{p.evil}:f-")),
    "a function without a name": (RESCORE, dataset(lambda p: f"{p.evil}:")),
    "a path with a line break": (
        RESCORE,
        dataset(lambda p: f"{Path(p.evil).parent}/with\nbreak/evil.py:f"),
    ),
    "a function of an installed module": (RESCORE, dataset(lambda p: "builtins:eval")),
    "a function of the stranger's module": (RESCORE, dataset(lambda p: "evil_module:f")),
    "white space around a path": (RESCORE, dataset(lambda p: f" {p.evil}:f ")),
    "a file of two dots": (EVAL, dataset(lambda p: p.evil.replace("evil.py", "evil.reward.py:f"))),
    "a link to a file": (GENERATE, dataset(lambda p: p.evil.replace("evil.py", "link.py:f"))),
    "a link in the folder": (EXPORT, dataset(lambda p: f"{p.folder}/link.py:f")),
    "a path with a detour": (RESUME, dataset(lambda p: f"{p.folder}/../evil.py:f")),
    "an environment in a recipe": (RECIPE, lambda p: {"environment": f"{p.evil}:Letters"}),
    "an environment in a recipe in TOML": (SFT, lambda p: {"environment": f"{p.evil}:Answered"}),
    "an environment in a mixture": (RECIPE, mixture(lambda p: {f"{p.evil}:Letters": {}})),
    "a function in a mixture": (
        RESUME,
        mixture(lambda p: {"dataset": {"env": {"path": p.rows, "reward": f"{p.evil}:f"}}}),
    ),
    "an evaluated environment": (
        RESUME,
        section("eval", lambda p: {"tasks": 1, "also": [f"{p.evil}:Letters"]}),
    ),
    "evaluated environments in one text": (
        RECIPE,
        section("eval", lambda p: {"also": f"arithmetic, {p.evil}:Letters"}),
    ),
    "an estimator": (RESUME, section("advantage", lambda p: {"name": f"plugin:{p.evil}:f"})),
    "a surrogate": (RESUME, section("loss", lambda p: {"name": f"plugin:{p.evil}:f"})),
    "a tracker": (RESUME, section("log", lambda p: {"trackers": [f"plugin:{p.evil}:f"]})),
    "trackers in one text": (
        RECIPE,
        section("log", lambda p: {"trackers": f"tensorboard,plugin:{p.evil}:f"}),
    ),
    "a sampler": (RESUME, section("sampler", lambda p: {"name": f"{p.evil}:f"})),
    "an executor": (
        RESCORE,
        section("verify", lambda p: {"executor": {"name": f"{p.evil}:Place"}}),
    ),
    "a sandbox": (
        RESCORE,
        lambda p: {"environment": "sql", "env": {}, "sandbox": {"name": f"{p.evil}:Box"}},
    ),
    "a judge": (EVAL, judged(lambda p: {}, name="FILE.py:Judge")),
    "arguments of the sampler": (
        RESUME,
        section(
            "sampler", lambda p: {"name": "vllm", "settings": {"args": ["--trust-remote-code"]}}
        ),
    ),
    "arguments of the sampler in one text": (
        RECIPE,
        section("sampler", lambda p: {"name": "vllm", "settings": {"args": "--trust-remote-code"}}),
    ),
    "the program of the sampler": (
        RESUME,
        section("sampler", lambda p: {"name": "vllm", "settings": {"python": "python3"}}),
    ),
    "a cluster for the sampler": (
        RESUME,
        section("sampler", lambda p: {"name": "ray", "settings": {"address": p.address}}),
    ),
    "a sampler in the sampler": (
        RESUME,
        section("sampler", lambda p: {"name": "ray", "settings": {"sampler": f"{p.evil}:f"}}),
    ),
    "a cluster for the verifiers": (
        RESCORE,
        section(
            "verify",
            lambda p: {"executor": {"name": "ray", "settings": {"address": p.address}}},
        ),
    ),
    "the address of a judge": (EVAL, judged(lambda p: {"base_url": f"http://{p.address}/v1"})),
    "the address of a judge with a control": (
        EVAL,
        judged(lambda p: {"base_url": f"\x01http://{p.address}/v1"}),
    ),
    "the key of a judge": (EVAL, judged(lambda p: {"model": "m", "key": "HF_TOKEN"})),
    "a file that a judge writes": (EVAL, judged(lambda p: {"model": "m", "cache": "cache"})),
    "fields that a judge is sent": (
        EVAL,
        judged(lambda p: {"model": "m", "request": {"store": True}}),
    ),
    "variables for workers": (
        RESCORE,
        section("verify", lambda p: {"worker_environment": ["HF_TOKEN"]}),
    ),
    "variables for workers in one text": (
        RECIPE,
        section("verify", lambda p: {"worker_environment": "HF_TOKEN"}),
    ),
    "workers that see the trainer": (
        RESCORE,
        section("verify", lambda p: {"namespace": "off"}),
    ),
    "where agents are listened to": (
        RESUME,
        section("endpoint", lambda p: {"name": "http", "settings": {"host": "0"}}),
    ),
    "an image": (
        RESCORE,
        lambda p: {
            "environment": "sql",
            "env": {},
            "sandbox": {"name": "docker", "settings": {"image": "evil"}},
        },
    ),
    "code of a model": (RESUME, section("model", lambda p: {"trust_remote_code": True})),
    "a file that is read": (EVAL, lambda p: {"environment": "gsm8k", "env": {"path": "/etc"}}),
    "a template that reaches objects": (
        RESCORE,
        lambda p: {
            "environment": "dataset",
            "env": {"name": "d", "prompt": "{answer.__class__.__str__.__globals__}"},
        },
    ),
    "examples that are read": (
        ("sft", "--recipe", "TOML", "--steps", "1"),
        section("sft", lambda p: {"data": p.rows}),
    ),
}


def merged(into: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in change.items():
        into[key] = (
            merged(dict(into[key]), value)
            if isinstance(value, Mapping) and isinstance(into.get(key), dict) and key != "env"
            else value
        )
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
    changed = json.loads(
        json.dumps(change(planted)).replace("FILE.py", json.dumps(planted.evil)[1:-1])
    )
    path = planted.folder / "config.json"
    config = merged(json.loads(path.read_text()), changed)
    config.pop("digest", None)
    path.write_text(json.dumps(config))
    unfinished = planted.folder.with_name("unfinished")
    shutil.copytree(planted.folder, unfinished, symlinks=True)
    shutil.rmtree(unfinished / "final")
    shutil.rmtree(unfinished / "checkpoints", ignore_errors=True)
    del config["provenance"]  # as if no run had written it
    (planted.folder.parent / "recipe.json").write_text(json.dumps(config))
    (planted.folder.parent / "recipe.toml").write_text(
        as_toml(
            {"environment": "arithmetic", "model": {"name": config["model"]["name"]}, **changed}
        )
    )
    places = {
        "RUN": str(planted.folder),
        "UNFINISHED": str(unfinished),
        "JSON": str(planted.folder.parent / "recipe.json"),
        "TOML": str(planted.folder.parent / "recipe.toml"),
    }
    return [places.get(word, word) for word in command]


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


@pytest.mark.sampled(3)
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
    for kind in ("a judge", "a sampler", "an executor", "a tracker", "an estimator"):
        everything = merged(everything, KINDS[kind][1](planted))
    everything |= {
        "environment": f"{planted.evil}:Letters",
        "sandbox": {"name": f"{planted.evil}:Box"},
    }
    monkeypatch.setitem(KINDS, "everything", (command, lambda _: everything))
    monkeypatch.chdir(planted.folder.parent)
    done = CliRunner().invoke(app, command_of("everything", planted))
    assert done.exit_code == 0, done.output
    assert not (planted.folder.parent / "mark").exists()
    assert not listener[1]
    assert not (planted.folder.parent / "state").exists()
