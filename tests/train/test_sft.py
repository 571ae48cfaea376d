"""The warm start: the loss of supervised fine-tuning, from references or a file, in a run folder that resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from grpo_core import (
    AgentEnvironment,
    Environment,
    Episode,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.models.adapter import adapted_layers
from grpo_core.train.rollout.examples import Example, read_examples
from grpo_core.train.trainer import Trainer

from ..commandline import words
from .arrange import tiny_policy
from .killing import killed
from .letters import Answered, Letters
from .tiny import save_tiny, tiny_tokenizer


class Chosen(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def sft(settings: dict[str, Any], **more: Any) -> Any:
    return build_config(
        [
            settings,
            {"method": "sft", "steps": 4, "eval": {"tasks": 4}, "sft": {"batch_size": 4}, **more},
        ]
    )


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def logged(folder: Path, name: str) -> list[float]:
    return [line[name] for line in read_lines(folder / "metrics.jsonl") if name in line]


def test_the_loss_is_the_mean_cross_entropy_of_the_answers_tokens(settings, tmp_path):
    """Beside that of torch over each whole row, prompts left out, the end token included."""
    rows = [("name a letter:", "abc"), ("name a letter:", "b"), ("another one, please:", "zzzzzz")]
    data = written(tmp_path / "rows.jsonl", [{"prompt": p, "completion": c} for p, c in rows])
    policy = tiny_policy()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for prompt, answer in rows:
        ids, more = (
            policy.tokenizer(prompt)["input_ids"],
            [*policy.tokenizer(answer)["input_ids"], policy.tokenizer.eos_token_id],
        )
        logits = policy.model(torch.tensor([[*ids, *more]])).logits[0, len(ids) - 1 : -1]
        total, count = (
            total + torch.nn.functional.cross_entropy(logits, torch.tensor(more), reduction="sum"),
            count + len(more),
        )
    (total / count).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for _, p in policy.trainable()))
    config = sft(
        settings,
        environment=None,
        steps=1,
        sft={"data": data, "batch_size": 3},
        sampling={"temperature": 0.5},
    )
    Trainer(config, policy=tiny_policy(), folder=tmp_path / "run").run()
    assert logged(tmp_path / "run", "loss") == pytest.approx([total.item() / count], rel=1e-9)
    assert logged(tmp_path / "run", "grad_norm") == pytest.approx([norm], rel=1e-9)
    assert logged(tmp_path / "run", "tokens/trained") == [count]


class Asked(Environment[str]):
    """Asks for a letter twice; an episode that has opened says so first."""

    max_turns = 2
    max_new_tokens = 4
    trusted = True
    replayable = True

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, "name a letter:", "b")

    def episode(self, task: Task[str]) -> Episode:
        return Questions()

    def reference(self, task: Task[str]) -> Sequence[str]:
        return ("abc", "zz")


class Questions(Episode):
    async def open(self) -> Sequence[Message]:
        return (Message("user", "now!"),)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        return (Message("user", f"more than {messages[-1].content}:"),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        return Verdict({"reward": Reward(0.0)})


def test_each_turn_of_a_reference_is_learned_after_what_was_said_before_it(settings, tmp_path):
    """Equal to the loss on the same turns from a file."""
    rows = [("name a letter:now!", "abc"), ("name a letter:now!abcmore than abc:", "zz")]
    data = written(tmp_path / "rows.jsonl", [{"prompt": p, "completion": c} for p, c in rows])
    from_file = sft(settings, environment=None, steps=1, sft={"data": data, "batch_size": 2})
    Trainer(from_file, policy=tiny_policy(), folder=tmp_path / "file").run()
    config = sft(settings, steps=1, sft={"batch_size": 1}, eval={"tasks": 0})
    Trainer(config, Asked(), policy=tiny_policy(), folder=tmp_path / "run").run()
    for name in ("examples", "tokens/trained", "loss", "grad_norm"):
        assert logged(tmp_path / "run", name) == logged(tmp_path / "file", name)
    assert logged(tmp_path / "run", "examples") == [2]


class AsksAgain(AgentEnvironment[str]):
    """Has an agent that asks twice, with a history of its own."""

    max_turns = 2
    max_new_tokens = 4
    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, "name a letter:", "b")

    async def agent(self, task: Task[str], client: Any) -> str:
        said = await client.completions.create(model="policy", prompt=f"{task.prompt}now!")
        prompt = f"more than {said.choices[0].text}:"
        return str((await client.completions.create(model="policy", prompt=prompt)).choices[0].text)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return Verdict({"reward": Reward(0.0)})

    def reference(self, task: Task[str]) -> Sequence[str]:
        return ("abc", "zz")


def test_each_request_of_an_agent_is_learned_with_its_turn_of_the_reference(settings, tmp_path):
    rows = [("name a letter:now!", "abc"), ("more than abc:", "zz")]
    data = written(tmp_path / "rows.jsonl", [{"prompt": p, "completion": c} for p, c in rows])
    from_file = sft(settings, environment=None, steps=1, sft={"data": data, "batch_size": 2})
    Trainer(from_file, policy=tiny_policy(), folder=tmp_path / "file").run()
    config = sft(settings, steps=1, sft={"batch_size": 1}, eval={"tasks": 0})
    Trainer(config, AsksAgain(), policy=tiny_policy(), folder=tmp_path / "run").run()
    for name in ("examples", "tokens/trained", "loss", "grad_norm"):
        assert logged(tmp_path / "run", name) == logged(tmp_path / "file", name)


def test_references_are_learned_and_the_held_out_gain_is_told(settings, tmp_path):
    config = sft(settings, steps=30, optimizer={"lr": 0.02}, eval={"tasks": 8})
    gains = Trainer(config, Answered(), folder=tmp_path / "run").run()
    losses = logged(tmp_path / "run", "loss")
    assert losses[-1] < 0.2 < losses[0]
    assert gains["reward"].mean > 0.5
    assert (tmp_path / "run" / "final" / "adapter_config.json").exists()
    assert "by SFT" in (tmp_path / "run" / "final" / "README.md").read_text()


@pytest.mark.parametrize("source", ["references", "file"])
def test_a_warm_start_that_was_killed_goes_on_as_if_nothing_had_happened(
    settings, tmp_path, source
):
    """To the bit, dropout included."""
    rows = [{"prompt": f"row {i}:", "completion": "abc" * (i % 3 + 1)} for i in range(7)]
    more = {
        "sft": {
            "batch_size": 4,
            **({"data": written(tmp_path / "rows.jsonl", rows)} if source == "file" else {}),
        }
    }
    config = sft(
        settings, steps=6, lora={"dropout": 0.3}, checkpoint={"every": 2}, eval={"tasks": 0}, **more
    )

    Trainer(config, Answered(), folder=tmp_path / "whole").run()
    with killed(tmp_path / "killed", step=3) as observer:
        Trainer(config, Answered(), folder=tmp_path / "killed", observer=observer).run()
    resumed = Trainer.resumed(tmp_path / "killed", Answered())
    assert resumed.done == 2
    resumed.run()
    for name in ("loss", "grad_norm"):
        assert logged(tmp_path / "killed", name) == logged(tmp_path / "whole", name)
    assert len(set(logged(tmp_path / "whole", "loss"))) == 6


def test_dropout_acts_in_a_warm_start_and_nowhere_else(settings, tmp_path):
    losses = []
    for dropout in (0.0, 0.5):
        folder = tmp_path / str(dropout)
        Trainer(
            sft(settings, lora={"dropout": dropout}, eval={"tasks": 0}), Answered(), folder=folder
        ).run()
        losses.append(logged(folder, "loss"))
    assert losses[0][0] == losses[1][0], "the adapter starts as nothing, with dropout or without"
    assert losses[0][1:] != losses[1][1:]
    with pytest.raises(ConfigError, match=r"lora\.dropout is for `grpo sft` only"):
        build_config([settings, {"lora": {"dropout": 0.1}}])


def test_what_the_base_model_itself_would_drop_out_stays(settings, tmp_path):
    """A model with dropouts of its own, beside an adapter that drops out nothing to speak of."""
    rates = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=2, n_head=4, **rates
        )
    )
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    settings = {**settings, "model": {"name": str(tmp_path / "gpt2"), "dtype": "float32"}}
    losses = []
    for dropout in (0.0, 1e-9):
        folder = tmp_path / str(dropout)
        Trainer(
            sft(settings, lora={"dropout": dropout}, eval={"tasks": 0}), Answered(), folder=folder
        ).run()
        losses.append(logged(folder, "loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    "only",
    [
        {"eval": {"tasks": 4, "every": 2, "also": ["letters"]}},
        {"mixture": {"letters": {"share": 0}}},
    ],
)
def test_a_file_alone_is_trained_on_and_an_environment_only_measures(settings, tmp_path, only):
    """Its held-out reward is then that of the run, which stop rules and the best weights go by."""
    data = written(
        tmp_path / "rows.jsonl",
        [{"prompt": f"letters {i}:", "completion": "aaaa"} for i in range(6)],
    )
    more = {
        "environment": None,
        "steps": 6,
        "eval": {"tasks": 4, "every": 2},
        "stop": {"patience": 1},
        "optimizer": {"lr": 0.0},
        **only,
    }
    trainer = Trainer(
        sft(settings, sft={"data": data, "batch_size": 3}, **more),
        {"letters": Letters()},
        folder=tmp_path / "run",
    )
    assert trainer.run().keys() == {"reward", "pass_rate"}
    scores = [
        line["verdict"]["total"] for line in trainer.folder.rollout_lines() if line["step"] == 0
    ]
    assert logged(tmp_path / "run", "eval/reward/mean")[0] == pytest.approx(sum(scores) / 4)
    assert set(logged(tmp_path / "run", "eval/tasks")) == {4}
    assert trainer.done == 2  # without learning, nothing is better than the start
    assert [group.task.key.split for group in trainer.sample(2, attempts=1)] == ["eval", "eval"]


def test_an_adapter_that_is_continued_keeps_its_shape_takes_the_dropout_and_says_what_has_no_effect(
    settings, tmp_path
):
    data = written(
        tmp_path / "rows.jsonl",
        [{"prompt": f"letters {i}:", "completion": "aaaa"} for i in range(6)],
    )
    settings = {**settings, "environment": None, "steps": 2}
    stored = {"r": 8, "alpha": 4, "targets": ["q_proj", "v_proj"]}
    source = {"data": data, "batch_size": 3}
    Trainer(sft(settings, lora=stored, sft=source), folder=tmp_path / "first").run()
    observer = Chosen()
    model = {"name": str(tmp_path / "first"), "dtype": "float32"}
    chosen = {"r": 2, "dropout": 0.5, "targets": ["q_proj"]}
    again = Trainer(
        sft(settings, model=model, lora=chosen, sft=source),
        folder=tmp_path / "again",
        observer=observer,
    )
    again.run()
    (said,) = [text for text in observer.warnings if "lora" in text]
    assert "lora.r=2 (it has 8), lora.targets=('q_proj',) (it has q_proj, v_proj)" in said
    assert "alpha" not in said
    recorded = json.loads((tmp_path / "again" / "config.json").read_text())["lora"]
    assert recorded == {
        "enabled": True,
        "r": 8,
        "alpha": 4.0,
        "targets": ["q_proj", "v_proj"],
        "dropout": 0.5,
    }
    assert {
        layer.lora_dropout["default"].p for layer in adapted_layers(again.actor.policy.model)
    } == {0.5}
    replayed = Chosen()
    Trainer(
        build_config(
            [{**settings, "method": "sft", "model": model, "lora": recorded, "sft": source}]
        ),
        observer=replayed,
    )
    assert not [text for text in replayed.warnings if "lora" in text]


def test_what_a_run_with_a_continued_adapter_recorded_adapts_all_of_a_deeper_model(
    settings, tmp_path
):
    settings = {**settings, "steps": 1, "eval": {"tasks": 0}}
    Trainer(sft(settings), Answered(), folder=tmp_path / "first").run()
    model = {"name": str(tmp_path / "first"), "dtype": "float32"}
    Trainer(build_config([{**settings, "model": model}]), Letters(), folder=tmp_path / "run").run()
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    save_tiny(tmp_path / "deeper", layers=4)
    deeper = Trainer(
        build_config([recorded, {"model": {"name": str(tmp_path / "deeper")}}]), Letters()
    )
    linear = [m for m in deeper.actor.policy.model.modules() if hasattr(m, "base_layer")]
    assert len(adapted_layers(deeper.actor.policy.model)) == len(linear) == 4 * 7
    assert len(recorded["lora"]["targets"]) == 7


def test_a_file_is_gone_through_in_a_new_order_each_epoch(settings, tmp_path):
    data = written(
        tmp_path / "rows.jsonl", [{"prompt": f"{i}:", "completion": str(i)} for i in range(8)]
    )
    trainer = Trainer(
        sft(settings, environment=None, steps=None, sft={"data": data, "batch_size": 3}),
        folder=tmp_path / "run",
    )
    assert trainer.method.total == 8  # three epochs
    orders = [
        [trainer.method._nth_example(8 * epoch + place).answer for place in range(8)]
        for epoch in range(3)
    ]
    assert all(sorted(order) == [str(i) for i in range(8)] for order in orders)
    assert len(set(map(tuple, orders))) == 3


def test_every_form_of_example_is_read(tmp_path):
    user, assistant = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
    rows = [
        {"prompt": "1 + 1?", "completion": "2", "reward": 1.0},
        {"prompt": [user], "completion": [assistant]},
        {"messages": [user, assistant]},
        {"prompt": [user], "completion": "2"},
    ]
    chat = Example((Message("user", "1 + 1?"),), "2")
    assert read_examples(Path(written(tmp_path / "rows.jsonl", rows))) == [
        Example("1 + 1?", "2"),
        chat,
        chat,
        chat,
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"rows\.jsonl, line 2 is not JSON"),
        ("[1]", r"line 2 is list; it should be \{\"prompt\""),
        ('{"question": "x", "answer": "y"}', r"line 2 has answer, question; it should be"),
        (
            '{"messages": [{"role": "user", "content": "x"}]}',
            r"line 2: messages have to end with the assistant's",
        ),
        ('{"messages": "x"}', r"line 2: messages should be a list"),
        (
            '{"prompt": "x", "completion": [{"role": "user", "content": "x"}]}',
            r"line 2: a completion of messages has to be one message",
        ),
        ('{"prompt": [{"role": "user"}], "completion": "x"}', r"line 2: a message should be"),
        (r'{"prompt": "x", "completion": "\ud83d"}', r"line 2 holds half of a surrogate pair"),
        pytest.param("[" * 100_000, r"line 2 is not JSON: .*recursion", id="deep"),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path, line, message):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "completion": "y"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_examples(tmp_path / "rows.jsonl")


def test_only_a_line_feed_ends_an_example(tmp_path):
    """JSON may hold other characters that Python takes for the end of a line, and have carriage returns between its values."""
    (tmp_path / "returns.jsonl").write_bytes(b'{"prompt": "a",\r"completion": "b"}\r\n')
    assert read_examples(tmp_path / "returns.jsonl") == [Example("a", "b")]
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "a\u2028b", "completion": "c\x85d"}\n{"prompt": "e", "completion": "f"}\n',
        encoding="utf-8",
    )
    assert [(row.prompt, row.answer) for row in read_examples(tmp_path / "rows.jsonl")] == [
        ("a\u2028b", "c\x85d"),
        ("e", "f"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_example(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "x", "completion": "y"}\n', encoding="utf-8-sig"
    )
    assert read_examples(tmp_path / "rows.jsonl") == [Example("x", "y")]


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        read_examples(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl holds no example"):
        read_examples(tmp_path / "empty.jsonl")


def test_an_environment_without_references_is_refused_before_anything_is_written(
    settings, tmp_path
):
    with pytest.raises(
        ConfigError, match=r"'letters' has no reference answer for task 0.*--data FILE\.jsonl"
    ):
        Trainer(sft(settings), Letters(), folder=tmp_path / "run").run()
    assert not (tmp_path / "run").exists()


def test_examples_that_are_too_long_are_left_out_and_said_once(settings, tmp_path):
    rows = [{"prompt": "p:", "completion": "a" * length} for length in (5, 5, 5, 200)]
    observer, data = Chosen(), written(tmp_path / "rows.jsonl", rows)
    config = sft(
        settings, environment=None, steps=3, sft={"data": data, "batch_size": 4, "max_length": 50}
    )
    Trainer(config, folder=tmp_path / "run", observer=observer).run()
    assert [
        warning for warning in observer.warnings if "more than 50 tokens" in warning
    ] == observer.warnings
    assert len(observer.warnings) == 1
    assert logged(tmp_path / "run", "examples/too_long") == [1.0] * 3


def test_another_file_under_the_same_name_is_refused(settings, tmp_path):
    data = written(tmp_path / "rows.jsonl", [{"prompt": "p:", "completion": "a"}])
    trainer = Trainer(
        sft(settings, environment=None, sft={"data": data, "batch_size": 2}),
        folder=tmp_path / "run",
    )
    trainer.request_stop()
    trainer.run()
    written(tmp_path / "rows.jsonl", [{"prompt": "p:", "completion": "b"}])
    with pytest.raises(ConfigError, match=r"'sft\.data' has changed since the run began"):
        Trainer.resumed(tmp_path / "run")


def test_from_the_command_line_to_a_run_that_goes_on_with_it(tiny_folder, tmp_path):
    env = f"{Path(__file__).parent / 'letters.py'}:Answered"
    common = [
        "--env",
        env,
        *words("--set eval.tasks=4 --set group_size=2 --set prompts_per_step=2"),
    ]
    done = CliRunner().invoke(
        app,
        [
            "sft",
            *common,
            *words(f"--model {tiny_folder} --steps 3 --batch-size 2 --out {tmp_path / 'warm'}"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "step 3/3  loss " in done.output
    assert "held-out" in done.output
    again = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "warm")])
    assert again.exit_code == 2
    assert "is finished" in again.output
    done = CliRunner().invoke(
        app,
        [
            "run",
            *common,
            *words(f"--model {tmp_path / 'warm'} --steps 1 --out {tmp_path / 'run'}"),
        ],
    )
    assert done.exit_code == 0, done.output
    (kl,) = logged(tmp_path / "run", "kl")
    assert kl == pytest.approx(0.0, abs=1e-6)  # the reference is the warm model
    refused = CliRunner().invoke(app, ["sft", "--set", "eval.tasks=4"])
    assert refused.exit_code == 2
    assert "--data FILE" in refused.output
