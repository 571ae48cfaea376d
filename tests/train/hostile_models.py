"""Model folders as a stranger may hand them over: each entry changes a good tiny model, or a good adapter of one."""

import functools
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .fakes import write_gguf

Damage = Callable[[Path], Any]
LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
)
LISTS = (
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
)
BACKTRACKING = "([a-z._0-9]+)+!"


class Canary:
    """Pickled, it writes a file where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['GRPO_TEST_CANARY']}",)


def change(name: str, make: Callable[[bytes], bytes]) -> Damage:
    """Replace the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(make((folder / name).read_bytes()))


def edit(name: str, **changes: Any) -> Damage:
    return change(name, lambda data: json.dumps(json.loads(data) | changes).encode())


config, adapter, rules = (
    functools.partial(edit, name)
    for name in ("config.json", "adapter_config.json", "tokenizer.json")
)


def write(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def template(text: str) -> Damage:
    return write("chat_template.jinja", text)


def templates(texts: dict[str, str]) -> Damage:
    """Replace the template by several with names."""

    def damage(folder: Path) -> None:
        (folder / "chat_template.jinja").unlink()
        named = [{"name": name, "template": text} for name, text in texts.items()]
        edit("tokenizer_config.json", chat_template=named)(folder)

    return damage


def instead(name: str, make: Callable[[Path], Any]) -> Damage:
    """Put something else in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def sparse(path: Path, data: bytes, size: int) -> None:
    """Write a file; `size` bytes follow that take no room on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + size)


def header(tensors: Any, *, size: int = 0, length: int | None = None) -> Damage:
    """Replace the weights by a file of this header; as to `size` see `sparse`."""

    def damage(folder: Path) -> None:
        data = tensors.encode() if isinstance(tensors, str) else json.dumps(tensors).encode()
        start = struct.pack("<Q", len(data) if length is None else length)
        sparse(folder / "model.safetensors", start + data, size)

    return damage


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def index(content: Any) -> Damage:
    return write("model.safetensors.index.json", json.dumps(content))


def pickled(name: str, *, archived: bool = False) -> Damage:
    """Replace the weights by an object that runs code, in an archive of torch or as it is."""

    def damage(folder: Path) -> None:
        for path in folder.glob("*.safetensors"):
            path.unlink()
        if archived:
            torch.save({"w": Canary()}, folder / name)
        else:
            (folder / name).write_bytes(pickle.dumps({"w": Canary()}))

    return damage


def bomb(folder: Path) -> None:
    """Save weights with torch, compressed afterwards: 300 kB become 300 MB."""
    (folder / "model.safetensors").unlink()
    torch.save({"w": torch.zeros(75_000_000)}, folder / "plain.pt")
    target = zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(folder / "plain.pt") as plain, target as packed:
        for part in plain.namelist():
            packed.writestr(part, plain.read(part), compresslevel=1)
    (folder / "plain.pt").unlink()


DOUBLED = {"type": "Replace", "pattern": {"String": "q"}, "content": "qq"}


def split(pattern: str) -> dict[str, Any]:
    rule = {"type": "Split", "pattern": {"Regex": pattern}}
    return {**rule, "behavior": "Isolated", "invert": False}


def own_code(*, of_tokenizer: bool) -> Damage:
    def damage(folder: Path) -> None:
        canary = os.environ["GRPO_TEST_CANARY"]
        (folder / "own.py").write_text(f"open({canary!r}, 'w')\nclass Own: ...\n")
        if of_tokenizer:
            own = {"AutoTokenizer": ["own.Own", "own.Own"]}
            edit("tokenizer_config.json", tokenizer_class="Own", auto_map=own)(folder)
        else:
            own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
            config(model_type="own", auto_map=own)(folder)

    return damage


def adapts(name: Callable[[Path], Any]) -> Damage:
    return lambda folder: adapter(base_model_name_or_path=name(folder))(folder)


def adapts_adapter(folder: Path) -> None:
    shutil.copytree(folder, folder / "first")
    adapter(base_model_name_or_path=str(folder / "first"))(folder)


def emptied(folder: Path) -> Path:
    """Return the path of a GGUF file in a folder that has nothing else."""
    for path in folder.iterdir():
        path.unlink()
    return folder / "model.gguf"


def gguf(data: bytes, *, size: int = 0) -> Damage:
    return lambda folder: sparse(emptied(folder), data, size)


def gguf_start(tensors: int, settings: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, settings)


def gguf_setting(name: str, value: str) -> bytes:
    data = struct.pack("<Q", len(name)) + name.encode()
    return data + struct.pack("<IQ", 8, len(value)) + value.encode()


def gguf_layers(folder: Path) -> None:
    """Change a good GGUF file: it names ten million layers."""
    path, name = emptied(folder), b"llama.block_count"
    write_gguf(path)
    data = path.read_bytes()
    place = data.index(name) + len(name) + 4
    path.write_bytes(data[:place] + struct.pack("<I", 10**7) + data[place + 4 :])


MODELS: dict[str, Damage] = {
    # numbers of the config
    "ten million layers": config(num_hidden_layers=10**7),
    "a thousand layers that no file has": config(num_hidden_layers=1000),
    "layers under another name": config(model_type="gpt2", n_layer=10**7),
    "layers of a text model inside": config(model_type="gemma3", text_config={"num_hidden_layers": 10**8}),
    "layers in words": config(num_hidden_layers="many"),
    "a billion classes": config(num_labels=10**9),
    "a million experts": config(model_type="mixtral", num_local_experts=10**6),
    "a thousand layers of a thousand experts": config(model_type="mixtral", num_local_experts=1000, num_hidden_layers=1000),
    "negative size": config(hidden_size=-5),
    "size of a petabyte": config(hidden_size=10**12),
    "vocabulary of a terabyte": config(vocab_size=10**11),
    "weights that no file has": config(intermediate_size=4_000_000),
    "no heads": config(num_attention_heads=0),
    "a billion heads": config(num_attention_heads=10**9),
    "heads that divide nothing": config(num_attention_heads=3, num_key_value_heads=3),
    "positions in words": config(max_position_embeddings="long"),
    "positions of another architecture": config(model_type="gpt2", n_positions=2**20, n_embd=32, n_head=4, n_layer=2),
    "unknown activation": config(hidden_act="__import__('os')"),
    "unknown scaling": config(rope_scaling={"rope_type": ["x"], "factor": "y"}),
    "attention from the hub": config(attn_implementation="kernels-community/evil:run"),
    "attention from the hub inside": config(text_config={"_attn_implementation": "evil/repo"}),
    "unknown type": config(model_type="no-such-architecture"),
    "type is a list": config(model_type=["llama"]),
    "dtype is a path": config(dtype="os.system", torch_dtype="os.system"),
    "end token is an object": config(eos_token_id={"a": 1}),
    "end token is a text": edit("generation_config.json", eos_token_id="x"),
    # the files themselves
    "deep config": write("config.json", nested(100_000)),
    "no JSON": write("config.json", "{"),
    "no text": write("config.json", b"\xff\xfe\x00"),
    "config is a list": write("config.json", "[]"),
    "config of 20 MB": write("config.json", '{"a": "' + "x" * 20_000_000 + '"}'),
    "config is a pipe": instead("config.json", os.mkfifo),
    "generation config is a list": write("generation_config.json", "[1]"),
    "config is a folder": instead("config.json", os.mkdir),
    "weights are a folder": instead("model.safetensors", os.mkdir),
    "a pipe that nobody asked for": instead("added_tokens.json", os.mkfifo),
    "code for the config": own_code(of_tokenizer=False),
    "code for the tokenizer": own_code(of_tokenizer=True),
    "manifest that leads outside": write("manifest.json", json.dumps({"format": 2, "files": {"../../../dev/zero": "0"}})),
    "manifest is a list": write("manifest.json", "[]"),
    "manifest of a list": write("manifest.json", '{"format": 1, "files": [1]}'),
    # weights
    "garbage": write("model.safetensors", b"x" * 1000),
    "empty weights": write("model.safetensors", b""),
    "cut weights": change("model.safetensors", lambda data: data[:-1000]),
    "tensors that call themselves of another type": change("model.safetensors", lambda data: data.replace(b'"F32"', b'"F64"')),
    "endless header": header({}, length=2**62),
    "header of 100 MB": header("{" + " " * 99_999_000 + "}"),
    "deep header": header(nested(100_000)),
    "header is a list": header([]),
    "header without places": header({"w": {"dtype": "F32", "shape": [1]}}),
    "overflowing shape": header({"w": entry([2**40, 2**40], 0, 4)}, size=4),
    "negative shape": header({"w": entry([-1, 4], 0, 4)}, size=4),
    "a thousand axes": header({"w": entry([2**62] * 1000, 0, 4)}, size=4),
    "overlapping tensors": header({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, size=12),
    "unknown dtype": header({"w": entry([2], 0, 8, "EVIL")}, size=8),
    "a sparse terabyte": header({"model.embed_tokens.weight": entry([2**38], 0, 2**40)}, size=2**40),
    "a sparse gigabyte": header({"model.embed_tokens.weight": entry([2**28], 0, 2**30)}, size=2**30),
    "only another tensor": header({"w": entry([2], 0, 8)}, size=8),
    "weights are a device": instead("model.safetensors", lambda path: path.symlink_to("/dev/zero")),
    "index is a list": index([]),
    "index without files": index({"metadata": {}}),
    "index that leads outside": index({"weight_map": {"w": "../../../etc/passwd"}}),
    "index of an absolute path": index({"weight_map": {"w": "/dev/zero"}}),
    "pickle": pickled("pytorch_model.bin"),
    "pickle in an archive": pickled("pytorch_model.bin", archived=True),
    "compressed archive": bomb,
    "garbage for torch": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "garbage for GGUF": gguf(b"GGUF" + b"\xff" * 1000),
    "GGUF without an end": gguf(gguf_start(2**60, 2**60)),
    "GGUF of a trillion nothings": gguf(gguf_start(2**32, 1) + gguf_setting("general.architecture", "llama"), size=2**40),
    "GGUF with a long text": gguf(gguf_start(0, 1) + struct.pack("<Q", 2**40), size=2**41),
    "GGUF of ten million layers": gguf_layers,
    "GGUF of another kind": gguf(gguf_start(0, 1) + gguf_setting("general.architecture", "evil")),
    # the tokenizer
    "tokenizer is garbage": write("tokenizer.json", "{"),
    "tokenizer is a list": write("tokenizer.json", "[]"),
    "tokenizer without rules": write("tokenizer.json", "{}"),
    "tokenizer that pads to a billion": rules(padding={"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}),
    "tokenizer of a million added tokens": rules(added_tokens=[{"id": i, "content": f"<{i}>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False} for i in range(70_000)]),
    "tokenizer of endless numbers": rules(model={"type": "WordLevel", "vocab": {"a": 2**40}, "unk_token": "a"}),
    "tokenizer of 70 MB": write("tokenizer.json", " " * 70_000_000),
    "pattern that backtracks": rules(pre_tokenizer=split("(a+)+!|( +)+!|([0-9]+)+x")),
    "pattern that is none": rules(pre_tokenizer=split("(((")),
    "text that doubles 40 times": rules(normalizer={"type": "Sequence", "normalizers": [DOUBLED] * 40}),
    "text that grows a million times": rules(normalizer=DOUBLED | {"content": "q" * 10**6}),
    "decoder that doubles 40 times": rules(decoder={"type": "Sequence", "decoders": [DOUBLED] * 40}),
    "settings of the tokenizer are a list": write("tokenizer_config.json", "[]"),
    "end token of the tokenizer is a number": edit("tokenizer_config.json", eos_token=5),
    "end token of the tokenizer is an object": edit("tokenizer_config.json", eos_token={"x": []}),
    "added tokens are texts": edit("tokenizer_config.json", added_tokens_decoder={"x": "y"}),
    # chat templates
    "template of nested loops": template(LOOPS),
    "template of ten billion letters": template("{{ 'a' * 10**10 }}"),
    "template that pads": template("{{ 'a'.ljust(10**10) }}"),
    "template that formats": template("{{ '%10000000000d' % 1 }}"),
    "template of lists of lists": template(LISTS),
    "template of a long text": template("{% for i in range(99999) %}{{ 'a' * 999999 }}{% endfor %}"),
    "template of powers": template("{{ 10 ** (10 ** 10) }}"),
    "template that calls itself": template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "template that divides by 0": template("{{ 1 // 0 }}"),
    "template with an error": template("{% if %}"),
    "template that reaches for classes": template("{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "template that includes": template("{% include '/etc/passwd' %}"),
    "template that refuses in many lines": template("{{ raise_exception('a\\nb\\nTraceback') }}"),
    "template that is bad for one message": template("{% if messages[0].content == 'hi' %}" + LOOPS + "{% endif %}"),
    "template that fills memory for one message": template("{% if messages[0].content == 'hi' %}{{ 'a'.ljust(10**10) }}{% endif %}"),
    "template that writes nothing": template(""),
    "templates without a default": templates({"x": "y"}),
    "another template is a pipe": lambda folder: ((folder / "additional_chat_templates").mkdir(), os.mkfifo(folder / "additional_chat_templates" / "x.jinja")),
    "template in another way": templates({"default": LOOPS, "tool_use": ""}),
    "template that joins": template("{% set a = 'a' * 999999 %}{{ range(99999)|join(a) }}"),
    "template of a deep expression": template("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}"),
}  # fmt: skip
"""What is done to a model, by what it is."""

ADAPTERS: dict[str, Damage] = {
    "adapter is a pickle": pickled("adapter_model.bin"),
    "adapter is garbage": write("adapter_model.safetensors", b"x" * 100),
    "adapter config is not JSON": write("adapter_config.json", "{"),
    "adapter config is a list": write("adapter_config.json", "[]"),
    "adapter config is deep": write("adapter_config.json", nested(100_000)),
    "its base is itself": adapts(str),
    "its base is an adapter": adapts_adapter,
    "its base is a list": adapts(lambda folder: ["a"]),
    "its base is gone": adapts(lambda folder: str(folder / "gone")),
    "its base is an address": adapts(lambda folder: "https://127.0.0.1:1/model"),
    "its base is a device": adapts(lambda folder: "/dev/zero"),
    "its base has a NUL": adapts(lambda folder: "a\0b"),
    "its base has a long name": adapts(lambda folder: "/" + "a" * 5000),
    "its revision is a list": adapter(revision=["x"]),
    "rank of a billion": adapter(r=10**9),
    "rank that no file has": adapter(rank_pattern={"q_proj": 100_000}),
    "negative rank": adapter(r=-1),
    "rank in words": adapter(r="many"),
    "unknown kind": adapter(peft_type="EVIL"),
    "kind is a list": adapter(peft_type=["LORA"]),
    "prompt from a text": adapter(
        peft_type="PROMPT_TUNING", prompt_tuning_init="TEXT", prompt_tuning_init_text="x", num_virtual_tokens=8,
        tokenizer_name_or_path=".", tokenizer_kwargs={"trust_remote_code": True},
    ),
    "start of a billion rounds": adapter(init_lora_weights="pissa_niter_1000000000"),
    "adapters inside": adapter(peft_type="XLORA", adapters={"a": "b"}),
    "module to import": adapter(megatron_config={"a": 1}, megatron_core="megatron.evil"),
    "layers a billion times": adapter(layer_replication=[[0, 10**5]] * 10),
    "targets that backtrack": adapter(target_modules=BACKTRACKING),
    "exclusions that backtrack": adapter(exclude_modules=BACKTRACKING),
    "ranks that backtrack": adapter(rank_pattern={BACKTRACKING: 4}),
    "saved modules that backtrack": adapter(modules_to_save=[BACKTRACKING]),
    "targets that are no pattern": adapter(target_modules="((("),
    "targets that fit nothing": adapter(target_modules=["nowhere"]),
    "targets are a number": adapter(target_modules=5),
    "code for the tokenizer of the adapter": own_code(of_tokenizer=True),
    "tokenizer of the adapter is garbage": write("tokenizer.json", "{"),
    "template of the adapter loops": template(LOOPS),
}  # fmt: skip
"""What is done to an adapter, by what it is."""
