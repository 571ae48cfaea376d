"""Sources of models that need no network: a wheel with a tiny GGUF, a folder of such wheels as pip's index, a small hub."""

import hashlib
import http.server
import json
import threading
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import pre_tokenizers

from grpo_core.config.modelcache import Alias, Wheel

from .tiny import CHAT_TEMPLATE, SPECIAL, UNK, tiny_model

MEMBER = "grpo_tiny_model/tiny.Q4_1.gguf"


def write_gguf(path: Path) -> None:
    """The weights of `tiny_model` in Q4_1, as the published model has them, with a byte-level BPE vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [*SPECIAL, "<|endoftext|>", *alphabet, "ĠĠ", "ĠĠĠĠ"]
    model = tiny_model(vocab=len(letters))
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(len(letters))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(letters)
    writer.add_token_types([3 if letter.startswith("<|") else 1 for letter in letters])
    # transformers reads a list with a single entry as text until 5.16.
    writer.add_token_merges(["Ġ Ġ", "ĠĠ ĠĠ"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_unk_token_id(SPECIAL.index(UNK))
    writer.add_pad_token_id(config.pad_token_id)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in _gguf_weights(model).items():
        kind = GGMLQuantizationType.F32 if weight.ndim == 1 else GGMLQuantizationType.Q4_1
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_weights(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    weights = {}
    for name, tensor in model.named_parameters():
        array = tensor.detach().float().numpy()
        head_count = next((count for part, count in heads.items() if part in name), None)
        if head_count:  # GGUF interleaves the two halves that the rotary embedding turns
            halves = array.reshape(head_count, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        known = names.get_name(name, try_suffixes=(".weight",)) or name
        weights[known] = np.ascontiguousarray(array)
    return weights


def tiny_alias(index: Path, *, name: str = "tiny") -> Alias:
    """An alias whose wheel lies in `index`, a folder that pip can use as its index (PIP_FIND_LINKS)."""
    index.mkdir(parents=True, exist_ok=True)
    write_gguf(index / "tiny.gguf")
    wheel = index / "grpo_tiny_model-1.0-py3-none-any.whl"
    files = {
        "METADATA": "Metadata-Version: 2.1\nName: grpo-tiny-model\nVersion: 1.0\nRequires-Dist: grpo-not-there\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(index / "tiny.gguf", MEMBER)
        for file, text in files.items():
            archive.writestr(f"grpo_tiny_model-1.0.dist-info/{file}", text)
    data = wheel.read_bytes()
    known = hashlib.sha256(data).hexdigest(), len(data), MEMBER
    pinned = Wheel("grpo-tiny-model", "1.0", *known, digits_apart=True)
    return Alias(name, "grpo-core-tests/not-there", pinned, "a tiny model for tests")


class Hub:
    """The part of the hub's HTTP interface that downloads use, over `models`: "ORG/NAME" -> folder. It counts what it is asked."""

    COMMIT: ClassVar[str] = "c" * 40

    def __init__(self, models: dict[str, Path]) -> None:
        self.models = models
        self.requests: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append(self.path)
                self._send(*hub.answer(self.path))

            do_HEAD = do_GET

            def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for key, value in (headers | {"Content-Length": str(len(body))}).items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request."""
        parts = path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        rest = parts[2:] if api else parts
        folder = self.models.get("/".join(rest[:2]))
        if folder is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        files = {file.name: file for file in folder.iterdir()}
        if not api:
            data = files[rest[-1]].read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()}"'
            return 200, {"ETag": tag, "X-Repo-Commit": self.COMMIT}, data
        if "tree" in rest:
            return 200, {}, json.dumps([_entry(file) for file in files.values()]).encode()
        entries = [_entry(file) for file in files.values()]
        siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in entries]
        model = {"id": "/".join(rest[:2]), "sha": self.COMMIT, "siblings": siblings}
        return 200, {}, json.dumps(model).encode()


def _entry(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return {"type": "file", "path": file.name, "size": len(data), "oid": digest}
