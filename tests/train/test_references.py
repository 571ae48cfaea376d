"""A run says before its first step that its own reference answers do not survive the model's tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from grpo_core import ConfigError, Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.overrides import nested
from grpo_core.train.trainer import Trainer

from .short_runs import QUICK, grpo
from .tiny import tiny_model
from .tokenizer_kinds import KINDS, TEMPLATE, finished, word_piece
from .trained import make, trained


class Lines(Environment[str]):
    """Pays for an answer of two lines, letter by letter."""

    trusted = True
    max_new_tokens = 8
    right = "a\nb"

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, (Message("user", f"say {key.index}"),), self.right)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        is_right = self.accepts(rollout.text)
        return Verdict({"reward": Reward(float(is_right))}, passed=is_right)

    def accepts(self, text: str) -> bool:
        return text == self.right

    def reference(self, task: Task[str]) -> str | tuple[str, ...] | None:
        return self.right


class Words(Lines):
    """Does not care about white space."""

    def accepts(self, text: str) -> bool:
        return text.split() == self.right.split()


class Unknown(Lines):
    def reference(self, task: Task[str]) -> None:
        return None


class Tagged(Lines):
    right = "<answer>-2</answer>"


class Ended(Lines):
    right = "a</s>b"


class Spoken(Lines):
    """A dialogue of two turns, of which the second has two lines."""

    max_turns = 2

    def reference(self, task: Task[str]) -> tuple[str, ...]:
        return ("a", self.right)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message]:
        return [Message("user", "and?")]


class Sometimes(Lines):
    """Has a reference of two lines for one of its tasks."""

    def size(self, split: str) -> int:
        return 4

    def accepts(self, text: str) -> bool:
        return text in ("a\nb", "ab")

    def reference(self, task: Task[str]) -> str:
        return "ab" if task.key.index else "a\nb"


class Failing(Lines):
    def reference(self, task: Task[str]) -> str:
        raise RuntimeError("no reference today")


class Unscored(Lines):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        raise RuntimeError("no verdict today")


def model(folder: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    tokenizer.chat_template = TEMPLATE
    shape = tiny_model(vocab=len(tokenizer) + 9).float()  # a padded vocabulary
    shape.config.eos_token_id = shape.generation_config.eos_token_id = tokenizer.eos_token_id
    shape.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {
        "model": {"name": str(folder), "dtype": "float32"},
        "steps": 1,
        "prompts_per_step": 1,
        "group_size": 2,
        **nested({**QUICK, "kl.beta": 0.0}),
    }


def complaints(settings: dict[str, Any], env: Environment[Any], folder: Path) -> list[str]:
    """Return the warnings about references."""
    _, heard = trained(folder, settings, {"environment": "lines"}, env=env)
    return [text for text in heard.warnings if "reference answer" in text]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["grpo", "sft"])
@pytest.mark.parametrize("env", [Lines(), Spoken(), Ended()], ids=lambda env: type(env).__name__)
def test_a_run_whose_reference_is_worth_less_once_it_was_read_back_is_refused(
    tmp_path, method, env
):
    tokenizer = KINDS["byte-level"]() if isinstance(env, Ended) else finished(word_piece())
    settings = model(tmp_path / "model", tokenizer) | {"method": method}
    with pytest.raises(ConfigError) as raised:
        complaints(settings, env, tmp_path / "run")
    said = str(raised.value)
    assert "reference answer of 'lines' to task 0 does not survive the model's tokenizer" in said
    assert "As it was written it is worth 1, and as it was read back 0" in said
    assert ("'\\n' becomes ' '" in said) == ("'</s>' vanishes; '</s>' in an answer" not in said)
    assert "take a model whose tokenizer has these characters" in said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("env", "why"),
    [
        (Unscored(), ("written 'a\\nb', read back 'a b'", "could not be verified")),
        (Words(), ("written 'a\\nb', read back 'a b'", "is worth 1, and as it was read back 1")),
        (Failing(), ("could not be tried with the model's tokenizer", "no reference today")),
    ],
    ids=["it cannot be judged", "it is worth the same", "it cannot be made"],
)
def test_where_no_reward_is_known_to_change_it_is_a_warning(tmp_path, env, why):
    settings = model(tmp_path / "model", finished(word_piece()))
    settings["verify"] = {"max_error_rate": 1.0}
    (warning,) = complaints(settings, env, tmp_path / "run")
    assert all(part in warning for part in why)
    assert warning in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_one_odd_task_does_not_keep_a_run_from_its_first_step(tmp_path):
    settings = model(tmp_path / "model", finished(word_piece())) | {"prompts_per_step": 4}
    (warning,) = complaints(settings, Sometimes(), tmp_path / "run")
    assert "As it was written it is worth 1, and as it was read back 0" in warning
    assert "for 1 of the 4 tasks" in warning


class Interrupted(Lines):
    """Requests a stop while its first verdict is made."""

    verdicts = 0
    trainer: Trainer | None = None

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.verdicts += 1
        assert self.trainer is not None
        self.trainer.request_stop()
        return super().verify(task, rollout)


def test_a_stop_is_not_kept_waiting_by_the_references_of_a_slow_verifier(tmp_path):
    settings = model(tmp_path / "model", finished(word_piece())) | {"prompts_per_step": 4}
    env = Interrupted()
    env.trainer = trainer = make(tmp_path / "run", settings, {"environment": "lines"}, env=env)
    trainer.run()
    assert env.verdicts == 2  # as it was written, and as it was read back, of the first task
    assert trainer.end is not None
    assert (trainer.end.reason, trainer.end.step) == ("a stop was requested", 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["byte-level", "special tags, metaspace first"])
def test_references_that_survive_are_not_spoken_of(tmp_path, kind):
    settings = model(tmp_path / "model", KINDS[kind]()) | {"prompts_per_step": 4}
    envs = {type(env).__name__: env for env in (Lines(), Tagged(), Spoken(), Unknown())}
    mixture = {"mixture": {name: {} for name in envs}}
    _, heard = trained(tmp_path / "run", settings, mixture, env=envs)
    assert [text for text in heard.warnings if "reference answer" in text] == []


@pytest.mark.slow
def test_a_warm_start_on_answers_in_special_tags_passes_afterwards(tmp_path):
    learns = {"method": "sft", "steps": 12, "sft": {"batch_size": 4}, "optimizer": {"lr": 0.02}}
    settings = model(tmp_path / "model", KINDS["special tags"]()) | learns
    more = {"environment": "lines", "eval": {"tasks": 4}}
    gains = make(tmp_path / "run", settings, more, env=Tagged()).run()
    assert gains["reward"].after > 0.7


def test_only_what_is_trained_on_is_refused(tmp_path):
    settings = model(tmp_path / "model", finished(word_piece()))
    envs = {"words": Words(), "lines": Lines()}
    mixed = {"environment": "words", "eval": {"tasks": 1, "also": ["lines"]}}
    _, heard = trained(tmp_path / "run", settings, mixed, env=envs)
    spoken_of = [text for text in heard.warnings if "does not survive" in text]
    assert [name for text in spoken_of for name in envs if repr(name) in text] == ["words", "lines"]


def test_an_evaluation_warns_and_goes_on(tmp_path, caplog):
    model(tmp_path / "model", finished(word_piece()))
    file = tmp_path / "lines.py"
    source = Path(__file__).read_text().partition("class Words")[0]
    file.write_text(source.replace("from .", "from tests.train."))
    few = ("--tasks", 1, "--samples", 1, "--dtype", "float32")
    done = grpo("eval", "--env", f"{file}:Lines", "--model", tmp_path / "model", *few)
    assert "pass rate" in done.stdout
    assert "does not survive" in caplog.text
