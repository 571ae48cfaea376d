"""A run in which a policy calls the two tools of an example server, in the format of a real chat template."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from grpo_core import Trainer, build_config
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.runs.folder import RunFolder

from ..train.samplers import Copyless
from ..train.tiny import tiny_model, tiny_tokenizer
from .mcp_servers import url  # noqa: F401 - a fixture

HERE = Path(__file__).parent
TEMPLATE = HERE.parent / "train" / "chat_templates" / "mistral_nemo.jinja"
TOKENS = ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")


class Scripted(Copyless):
    """Says what a policy of Mistral would: two calls at once, and then their sum; every other attempt adds 1."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def generate(self, request: Request) -> Completion:
        seen = self.tokenizer.decode(request.prefix)
        first = int(re.search(r"(\d) \+ 3\?", seen)[1])  # type: ignore[index]
        sums = re.findall(r'"content": (\d+), ', seen)
        calls = [
            {"name": "sum", "arguments": {"a": first, "b": 3}, "id": "abcdefghi"},
            {"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "123456789"},
        ]
        text = str(int(sums[0]) + request.seed % 2) if sums else f"[TOOL_CALLS]{json.dumps(calls)}"
        ids = (
            *self.tokenizer(text, add_special_tokens=False)["input_ids"],
            self.tokenizer.eos_token_id,
        )
        return Completion(ids, (-4.0,) * len(ids), "stop")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS])
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE.read_text(encoding="utf-8"), "</s>"
    tiny = tiny_model(dtype=None)  # type: ignore[arg-type]
    tiny.resize_token_embeddings(len(tokenizer))
    tiny.config.eos_token_id = tiny.generation_config.eos_token_id = tokenizer.eos_token_id
    tiny.config.max_position_embeddings = 4096
    tiny.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_a_run_calls_two_tools_of_an_example_server(model: Path, url: str, tmp_path: Path) -> None:  # noqa: F811
    config = build_config(
        [
            {
                "environment": f"{HERE / 'mcp_weather.py'}:Weather",
                "env": {"url": url},
                "model": {"name": str(model), "dtype": "float32"},
                "steps": 1,
                "prompts_per_step": 2,
                "group_size": 4,
                "eval": {"tasks": 0},
                "checkpoint": {"every": 0},
                "verify": {"cache": "off"},
            }
        ]
    )
    tokenizer = tiny_tokenizer().from_pretrained(model)
    Trainer(config, folder=tmp_path / "run", sampler=Scripted(tokenizer)).run()
    lines = list(RunFolder(tmp_path / "run").rollout_lines())
    assert len(lines) == 8
    for line in lines:
        call, total, weather, answer = line["messages"]
        assert [made["name"] for made in call["tool_calls"]] == ["sum", "get_weather"]
        assert call["content"].startswith("[TOOL_CALLS][{")  # the text with its special token
        assert weather == {"role": "tool", "content": "Weather in Oslo: 22degreesC"}
        assert line["verdict"]["error"] is None
        assert line["verdict"]["passed"] == (answer["content"] == total["content"])
    assert {line["verdict"]["passed"] for line in lines} == {True, False}
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]  # fmt: skip
    assert metrics[0]["grad_norm"] > 0
