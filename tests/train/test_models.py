"""What `--model` accepts, what it refuses and in which words, and what is loaded."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from grpo_core.config import modelcache
from grpo_core.config.overrides import build_config
from grpo_core.engine.models import device as device_module
from grpo_core.engine.models.device import pick_device, pick_dtype
from grpo_core.engine.models.load import load_model, resolve, resolve_config
from grpo_core.engine.models.templates import end_token_ids
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.protocol.errors import UserError
from grpo_core.train import actor as actor_module

from .fakes import Hub, write_gguf
from .hostile_models import MODELS
from .tiny import END, SPECIAL, START, save_tiny, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")
FLOAT32 = {"dtype": torch.float32, "device": CPU}
HUB_SCRIPT = """
import os, sys, urllib.request, torch
from grpo_core.engine.models.load import load_model, resolve, resolve_config
from grpo_core.engine.models.source import local_folder
from grpo_core.engine.models.tokenizer import load_tokenizer
print(*sorted(os.listdir(local_folder(resolve_config("org/tiny@v1")))))
resolve("org/tiny@v1")
urllib.request.urlopen(sys.argv[1] + "/api/models/org/tiny/mark")
source = resolve("org/tiny@v1")
model = load_model(source, dtype=torch.float32, device=torch.device("cpu"))
print(source.path, source.revision, model.name_or_path, len(load_tokenizer(source)))
"""


@pytest.fixture
def hub(tiny_folder: Path) -> Iterator[Hub]:
    (tiny_folder / "modeling_own.py").write_text("")
    (tiny_folder / "pytorch_model.bin").write_bytes(b"not wanted where there are safetensors")
    server = Hub({"org/tiny": tiny_folder})
    yield server
    server.close()


def cached(hub_folder: Path, name: str) -> None:
    """Put a model into the hub's cache, as a download leaves it."""
    repo = hub_folder / f"models--{name.replace('/', '--')}"
    save_tiny(repo / "snapshots" / Hub.COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(Hub.COMMIT)


def test_a_folder_gives_the_weights_that_were_saved_in_it_and_prints_nothing(tiny_folder, capfd):
    capfd.readouterr()
    model = load_model(resolve(str(tiny_folder)), dtype=torch.float64, device=CPU)
    assert capfd.readouterr() == ("", "")
    expected = tiny_model(dtype=torch.float32).get_input_embeddings().weight.double()
    assert torch.equal(model.get_input_embeddings().weight, expected)
    assert not model.training


@pytest.mark.parametrize("as_file", [True, False])
def test_a_gguf_file_or_a_folder_with_one_is_a_model(tmp_path, as_file):
    write_gguf(tmp_path / "tiny.gguf")
    source = resolve(str(tmp_path / "tiny.gguf" if as_file else tmp_path))
    ids = load_tokenizer(source)("x 1", return_tensors="pt").input_ids
    assert load_model(source, **FLOAT32)(ids).logits.isfinite().all()


def test_an_adapter_folder_names_its_base_and_brings_its_own_tokenizer(tiny_folder, tmp_path):
    folder = tmp_path / "final"
    lora = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    base = load_model(resolve(str(tiny_folder)), **FLOAT32)
    get_peft_model(base, lora).save_pretrained(folder)
    tiny_tokenizer("abc").save_pretrained(folder)
    source = resolve(str(folder))
    assert (source.path, source.adapter_path) == (str(tiny_folder), str(folder))
    assert len(load_tokenizer(source)) == len(SPECIAL) + 3


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"notes.txt": "x"},
            r"is not a model folder: it has no config\.json and no model\.safetensors \(found: notes\.txt\)",
        ),
        ({"config.json": "{}"}, r"it has no model\.safetensors"),
        ({"a.gguf": "", "b.gguf": ""}, r"holds 2 GGUF files; name one of them: a\.gguf, b\.gguf"),
        (
            {"config.json": "{}", "checkpoints/x": ""},
            r"it is a run that is not finished; continue it with --resume ",
        ),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"w": "2.st"}}'},
            r"has no 2\.st",
        ),
        (
            {"adapter_config.json": '{"base_model_name_or_path": "/gone/model"}'},
            r"base model of the adapter .* is missing: the model folder '/gone/model' does not exist",
        ),
    ],
)
def test_a_folder_that_is_no_model_is_refused_with_what_it_lacks(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        resolve(str(tmp_path))


LACKING = "model.layers.1.mlp.up_proj.weight"


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[LACKING]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            MODELS["unknown type"],
            r"^model '.*' cannot be loaded: [^\n]*no-such-architecture[^\n]*$",
        ),
        # Instead of filled with random numbers.
        (without_a_tensor, f"lack 1 of its tensors, for example {LACKING}"),
        (
            MODELS["code for the config"],
            r"its own Python code; set model\.trust_remote_code=true if you trust its authors",
        ),
    ],
    ids=["unknown type", "a tensor is missing", "code of its own"],
)
def test_a_folder_that_cannot_be_loaded_says_why_and_runs_no_code(
    tiny_folder, tmp_path, monkeypatch, damage, message
):
    monkeypatch.setenv("GRPO_TEST_CANARY", str(tmp_path / "canary"))
    damage(tiny_folder)
    with pytest.raises(UserError, match=message):
        load_model(resolve(str(tiny_folder)), **FLOAT32)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2-135m", r"model 'smolm2-135m' is not known; did you mean 'smollm2-135m'\?"),
        (
            "Qwen2.5-0.5B-Instruct",
            r"^'Qwen2\.5-0\.5B-Instruct' is not a model: a hub id needs its organisation; "
            r"did you mean 'Qwen/Qwen2\.5-0\.5B-Instruct'\?$",
        ),
        ("gemma-3-1b-it@v2", r"did you mean 'google/gemma-3-1b-it@v2'\?"),
        ("Meta-Llama-3-8B", r"did you mean 'meta-llama/Meta-Llama-3-8B'\?"),
        ("DeepSeek-R1-Distill-Qwen-1.5B", r"did you mean 'deepseek-ai/DeepSeek-R1-Distill-Qwen"),
        ("gpt2", r"^model 'gpt2' is not cached and HF_HUB_OFFLINE is set"),
        ("org/Qwen2.5-0.5B", r"^model 'org/Qwen2\.5-0\.5B' is not cached"),
        ("./nowhere", r"the model folder './nowhere' does not exist; .* an alias: smollm2-135m"),
        ("a/b/c", r"the model folder 'a/b/c' does not exist"),
        (
            "org/name@",
            r"model folder 'org/name@' does not exist; pass a folder, a hub id ORG/NAME\[@REVISION",
        ),
        ("org/name@v2", r"'org/name@v2' is not cached and .* is set; unset it, or pass a model f"),
    ],
)
@pytest.mark.usefixtures("own_cache")
def test_a_name_that_leads_nowhere_is_refused_with_advice(name, message):
    with pytest.raises(UserError, match=message):
        resolve(name)


@pytest.mark.usefixtures("own_cache")
def test_a_cached_model_is_suggested_for_its_name_alone(tmp_path):
    cached(tmp_path / "hub", "someone/Qwen2.5-tiny")
    with pytest.raises(UserError, match=r"did you mean 'someone/Qwen2\.5-tiny'"):
        resolve("qwen2.5-tiny")


@pytest.mark.usefixtures("own_cache")
def test_a_hub_is_asked_and_one_that_does_not_know_the_model_or_is_dead_is_noticed(
    hub, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    with pytest.raises(UserError, match=r"did you mean 'Qwen/Qwen3-0\.6B'"):
        resolve("Qwen3-0.6B")
    with pytest.raises(UserError, match=r"did you mean 'Qwen/Qwen3-0\.6B'"):
        resolve_config("Qwen3-0.6B")
    assert any("Qwen3-0.6B" in request for request in hub.requests)
    with pytest.raises(UserError, match="the hub has no model 'org/other', or it is private"):
        resolve("org/other")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="'org/tiny' is not cached and the hub cannot be reached"):
        resolve("org/tiny")


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_hub_model_is_fetched_once_and_then_needs_no_network(hub):
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", HUB_SCRIPT, hub.url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    config_alone, line = done.stdout.splitlines()
    assert config_alone == "config.json generation_config.json"
    assert line.split() == ["org/tiny", "v1", "org/tiny", str(len(tiny_tokenizer()))]
    asked = [request.partition("?")[0] for request in hub.requests]
    # Neither the second resolve nor the loading asked the hub.
    assert asked[-1] == "/api/models/org/tiny/mark"
    assert not [path for path in asked if path.endswith((".py", ".bin"))]
    assert [model.name for model in modelcache.cached_models()] == ["org/tiny@v1"]


@pytest.mark.usefixtures("own_cache")
def test_a_cached_hub_model_is_used_when_a_newer_one_cannot_be_asked_for(tmp_path, capsys):
    cached(tmp_path / "hub", "org/tiny")
    assert resolve("org/tiny", refresh=True).path == "org/tiny"
    told = capsys.readouterr().err
    assert "The hub cannot be reached; the cached copy of org/tiny is used" in told


def test_end_tokens_come_from_every_place_that_names_one():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.generation_config.eos_token_id = [10, 11]
    model.config.eos_token_id = 12
    tokenizer.eos_token = "a"
    named = map(tokenizer.convert_tokens_to_ids, ("a", END))
    assert end_token_ids(model, tokenizer) == (10, 11, 12, *named)


def test_without_a_chat_template_the_end_of_a_turn_is_no_end_token():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    tokenizer.chat_template, tokenizer.eos_token = None, START
    assert end_token_ids(model, tokenizer) == (SPECIAL.index(START),)


def test_padding_falls_back_on_the_end_token(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(resolve(str(folder))).pad_token == END


@pytest.mark.parametrize("unit", ["amx_bf16", "avx512_bf16", "avx2"])
@pytest.mark.parametrize("bfloat16_seconds", [0.5, 2.0])
def test_auto_precision_on_a_cpu_is_bfloat16_only_where_products_are_faster_in_it(
    unit, bfloat16_seconds, monkeypatch
):
    seconds = {torch.bfloat16: bfloat16_seconds, torch.float32: 1.0}
    monkeypatch.setattr(device_module, "product_seconds", seconds.__getitem__)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: True})
    device_module._multiplies_faster.cache_clear()
    assert pick_dtype("float64", CPU) == torch.float64  # a named one is taken as it is
    faster = unit != "avx2" and bfloat16_seconds < 1
    assert pick_dtype("auto", CPU) == (torch.bfloat16 if faster else torch.float32)
    device_module._multiplies_faster.cache_clear()


def test_with_several_processes_the_first_one_picks_the_precision_of_all():
    class Second:
        size = 2

        def gather_values(self, value: str) -> list[str]:
            assert value in ("bfloat16", "float32")
            return ["float64", value]

    for named, picked in ((None, "float64"), ("bfloat16", "bfloat16")):
        model = {"model": {"dtype": named}} if named else {}
        config = build_config([{"environment": "arithmetic", **model}])
        assert actor_module._with_dtype(config, Second()).model.dtype == picked  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"), [("float16", "float16' overflows"), ("bfloat", "did you mean 'bfloat16'")]
)
def test_a_precision_that_cannot_work_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        pick_dtype(name, CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_asking_for_cuda_where_there_is_none_says_what_was_found():
    version = torch.__version__.replace("+", ".")
    with pytest.raises(UserError, match=f"device 'cuda' was asked for, but torch {version}"):
        pick_device("cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(UserError, match="did you mean 'cuda'"):
        pick_device("cudaa")
