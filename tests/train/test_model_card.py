"""The card of trained weights, as the hub reads it, and the name of the base model that goes with them."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftConfig, get_peft_model

from grpo_core.config import modelcache
from grpo_core.config.settings import LoraConfig as LoraSettings
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.base import base_of, write_note
from grpo_core.engine.models.load import load_model, resolve
from grpo_core.engine.models.source import ModelSource
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.model_card import model_card

from .runs import finished_arithmetic
from .short_runs import grpo
from .tiny import save_tiny

FLOAT32 = {"dtype": torch.float32, "device": torch.device("cpu")}
COMMIT = "c" * 40
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_arithmetic(tmp_path_factory.mktemp("card"))


def pasted(card: str) -> str:
    """Run the code of a card, and return what it prints."""
    (code,) = (part.split("```")[0] for part in card.split("```python\n")[1:])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue()


def test_the_card_of_a_run_says_what_was_trained_measured_and_how_to_load_it(run: Path) -> None:
    text = (run / "final" / "README.md").read_text()
    data = ModelCard(text).data.to_dict()
    assert data["library_name"] == "peft"
    assert data["pipeline_tag"] == "text-generation"
    assert {"lora", "grpo", "grpo-core"} == set(data["tags"])
    assert "base_model" not in data, "a folder of this machine is none to link to"
    assert "# tiny trained on arithmetic by GRPO" in text
    assert "a LoRA adapter of rank 16, alpha 32, for 1 step\n" in text
    assert "Environment `arithmetic`: Sums of a few small integers" in text
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    before, after = (line["eval/reward/mean"] for line in metrics if "eval/reward/mean" in line)
    (row,) = (line for line in text.splitlines() if line.startswith("| reward |"))
    assert row.split(" | ")[1:3] == [f"{before:.3f}", f"{after:.3f}"]
    assert row.count("..") == 1
    assert row.endswith("| 2 |")
    assert pasted(text).strip(), "the code answers the first prompt"
    settings = text.split("```json\n")[1].split("```")[0]
    assert json.loads(settings) == RunFolder(run).config()
    assert text.index("<details>") < text.index('"group_size"') < text.index("</details>")


def test_merged_weights_have_a_card_whose_code_loads_them_without_the_base(
    run: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    grpo("export", copied, "--weights", tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    assert ModelCard(text).data.library_name == "transformers"
    assert "peft" not in text.split("## Settings")[0]
    assert "merged into the weights" in text
    assert "| reward |" in text
    assert pasted(text).strip()


def test_the_card_links_published_models_and_data_with_their_licence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = save_tiny(tmp_path / "hub" / "models--org--tiny" / "snapshots" / COMMIT)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    (snapshot / "README.md").write_text("---\nlicense: mit\n---\nlicense: other\n")
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    named = json.loads((copied / "final" / "adapter_config.json").read_text())
    named["base_model_name_or_path"] = "org/tiny"
    (copied / "final" / "adapter_config.json").write_text(json.dumps(named))
    config = json.loads((copied / "config.json").read_text())
    del config["digest"]
    config["env"]["name"] = "org/rows"
    (copied / "config.json").write_text(json.dumps(config))
    data = ModelCard(model_card(RunFolder(copied), copied / "final", location="me/mine")).data
    assert data.to_dict() == {
        "base_model": "org/tiny",
        "base_model_relation": "adapter",
        "datasets": ["org/rows"],
        "library_name": "peft",
        "license": "mit",
        "pipeline_tag": "text-generation",
        "tags": ["lora", "grpo", "grpo-core"],
    }


def test_the_citation_of_a_card_is_that_of_the_project(run: Path) -> None:
    text = (run / "final" / "README.md").read_text().split("```bibtex")[1]
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (author,) = (author["name"] for author in cff["authors"])
    for value in (cff["title"], cff["version"], cff["license"], author):
        assert f"{{{value}}}" in text


@pytest.mark.parametrize(
    ("path", "name", "revision"),
    [
        (f"hub/models--org--a-b/snapshots/{COMMIT}", "org/a-b", COMMIT),
        ("cache/models/smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", None),
        ("mine", "{place}/mine", None),
        ("hub/models--org--a-b/other", "{place}/hub/models--org--a-b/other", None),
    ],
)
def test_a_base_model_is_named_by_its_hub_id_and_never_by_a_folder_of_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, name: str, revision: str | None
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    folder = save_tiny(tmp_path / path)
    source = resolve(str(folder))
    assert base_of(source).name == name.format(place=tmp_path)
    model = add_adapter(load_model(source, **FLOAT32), LoraSettings(), source)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    config = PeftConfig.from_pretrained(tmp_path / "adapter")
    assert config.base_model_name_or_path == name.format(place=tmp_path)
    assert config.revision == revision


def test_an_adapter_that_goes_on_gets_the_name_of_its_base_anew(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    lora = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    first = get_peft_model(load_model(resolve(str(base)), **FLOAT32), lora)
    first.peft_config["default"].base_model_name_or_path = "/home/other/.cache/models/base"
    first.save_pretrained(tmp_path / "first", save_embedding_layers=False)
    source = ModelSource("first", str(base), adapter_path=str(tmp_path / "first"))
    goes_on = add_adapter(load_model(source, **FLOAT32), LoraSettings(), source)
    goes_on.save_pretrained(
        tmp_path / "second", selected_adapters=["default"], save_embedding_layers=False
    )
    assert resolve(str(tmp_path / "second")).path == str(base)


def test_an_adapter_of_converted_weights_is_loaded_on_them_and_not_on_the_ones_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from quantised ones, so that the sums would be others."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    alias = modelcache.ALIASES[modelcache.DEFAULT_MODEL]
    converted = save_tiny(tmp_path / "cache" / "models" / alias.name)
    note = {"requirement": alias.wheel.requirement, "sha256": alias.wheel.sha256}
    (converted / "source.json").write_text(json.dumps(note))
    source = resolve(str(converted))
    model = add_adapter(load_model(source, **FLOAT32), LoraSettings(), source)
    for folder in ("with", "without"):
        model.save_pretrained(tmp_path / folder, save_embedding_layers=False)
    write_note(base_of(source), tmp_path / "with")
    repo = tmp_path / "hub" / f"models--{alias.hub_id.replace('/', '--')}"
    save_tiny(repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert resolve(str(tmp_path / "with")).path == str(converted)
    assert resolve(str(tmp_path / "without")).path == alias.hub_id
