"""Write the card of a trained model as the Hugging Face hub shows it.

The card begins with metadata in YAML, by which the hub links the base model and finds the licence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.calls.printable import plain_markdown
from grpo_core.config.modelcache import ALIASES, BASE_NOTE, cached_models
from grpo_core.figures.gains import Gain
from grpo_core.runs.documents import read_document
from grpo_core.runs.files import read_whole
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.gains import recorded_gains
from grpo_core.runs.lines import JsonObject, Kind, kind_of
from grpo_core.runs.loading_code import loading_code

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_LICENCE = re.compile(r"^license:[ \t]*[\"']?([\w.+-]+)[\"']?[ \t]*$", re.MULTILINE | re.ASCII)
_LICENCE_BYTES = 1 << 20
_LIMIT = 500
"""The most characters of a text of the run that the card repeats."""


@dataclass(frozen=True, slots=True)
class _Base:
    """Hold what is known of a base model."""

    name: str
    """A hub id, or a folder."""
    revision: str | None
    converted_from: str
    """The package that its weights were converted from; "" if they are the hub's."""

    @property
    def is_published(self) -> bool:
        """Return whether the name is a hub id."""
        return _HUB_ID.fullmatch(self.name) is not None and not Path(self.name).exists()


def model_card(
    run: RunFolder,
    saved: Path,
    *,
    location: str,
    merged: bool = False,
    gains: Mapping[str, Gain] | None = None,
) -> str:
    """Return the README.md of the trained weights of a run.

    Args:
        run: the folder of the run.
        saved: the folder that `policy.save` has written, final/ for example.
        location: where the weights can be loaded from: a folder, or a repository of the hub.
        merged: whether they are those of `saved` merged into the base model.
        gains: what the run gained on held-out tasks; None to read it from the log.

    Raises:
        ConfigError: the files of the run are damaged.
    """
    config = run.config()
    base = _base_of(config, saved)
    is_adapter = (saved / "adapter_config.json").is_file() and not merged
    if gains is None:
        gains = recorded_gains(run)[1]
    cards, masked = _object(run.path / "cards.json"), _is_masked(saved)
    title = f"{Path(base.name).name} trained on {_data(config)} by {_method(config)}"
    parts = [
        _metadata(config, base, is_adapter=is_adapter, masked=masked),
        f"# {plain_markdown(title, limit=_LIMIT)}",
        _summary(run, config, base, is_adapter=is_adapter),
        _about_data(config, cards),
        _measured(gains),
        "## How to load it\n\n```python\n"
        + loading_code(
            config,
            cards,
            location=location,
            masked=masked,
            adapted=(base.name, base.revision) if is_adapter else None,
        )
        + "```",
        "## Settings\n\n<details>\n<summary>All settings of the run</summary>\n\n"
        f"```json\n{json.dumps(config, indent=2)}\n```\n\n</details>",
        _citation(config),
    ]
    return "\n\n".join(parts) + "\n"


def _base_of(config: JsonObject, saved: Path) -> _Base:
    """Return the model that training began with."""
    name, revision = str(config["model"]["name"]), config["model"].get("revision")
    adapter, note = _object(saved / "adapter_config.json"), _object(saved / BASE_NOTE)
    if isinstance(adapter.get("base_model_name_or_path"), str):
        name, revision = adapter["base_model_name_or_path"], adapter.get("revision")
    elif name in ALIASES:
        name = ALIASES[name].hub_id
    repo, _, tag = name.partition("@")
    if tag and _HUB_ID.fullmatch(repo):
        name, revision = repo, tag
    return _Base(name, revision, str(note.get("requirement", "")))


def _object(path: Path) -> JsonObject:
    """Return the object in a JSON file; {} if there is none that can be read."""
    try:
        content = read_document(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_masked(saved: Path) -> bool:
    """Return whether the weights are those of a model that fills gaps."""
    adapter = _object(saved / "adapter_config.json")
    names = _object(saved / "config.json").get("architectures") or [""]
    return str(names[0]).endswith("ForMaskedLM") or (
        bool(adapter) and adapter.get("task_type") != "CAUSAL_LM"
    )


def _licence_of(base: _Base) -> str:
    """Return the licence of the base model as the hub names it; "" if it is not known here."""
    for alias in ALIASES.values():
        if alias.hub_id == base.name:
            return alias.license
    folder = next((each.path for each in cached_models() if each.name == base.name), base.name)
    try:
        text = read_whole(Path(folder) / "README.md", most_bytes=_LICENCE_BYTES).decode()
    except (OSError, ValueError):
        return ""
    head = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = _LICENCE.search(head)
    return found[1] if found else ""


def _metadata(config: JsonObject, base: _Base, *, is_adapter: bool, masked: bool) -> str:
    """Return the YAML at the head of the card."""
    lines = []
    if base.is_published:
        lines.append(f"base_model: {base.name}")
        lines.append(f"base_model_relation: {'adapter' if is_adapter else 'finetune'}")
    if datasets := _published_datasets(config):
        lines += ["datasets:", *(f"- {name}" for name in datasets)]
    lines.append(f"library_name: {'peft' if is_adapter else 'transformers'}")
    if licence := _licence_of(base):
        lines.append(f"license: {licence}")
    lines.append(f"pipeline_tag: {'fill-mask' if masked else 'text-generation'}")
    tags = [*(["lora"] if config["lora"]["enabled"] else []), config["method"], "grpo-core"]
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    return "\n".join(["---", *lines, "---"])


def _members(config: JsonObject) -> dict[str, JsonObject]:
    """Return the settings of each environment of the run, by its name."""
    members = {name: member.get("env", {}) for name, member in config.get("mixture", {}).items()}
    if config.get("environment") is not None:
        members[str(config["environment"])] = config.get("env", {})
    return members


def _published_datasets(config: JsonObject) -> list[str]:
    """Return the hub ids of datasets that the settings of environments name."""
    names = [str(settings.get("name", "")) for settings in _members(config).values()]
    return [name for name in dict.fromkeys(names) if _HUB_ID.fullmatch(name)]


def _method(config: JsonObject) -> str:
    return str(config["method"]).upper()


def _data(config: JsonObject) -> str:
    if config["method"] == "sft" and config["sft"]["data"] is not None:
        return "examples"
    return " and ".join(_members(config)) or "examples"


def _summary(run: RunFolder, config: JsonObject, base: _Base, *, is_adapter: bool) -> str:
    """Return what was trained, from what and for how long."""
    steps = (line["step"] for line in run.metric_lines() if kind_of(line) is Kind.STEP)
    done = max(steps, default=0)
    lora = config["lora"]
    if is_adapter:
        trained = f"a LoRA adapter of rank {lora['r']}, alpha {lora['alpha']:g}"
    elif lora["enabled"]:
        trained = f"a LoRA adapter of rank {lora['r']}, merged into the weights"
    else:
        trained = "all weights"
    name = plain_markdown(base.name, limit=_LIMIT)
    link = f"[{name}](https://huggingface.co/{base.name})" if base.is_published else f"{name}"
    revision = f" at revision {plain_markdown(base.revision)}" if base.revision else ""
    origin = (
        f", as converted from the package {plain_markdown(base.converted_from, limit=_LIMIT)}, so "
        "that its numbers differ a little from those of the hub"
        if base.converted_from
        else ""
    )
    version = config["provenance"].get("versions", {}).get("grpo-core", "")
    return (
        f"* Base model: {link}{revision}{origin}\n"
        f"* Trained: {trained}, for {done} step{'' if done == 1 else 's'}\n"
        f"* Method: {_method(config)}, with grpo-core {plain_markdown(version)}"
    )


def _about_data(config: JsonObject, cards: JsonObject) -> str:
    """Return what the run was trained on."""
    lines = []
    if config["method"] == "sft" and config["sft"]["data"] is not None:
        lines.append("* Examples from a file of prompts and completions")
    for name in _members(config):
        card = cards.get(name)
        summary = str(card.get("summary", "")) if isinstance(card, dict) else ""
        about = f": {plain_markdown(summary, limit=_LIMIT)}" if summary else ""
        lines.append(f"* Environment `{_code(name)}`{about}")
    for name in _published_datasets(config):
        lines.append(f"* Dataset [{name}](https://huggingface.co/datasets/{name})")
    return "\n".join(["## Data", "", *lines])


def _code(text: str) -> str:
    """Return a text for a span of code, which nothing in it can end."""
    return plain_markdown(text, limit=_LIMIT).replace("\\", "").replace("`", "'")


def _measured(gains: Mapping[str, Gain]) -> str:
    """Return the table of what was measured on held-out tasks before and after training."""
    if not gains:
        text = "No held-out tasks were scored both before and after training."
        return f"## What was measured\n\n{text}"
    rows = [
        f"| {plain_markdown(name, limit=_LIMIT)} | {gain.before:.3f} | {gain.after:.3f} | "
        f"{gain.mean:+.3f} | {gain.low:+.3f} .. {gain.high:+.3f} | {gain.tasks} |"
        for name, gain in gains.items()
    ]
    return "\n".join(
        [
            "## What was measured",
            "",
            "On held-out tasks, the same ones before and after training; the interval is that of "
            "the paired difference (Student's t over tasks).",
            "",
            "| held-out | before | after | gain | 95 % interval | tasks |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
        ]
    )


def _citation(config: JsonObject) -> str:
    """Return the reference to this program, as CITATION.cff has it."""
    version = plain_markdown(config["provenance"].get("versions", {}).get("grpo-core", ""))
    return (
        "## Citation\n\n```bibtex\n@software{grpo_core,\n  title = {grpo-core},\n"
        f"  author = {{{{The grpo-core developers}}}},\n  version = {{{version}}},\n"
        "  license = {Apache-2.0}\n}\n```"
    )
