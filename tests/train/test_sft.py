"""The warm start: the loss of supervised fine-tuning, from references or a file, in a run folder that resumes."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

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
from grpo_core.config.overrides import build_config
from grpo_core.engine.models.adapter import adapted_layers
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message
from grpo_core.train.rollout.examples import Example, read_examples
from grpo_core.train.trainer import Trainer

from ..commandline import words
from .arrange import tiny_policy
from .killing import killed
from .letters import Answered, Letters
from .runs import Heard, logged
from .short_runs import LETTERS, grpo
from .tiny import save_tiny, tiny_tokenizer


def sft(settings: dict[str, Any], **more: Any) -> Any:
    common = {"method": "sft", "steps": 4, "eval": {"tasks": 0}, "sft": {"batch_size": 4}}
    return build_config([settings, {**common, **more}])


def of_file(settings: dict[str, Any], data: str, *, size: int, **more: Any) -> Any:
    """Return the config of a warm start from a file alone, with batches of a size."""
    source = {"data": data, "batch_size": size, **more.pop("sft", {})}
    return sft(settings, **{"environment": None, "sft": source, **more})


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def examples(path: Path, *rows: tuple[str, str]) -> str:
    return written(path, [{"prompt": p, "completion": c} for p, c in rows])


def test_the_loss_is_the_mean_cross_entropy_of_the_answers_tokens(settings, tmp_path):
    """Beside that of torch over each whole row, prompts left out, the end token included."""
    rows = [("name a letter:", "abc"), ("name a letter:", "b"), ("another one, please:", "zzzzzz")]
    data = examples(tmp_path / "rows.jsonl", *rows)
    policy = tiny_policy()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for prompt, answer in rows:
        ids = policy.tokenizer(prompt)["input_ids"]
        more = [*policy.tokenizer(answer)["input_ids"], policy.tokenizer.eos_token_id]
        logits = policy.model(torch.tensor([[*ids, *more]])).logits[0, len(ids) - 1 : -1]
        own = torch.nn.functional.cross_entropy(logits, torch.tensor(more), reduction="sum")
        total, count = total + own, count + len(more)
    (total / count).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for _, p in policy.trainable()))
    config = of_file(settings, data, size=3, steps=1, sampling={"temperature": 0.5})
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


class AsksAgain(AgentEnvironment[str]):
    """Has an agent that asks twice, with a history of its own."""

    max_turns = 2
    max_new_tokens = 4
    trusted = True
    task = Asked.task
    reference = Asked.reference

    async def agent(self, task: Task[str], client: Any) -> str:
        said = await client.completions.create(model="policy", prompt=f"{task.prompt}now!")
        prompt = f"more than {said.choices[0].text}:"
        return str((await client.completions.create(model="policy", prompt=prompt)).choices[0].text)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return Verdict({"reward": Reward(0.0)})


@pytest.mark.parametrize(
    ("env", "second"),
    [(Asked(), "name a letter:now!abcmore than abc:"), (AsksAgain(), "more than abc:")],
    ids=["of an episode", "of an agent"],
)
def test_each_turn_of_a_reference_is_learned_after_what_was_said_before_it(
    settings, tmp_path, env, second
):
    """Equal to the loss on the same turns from a file."""
    data = examples(tmp_path / "rows.jsonl", ("name a letter:now!", "abc"), (second, "zz"))
    from_file = of_file(settings, data, size=2, steps=1)
    Trainer(from_file, policy=tiny_policy(), folder=tmp_path / "file").run()
    config = sft(settings, steps=1, sft={"batch_size": 1})
    Trainer(config, env, policy=tiny_policy(), folder=tmp_path / "run").run()
    for name in ("examples", "tokens/trained", "loss", "grad_norm"):
        assert logged(tmp_path / "run", name) == logged(tmp_path / "file", name)
    assert logged(tmp_path / "run", "examples") == [2]


def test_references_are_learned_and_the_held_out_gain_is_told(settings, tmp_path):
    config = sft(settings, steps=30, optimizer={"lr": 0.02}, eval={"tasks": 8})
    gains = Trainer(config, Answered(), folder=tmp_path / "run").run()
    losses = logged(tmp_path / "run", "loss")
    assert losses[-1] < 0.2 < losses[0]
    assert gains["reward"].mean > 0.5
    assert (tmp_path / "run" / "final" / "adapter_config.json").exists()
    assert "by SFT" in (tmp_path / "run" / "final" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["references", "file"])
def test_a_warm_start_that_was_killed_goes_on_as_if_nothing_had_happened(
    settings, tmp_path, source
):
    """To the bit, dropout included."""
    more = {"steps": 4, "lora": {"dropout": 0.3}, "checkpoint": {"every": 2}}
    rows = [(f"row {i}:", "abc" * (i % 3 + 1)) for i in range(7)]
    of_rows = {"data": examples(tmp_path / "rows.jsonl", *rows)} if source == "file" else {}
    config = sft(settings, sft={"batch_size": 4, **of_rows}, **more)
    Trainer(config, Answered(), folder=tmp_path / "whole").run()
    with killed(tmp_path / "killed", step=3) as observer:
        Trainer(config, Answered(), folder=tmp_path / "killed", observer=observer).run()
    resumed = Trainer.resumed(tmp_path / "killed", Answered())
    assert resumed.done == 2
    resumed.run()
    for name in ("loss", "grad_norm"):
        assert logged(tmp_path / "killed", name) == logged(tmp_path / "whole", name)
    assert len(set(logged(tmp_path / "whole", "loss"))) == 4


def losses_with_dropout(settings: dict[str, Any], folder: Path, rate: float) -> list[float]:
    config = sft(settings, steps=3, lora={"dropout": rate})
    Trainer(config, Answered(), folder=folder / str(rate)).run()
    return logged(folder / str(rate), "loss")


def test_dropout_acts_in_a_warm_start_and_nowhere_else(settings, tmp_path):
    without, dropped = (losses_with_dropout(settings, tmp_path, rate) for rate in (0.0, 0.5))
    assert without[0] == dropped[0], "the adapter starts as nothing, with dropout or without"
    assert without[1:] != dropped[1:]
    with pytest.raises(ConfigError, match=r"lora\.dropout is for `grpo sft` only"):
        build_config([settings, {"lora": {"dropout": 0.1}}])


@pytest.mark.slow
def test_what_the_base_model_itself_would_drop_out_stays(settings, tmp_path):
    """A model with dropouts of its own, beside an adapter that drops out nothing to speak of."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    shape = {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
    rates = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape, **rates))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "gpt2")
    settings = {**settings, "model": {"name": str(tmp_path / "gpt2"), "dtype": "float32"}}
    without, hardly = (losses_with_dropout(settings, tmp_path, rate) for rate in (0.0, 1e-9))
    assert without == pytest.approx(hardly, rel=1e-4)


@pytest.mark.parametrize(
    "only",
    [
        {"eval": {"tasks": 4, "every": 2, "also": ["letters"]}},
        {"mixture": {"letters": {"share": 0}}},
    ],
    ids=["eval.also", "a share of 0"],
)
def test_a_file_alone_is_trained_on_and_an_environment_only_measures(settings, tmp_path, only):
    """Its held-out reward is then that of the run, which stop rules and the best weights go by."""
    data = examples(tmp_path / "rows.jsonl", *((f"letters {i}:", "aaaa") for i in range(6)))
    more = {"steps": 6, "eval": {"tasks": 4, "every": 2}, "stop": {"patience": 1}, **only}
    config = of_file(settings, data, size=3, optimizer={"lr": 0.0}, **more)
    trainer = Trainer(config, {"letters": Letters()}, folder=tmp_path / "run")
    assert trainer.run().keys() == {"reward", "pass_rate"}
    lines = trainer.folder.rollout_lines()
    scores = [line["verdict"]["total"] for line in lines if line["step"] == 0]
    assert logged(tmp_path / "run", "eval/reward/mean")[0] == pytest.approx(sum(scores) / 4)
    assert set(logged(tmp_path / "run", "eval/tasks")) == {4}
    assert trainer.done == 2  # without learning, nothing is better than the start
    assert [group.task.key.split for group in trainer.sample(2, attempts=1)] == ["eval", "eval"]


def test_an_adapter_that_is_continued_keeps_its_shape_takes_the_dropout_and_says_what_has_no_effect(
    settings, tmp_path
):
    data = examples(tmp_path / "rows.jsonl", *((f"letters {i}:", "aaaa") for i in range(3)))
    stored = {"r": 8, "alpha": 4, "targets": ["q_proj", "v_proj"]}
    first = of_file(settings, data, size=3, steps=1, lora=stored)
    Trainer(first, folder=tmp_path / "first").run()
    heard, replayed = Heard(), Heard()
    settings = {**settings, "model": {"name": str(tmp_path / "first"), "dtype": "float32"}}
    chosen = {"r": 2, "dropout": 0.5, "targets": ["q_proj"]}
    config = of_file(settings, data, size=3, steps=1, lora=chosen)
    again = Trainer(config, folder=tmp_path / "again", observer=heard)
    again.run()
    (said,) = [text for text in heard.warnings if "lora" in text]
    assert "lora.r=2 (it has 8), lora.targets=('q_proj',) (it has q_proj, v_proj)" in said
    assert "alpha" not in said
    recorded = json.loads((tmp_path / "again" / "config.json").read_text())["lora"]
    assert recorded == {"enabled": True, "dropout": 0.5, **stored}
    layers = adapted_layers(again.actor.policy.model)
    assert {layer.lora_dropout["default"].p for layer in layers} == {0.5}
    Trainer(of_file(settings, data, size=3, lora=recorded), observer=replayed)
    assert not [text for text in replayed.warnings if "lora" in text]


@pytest.mark.slow
def test_what_a_run_with_a_continued_adapter_recorded_adapts_all_of_a_deeper_model(
    settings, tmp_path
):
    settings = {**settings, "steps": 1, "group_size": 2, "eval": {"tasks": 0}}
    Trainer(sft(settings, steps=1), Answered(), folder=tmp_path / "first").run()
    model = {"name": str(tmp_path / "first"), "dtype": "float32"}
    Trainer(build_config([{**settings, "model": model}]), Letters(), folder=tmp_path / "run").run()
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    deeper = {"name": str(save_tiny(tmp_path / "deeper", layers=4))}
    policy = Trainer(build_config([recorded, {"model": deeper}]), Letters()).actor.policy
    linear = [m for m in policy.model.modules() if hasattr(m, "base_layer")]
    assert len(adapted_layers(policy.model)) == len(linear) == 4 * 7
    assert len(recorded["lora"]["targets"]) == 7


def test_a_file_is_gone_through_in_a_new_order_each_epoch(settings, tmp_path):
    data = examples(tmp_path / "rows.jsonl", *((f"{i}:", str(i)) for i in range(8)))
    trainer = Trainer(of_file(settings, data, size=3, steps=None), folder=tmp_path / "run")
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
    read = read_examples(Path(written(tmp_path / "rows.jsonl", rows)))
    assert read == [Example("1 + 1?", "2"), chat, chat, chat]


USER = '[{"role": "user", "content": "x"}]'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"rows\.jsonl, line 2 is not JSON"),
        ("[1]", r"line 2 is list; it should be \{\"prompt\""),
        ('{"question": "x", "answer": "y"}', r"line 2 has answer, question; it should be"),
        (f'{{"messages": {USER}}}', r"line 2: messages have to end with the assistant's"),
        ('{"messages": "x"}', r"line 2: messages should be a list"),
        (
            f'{{"prompt": "x", "completion": {USER}}}',
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompt": "a",\r"completion": "b"}\r\n', Example("a", "b")),
        ('{"prompt": "a\u2028b", "completion": "c\x85d"}\n', Example("a\u2028b", "c\x85d")),
        ('\ufeff{"prompt": "a", "completion": "b"}\n', Example("a", "b")),
    ],
    ids=["carriage returns", "other ends of lines", "a byte order mark"],
)
def test_only_a_line_feed_ends_an_example_and_a_mark_is_no_part_of_it(tmp_path, text, expected):
    """JSON may hold other characters that Python takes for the end of a line, and have carriage returns between its values."""
    second = '{"prompt": "e", "completion": "f"}\n'
    (tmp_path / "rows.jsonl").write_bytes((text + second).encode())
    assert read_examples(tmp_path / "rows.jsonl") == [expected, Example("e", "f")]


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        read_examples(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl holds no example"):
        read_examples(tmp_path / "empty.jsonl")


def test_an_environment_without_references_is_refused_before_anything_is_written(
    settings, tmp_path
):
    wanted = r"'letters' has no reference answer for task 0.*--data FILE\.jsonl"
    with pytest.raises(ConfigError, match=wanted):
        Trainer(sft(settings), Letters(), folder=tmp_path / "run").run()
    assert not (tmp_path / "run").exists()


def test_examples_that_are_too_long_are_left_out_and_said_once(settings, tmp_path):
    heard = Heard()
    data = examples(tmp_path / "rows.jsonl", *(("p:", "a" * length) for length in (5, 5, 5, 200)))
    config = of_file(settings, data, size=4, steps=3, sft={"max_length": 50})
    Trainer(config, folder=tmp_path / "run", observer=heard).run()
    (warning,) = heard.warnings
    assert "more than 50 tokens" in warning
    assert logged(tmp_path / "run", "examples/too_long") == [1.0] * 3


def test_another_file_under_the_same_name_is_refused(settings, tmp_path):
    data = examples(tmp_path / "rows.jsonl", ("p:", "a"))
    trainer = Trainer(of_file(settings, data, size=2), folder=tmp_path / "run")
    trainer.request_stop()
    trainer.run()
    examples(tmp_path / "rows.jsonl", ("p:", "b"))
    with pytest.raises(ConfigError, match=r"'sft\.data' has changed since the run began"):
        Trainer.resumed(tmp_path / "run")


@pytest.mark.slow
def test_from_the_command_line_to_a_run_that_goes_on_with_it(tiny_folder, tmp_path):
    answered = LETTERS.replace(":Letters", ":Answered")
    few = "--set eval.tasks=4 --set group_size=2 --set prompts_per_step=2"
    common = ("--env", answered, *words(few))
    warm, run = tmp_path / "warm", tmp_path / "run"
    done = grpo(*words(f"sft --model {tiny_folder} --steps 3 --batch-size 2 --out {warm}"), *common)
    assert "step 3/3  loss " in done.output
    assert "held-out" in done.output
    assert "is finished" in grpo("run", "--resume", warm, status=2).output
    grpo(*words(f"run --model {warm} --steps 1 --out {run}"), *common)
    assert logged(run, "kl") == pytest.approx([0.0], abs=1e-6)  # the reference is the warm model
    assert "--data FILE" in grpo("sft", "--set", "eval.tasks=4", status=2).output
