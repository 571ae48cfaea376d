"""Dialogues by TRL's rollout function, with a scripted engine in place of TRL's trainer (test_trl_real.py has the real one)."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_core import ConfigError, GrpoError, Message, Rollout
from grpo_trl import OpenEnvironment, dataset, opened, reward_functions, rollout_func

from ..train.tiny import END, tiny_tokenizer

FILE = Path(__file__).parent / "spelling.py"
TOKENIZER = tiny_tokenizer()
END_ID = TOKENIZER.convert_tokens_to_ids(END)


class Scripted:
    """Has the means of TRL's trainer that the rollout function uses; says the turns of a script in each dialogue."""

    use_vllm = False
    is_fsdp_enabled = False
    is_deepspeed_enabled = False

    def __init__(
        self, *scripts: Sequence[str], length: int = 1000, logprob: float | None = None
    ) -> None:
        self.processing_class = TOKENIZER
        self.eos_token_ids = [END_ID]
        self.chat_template_kwargs: dict[str, Any] = {}
        self.max_completion_length = length
        self.generation_config = SimpleNamespace(max_new_tokens=length)
        self.accelerator = SimpleNamespace(num_processes=1)
        self.model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=1024))
        self.logprob = logprob
        self.asked: list[tuple[list[str], int]] = []
        self.turns = [iter(script) for script in scripts]
        self.places: dict[str, int] = {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: None, fields: dict[str, Any], count: int
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        assert (images, fields, count) == (None, {}, 1)
        prefixes = [TOKENIZER.decode(ids) for ids in prompt_ids]
        limit = self.generation_config.max_new_tokens
        if not self.asked:
            self.begun = prefixes
        self.asked.append((prefixes, limit))
        places = [self._place(prefix) for prefix in prefixes]
        turns = [ids_of(next(self.turns[place]))[:limit] for place in places]
        if self.logprob is None:
            return turns, None
        return turns, [[self.logprob] * len(turn) for turn in turns]

    def _place(self, prefix: str) -> int:
        """Return which dialogue continues a prefix; their prompts differ."""
        (place,) = [i for i, begun in enumerate(self.begun) if prefix.startswith(begun)]
        return place


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return ids


def played(
    env: OpenEnvironment, trainer: Any
) -> tuple[dict[str, Any], list[Rollout], list[dict[str, Any]]]:
    function = rollout_func(env)
    assert function is not None
    rows = list(dataset(env, "train", len(trainer.turns)))
    fields = function([row["prompt"] for row in rows], trainer)
    return fields, fields["rollout"], rows


def word(env: OpenEnvironment, index: int) -> str:
    prompt = dataset(env, "train", index + 1)[index]["prompt"]
    return str(prompt[0]["content"].removeprefix("Repeat "))


def test_a_dialogue_goes_on_until_the_environment_ends_it_and_its_text_is_masked() -> None:
    with opened(f"{FILE}:Talking") as env:
        right = word(env, 1)
        trainer = Scripted([f"zz{END}", f"zy{END}", f"yy{END}"], [f"z{END}", f"{right}{END}"])
        fields, rollouts, rows = played(env, trainer)
        said = [message.content for message in rollouts[0].messages]
        assert said == ["zz", "0 fit", "zy", "0 fit", "yy"]
        assert [rollout.finish for rollout in rollouts] == ["stop", "stop"]
        assert len(rollouts[1].messages) == 3
        names = ("completion_ids", "prompt_ids", "env_mask")
        for row, ids, prompt_ids, mask, rollout in zip(
            rows, *(fields[name] for name in names), rollouts, strict=True
        ):
            said = [{"role": m.role, "content": m.content} for m in rollout.messages]
            messages = [*row["prompt"], *said]
            whole = TOKENIZER.apply_chat_template(messages, tokenize=False).rstrip("\n")
            assert TOKENIZER.decode([*prompt_ids, *ids]) == whole
            mine = TOKENIZER.decode([i for i, m in zip(ids, mask, strict=True) if m])
            turns = [m.content for m in rollout.messages if m.role == "assistant"]
            assert mine == "".join(f"{turn}{END}" for turn in turns)
        assert fields["logprobs"] is None
        assert [len(prefixes) for prefixes, _ in trainer.asked] == [2, 2, 1]
        assert trainer.generation_config.max_new_tokens == 1000
        keywords = {"task_key": [row["task_key"] for row in rows], "rollout": rollouts}
        assert reward_functions(env)[0][1](["", ""], **keywords) == [0.0, 1.0]


def test_log_probs_of_the_engine_are_passed_on_and_those_of_the_environment_are_0() -> None:
    with opened(f"{FILE}:Talking") as env:
        fields, _, _ = played(env, Scripted([f"z{END}", f"y{END}", f"x{END}"], logprob=-2.0))
    (logprobs,), (mask,) = fields["logprobs"], fields["env_mask"]
    assert logprobs == [-2.0 if m else 0.0 for m in mask]


def test_a_turn_that_is_cut_off_ends_the_dialogue_and_so_does_a_reply_without_room() -> None:
    with opened(f"{FILE}:Talking") as env:
        long, room = "z" * 60, len(ids_of("z") * 20)
        fields, rollouts, _ = played(env, Scripted([long]))
        assert [rollouts[0].text, rollouts[0].finish] == ["z" * 40, "length"]  # max_new_tokens
        fields, rollouts, _ = played(env, Scripted([long], length=room))
        assert [rollouts[0].text, rollouts[0].finish] == ["z" * 20, "length"]
        fields, rollouts, _ = played(env, Scripted([f"zz{END}"], length=room))
        assert [rollouts[0].text, rollouts[0].finish] == ["zz", "length"]
        assert fields["env_mask"] == [[1, 1, 1]]


def test_a_dialogue_in_which_the_environment_fails_is_not_scored() -> None:
    with opened(f"{FILE}:Talking") as env:
        trainer = Scripted([f"silence{END}"], [f"{word(env, 1)}{END}"])
        _, rollouts, rows = played(env, trainer)
        assert rollouts[0].finish == "error"
        keywords = {"task_key": [row["task_key"] for row in rows], "rollout": rollouts}
        assert reward_functions(env)[0][0](["", ""], **keywords) == [None, 1.0]


def test_tools_answer_calls_and_stand_in_the_template() -> None:
    call = '<tool_call>{"name": "look_up", "arguments": {"letter": "q"}}</tool_call>'
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ tools | length if tools else 0 }} tools\n" + str(
        TOKENIZER.chat_template
    )
    with opened(f"{FILE}:Toolbox") as env:
        trainer = Scripted([call + END, f"done{END}"])
        trainer.processing_class = tokenizer
        trainer.model.config.max_position_embeddings = 4096
        _, (rollout,), _ = played(env, trainer)
        assert trainer.asked[0][0][0].startswith("1 tools")
    assert rollout.messages[1:] == (Message("tool", "q is used"), Message("assistant", "done"))


def test_special_tokens_that_the_policy_wrote_are_in_the_turn() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<answer>"]})
    turn = tokenizer(f"<answer>z{END}", add_special_tokens=False)["input_ids"]
    with opened(f"{FILE}:Talking") as env:
        trainer = Scripted([])
        trainer.processing_class = tokenizer
        trainer._generate_single_turn = lambda prompts, *rest: ([turn] * len(prompts), None)
        _, (rollout,), _ = played(env, trainer)
    assert rollout.messages[0] == Message("assistant", "<answer>z")


def test_what_cannot_be_played_gets_one_clear_message() -> None:
    with opened(f"{FILE}:Talking") as env:
        function = rollout_func(env)
        assert function is not None
        (row,) = dataset(env, "train", 1)
        plain = [{"role": "user", "content": "Repeat abcd"}]
        with pytest.raises(ConfigError, match="has no 'task_key'"):
            function([plain], Scripted(["a"]))
        small = Scripted(["a"])
        small.model.config.max_position_embeddings = 10
        with pytest.raises(ConfigError, match="leaves no room for an answer"):
            function([row["prompt"]], small)
        together = Scripted(["a"])
        together.is_fsdp_enabled = True
        together.accelerator.num_processes = 2
        with pytest.raises(GrpoError, match="use one process"):
            function([row["prompt"]], together)
