"""Write a script that trains on an environment with TRL's GRPOTrainer."""

from __future__ import annotations

from collections.abc import Mapping
from pprint import pformat
from string import Template
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.settings import ALIASES, BETAS, DEFAULT_MODEL, RATES
from grpo_core.api.verify import size_of
from grpo_trl.opened import OpenEnvironment

STEPS = 100
PROMPTS = 4
"""Prompts of a step."""
GROUP_SIZE = 8
"""Completions of a prompt."""
REPLY_TOKENS = 64
"""Tokens that are allowed for each turn of an environment, and for the template around it."""

_SCRIPT = Template('''\
"""Train a model on an environment of grpo-core with TRL's GRPOTrainer.

    pip install 'trl[peft]==1.16.*' $requirements
    python THIS_FILE --steps $steps

Written by `grpo env export`. Rewards are those of `grpo run`: judged in worker processes or a
sandbox, with time limits, once for each completion. What could not be judged is left out.
"""

import argparse

import torch
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_trl import $imports

ENVIRONMENT = $environment
SETTINGS = $settings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="$model")
    parser.add_argument("--steps", type=int, default=$steps)
    parser.add_argument("--out", default="$out")
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
    with opened(ENVIRONMENT, SETTINGS) as env:
        functions, weights = reward_functions(env$end_ids)
        trainer = GRPOTrainer(
            model=options.model,
            processing_class=tokenizer,
            train_dataset=dataset(env, "train", $rows),
            reward_funcs=functions,$rollout
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
            args=GRPOConfig(
                output_dir=options.out,
                max_steps=options.steps,
                reward_weights=weights,
                # A step has $prompts prompts with $group completions each.
                num_generations=$group,
                per_device_train_batch_size=$group,
                gradient_accumulation_steps=$prompts,
                max_completion_length=$length,$length_note
                # For an adapter on 135 million weights. Take about 5e-5 for 0.5 billion and 1e-5
                # for 3 billion weights, with beta=0.04.
                learning_rate=$rate,
                beta=$beta,
                use_cpu=not torch.accelerator.is_available(),
                logging_steps=1,
                report_to="none",
            ),
        )
        trainer.train()
        trainer.save_model()


if __name__ == "__main__":
    main()
''')


def training_script(
    env: OpenEnvironment, settings: Mapping[str, Any], *, requirements: list[str]
) -> str:
    """Return the source of the script.

    Args:
        env: the environment, opened with the settings.
        settings: the settings with which the script opens it.
        requirements: what pip has to install besides TRL.

    Raises:
        ConfigError: the environment has no training tasks.
    """
    size = size_of(env.env, "train")
    if size == 0:
        raise ConfigError(f"environment {env.name!r} has no training tasks with these settings")
    dialogue = env.turns > 1
    turn = env.env.max_new_tokens
    names = ["dataset", "opened", "reward_functions", *(["rollout_func"] if dialogue else [])]
    return _SCRIPT.substitute(
        environment=_text(env.config.environment),
        requirements=" ".join(f"'{requirement}'" for requirement in requirements),
        settings=pformat(dict(settings), width=88, sort_dicts=False),
        imports=", ".join(names),
        model=ALIASES[DEFAULT_MODEL].hub_id,
        out=f"trl-{_file_name(env.name)}",
        steps=STEPS,
        rows=min(STEPS * PROMPTS, size or STEPS * PROMPTS),
        prompts=PROMPTS,
        group=GROUP_SIZE,
        end_ids="" if dialogue else ", end_ids=[tokenizer.eos_token_id], tokenizer=tokenizer",
        rollout="\n            rollout_func=rollout_func(env)," if dialogue else "",
        length=turn + (env.turns - 1) * (turn + REPLY_TOKENS),
        length_note=f"  # of all {env.turns} turns, with the replies" if dialogue else "",
        rate=RATES["grpo", True][0].value,
        beta=BETAS[0].value,
    )


def _text(value: object) -> str:
    """Return a text as Python writes it, in double quotes where that needs no escapes."""
    literal = repr(value)
    return f'"{value}"' if literal == f"'{value}'" and '"' not in literal else literal


def _file_name(name: str) -> str:
    """Return a name with a dash for each character that could be special in a path."""
    return "".join(
        character if character.isalnum() or character in "-_" else "-" for character in name
    )
