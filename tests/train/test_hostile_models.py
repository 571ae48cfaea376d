"""Model and adapter folders from strangers: one line each, soon, in little memory; no code runs and nothing is asked."""

import builtins
import json
import shutil
import time
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.engine.models import guarded
from grpo_core.train.trainer import Trainer

from .hostile_models import ADAPTERS, LOOPS, MODELS, Damage
from .tiny import save_tiny, tiny_model, tiny_tokenizer

MOST_SECONDS = 20.0
MOST_BYTES = 500 * 2**20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def good_adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of the tiny model, with a tokenizer of its own, as a run leaves it."""
    folder = tmp_path_factory.mktemp("adapter") / "final"
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(tiny_model(), config).save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(base)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, whose files a stranger may change: nobody says how they were written."""
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = {"environment": "arithmetic", "model": {"name": str(base)}, "steps": 1}
    few = {"prompts_per_step": 1, "group_size": 2, "sampling": {"max_new_tokens": 4}}
    Trainer(build_config([settings, few, {"eval": {"tasks": 0}}]), folder=folder).run()
    (folder / "final" / "manifest.json").unlink()
    return folder


def resident() -> dict[str, int]:
    """The present and the largest resident memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("model", name) for name in MODELS), *(("adapter", name) for name in ADAPTERS)],
)
def test_a_folder_of_a_stranger_is_refused_in_one_line(
    kind, name, base, good_adapter, tmp_path, monkeypatch
):
    asked: list[object] = []
    canary, folder = tmp_path / "canary", tmp_path / "folder"
    monkeypatch.setenv("GRPO_TEST_CANARY", str(canary))
    monkeypatch.setattr(builtins, "input", lambda *question: asked.append(question) or "y")
    monkeypatch.setattr(guarded, "SECONDS", 1.5)
    shutil.copytree(base if kind == "model" else good_adapter, folder)
    damage: Damage = (MODELS if kind == "model" else ADAPTERS)[name]
    damage(folder)
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory starts anew
    before, started = resident()["VmRSS"], time.monotonic()
    done = CliRunner().invoke(
        app, ["generate", "hi", "--model", str(folder), "--max-new-tokens", "2"], input="y\ny\n"
    )
    seconds, taken = time.monotonic() - started, resident()["VmHWM"] - before
    errors = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert isinstance(done.exception, SystemExit), done.output
    assert (done.exit_code, len(errors)) == (2, 1), done.output
    assert done.output.splitlines()[-1] == errors[0], "the error is one line"
    assert len(errors[0]) < 1500
    assert not canary.exists()
    assert asked == []
    assert seconds < MOST_SECONDS
    assert taken < MOST_BYTES


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--env", "arithmetic", "--model", "MODEL", "--steps", "1"),
        ("eval", "--env", "arithmetic", "--model", "MODEL", "--tasks", "2"),
        ("serve", "MODEL", "--port", "0"),
        ("eval", "--run", "RUN"),
        ("generate", "hi", "--run", "RUN"),
        ("export", "RUN", "--weights", "OUT"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["targets that backtrack", "its base is itself", "adapter is a pickle"])  # fmt: skip
def test_every_command_that_takes_a_model_refuses_in_one_line(
    command, name, run_folder, good_adapter, tmp_path, monkeypatch
):
    monkeypatch.setenv("GRPO_TEST_CANARY", str(tmp_path / "canary"))
    monkeypatch.setattr(guarded, "SECONDS", 1.5)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_folder, tmp_path / "run")
    shutil.copytree(good_adapter, tmp_path / "adapter")
    ADAPTERS[name](tmp_path / "adapter")
    ADAPTERS[name](tmp_path / "run" / "final")
    places = {"MODEL": "adapter", "RUN": "run", "OUT": "out"}
    done = CliRunner().invoke(app, [places.get(word, word) for word in command])
    assert isinstance(done.exception, SystemExit), done.output
    assert done.exit_code == 2, done.output
    assert done.output.splitlines()[-1].startswith("error: "), done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "out").exists()


def test_models_of_strangers_in_the_cache_are_left_out_of_the_list(own_cache, base):
    for name in ("good", "list", "outside"):
        shutil.copytree(base, own_cache / "models" / name)
    MODELS["index is a list"](own_cache / "models" / "list")
    MODELS["index that leads outside"](own_cache / "models" / "outside")
    done = CliRunner().invoke(app, ["model", "list", "--json"])
    assert [model["name"] for model in json.loads(done.stdout)] == ["good"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["good", "pattern", "list of names", "links"])
def test_a_good_folder_loads_as_before(name, base, good_adapter, tmp_path):
    """A plain adapter, one whose targets are a pattern, as tools write them, and files that are links into a cache."""
    folder = tmp_path / "folder"
    shutil.copytree(base if name == "links" else good_adapter, folder)
    targets = {
        "pattern": r"(?:.*?(?:layers).*?(?:self_attn|mlp).*?(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*?)",
        "list of names": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    }  # fmt: skip
    if name in targets:
        settings = json.loads((folder / "adapter_config.json").read_text())
        settings["target_modules"] = targets[name]
        (folder / "adapter_config.json").write_text(json.dumps(settings))
    if name == "links":
        (tmp_path / "blobs").mkdir()
        for path in list(folder.iterdir()):
            path.rename(tmp_path / "blobs" / path.name)
            path.symlink_to(f"../blobs/{path.name}")
    expected = CliRunner().invoke(app, ["generate", "hi", "--model", str(base)])
    done = CliRunner().invoke(app, ["generate", "hi", "--model", str(folder)])
    assert (done.exit_code, expected.exit_code) == (0, 0), done.output
    assert done.stdout == expected.stdout


@pytest.mark.slow
def test_a_template_is_ended_at_its_deadline_and_the_next_one_is_rendered():
    started = time.monotonic()
    with pytest.raises(guarded.OverrunError, match="it had not ended after 8 seconds"):
        guarded.render(LOOPS, {})
    assert time.monotonic() - started < 15
    assert guarded.render("{{ a }}", {"a": "\ud800"}) == "\ud800"
