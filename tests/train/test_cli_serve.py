"""`grpo serve`: a run or a model for clients of the OpenAI API, until Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from grpo_core import TaskKey
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost

from ..commandline import words
from ..core.distributions import grpo
from .processes import GRPO
from .tiny import save_tiny
from .tiny_masked import save_masked

USER: Any = {"role": "user", "content": "What is 2 + 3?"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "parrot")


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command once it serves, and what it has printed by then."""
    command, env = [sys.executable, *GRPO, "serve", *arguments, "--port=0"], os.environ | variables
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, env=env)
    try:
        assert process.stdout is not None
        count = 5 if "--socket" in arguments else 4
        lines = [process.stdout.readline() for _ in range(count)]
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def client_of(lines: list[str], key: str = "none") -> openai.OpenAI:
    url = re.fullmatch(r"OPENAI_BASE_URL=(\S+)\n", lines[1])
    assert url, lines
    return openai.OpenAI(base_url=url[1], api_key=key, max_retries=0, timeout=60)


@pytest.mark.slow
def test_a_run_is_served_until_ctrl_c(model, tmp_path):
    run, path = tmp_path / "first", tmp_path / "socket"
    small = "--set prompts_per_step=2 --group-size 2 --max-new-tokens 5 --set eval.tasks=0"
    options = f"--env arithmetic --model {model} --steps 1 {small} --out {run}"
    trained = grpo("run", *words(options))
    assert trained.exit_code == 0, trained.output
    options = [*words("--set sampling.top_k=1 --max-new-tokens 5 --socket"), str(path)]
    with serving(str(run), *options, GRPO_SERVE_KEY="secret") as (process, lines):
        assert lines[0].startswith("serving first at http://127.0.0.1:")
        assert lines[3:] == ["model: first\n", f"Unix socket: {path}\n"]
        assert "secret" not in "".join(lines)
        assert path.is_socket()
        with client_of(lines) as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with client_of(lines, "secret") as client:
            ask = partial(client.chat.completions.create, model="first", messages=[USER])
            answers = [ask(), ask()]
            assert len({answer.choices[0].message.content for answer in answers}) == 1  # by top_k
            assert all(answer.usage.completion_tokens <= 5 for answer in answers)
            with ThreadPoolExecutor() as threads:
                many = {"top_k": -1}  # so that the completions differ
                late = threads.submit(ask, max_tokens=900, n=100, temperature=5, extra_body=many)
                with pytest.raises(TimeoutError):
                    late.result(0.5)
                process.send_signal(signal.SIGINT)
                output, errors = process.communicate(timeout=60)
                assert isinstance(late.exception(60), openai.InternalServerError)
    assert (process.returncode, output) == (0, "")
    assert "stopping: giving up the requests in progress" in errors
    assert "Traceback" not in errors
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "lets other machines use the policy; choose a key"),
        (["--set", "endpoint.settings.host=example.org"], "--host example.org lets other"),
        (["--key", ""], "the key is empty or has characters that cannot be sent"),
        (["--key", "a b"], "cannot be sent"),
        (["--set", "endpoint.settings.prot=1"], "did you mean 'endpoint.settings.port'"),
        (["--set", "endpoint.name=htp"], "endpoint 'htp' is not known; did you mean 'http'"),
        (["--set", "sampler.name=vlm"], "sampler 'vlm' is not known"),
    ],
)
def test_what_cannot_be_served_is_said_before_the_model_is_loaded(model, arguments, message):
    result = grpo("serve", str(model), *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_a_local_host_needs_no_key(model, host):
    result = grpo("serve", str(model), "--host", host, "--set", "sampler.name=vlm")
    assert "sampler 'vlm' is not known" in result.output  # and not the host


@pytest.mark.slow
def test_a_run_is_asked_as_in_training_with_its_prompt_and_has_the_rest_of_the_context(
    model, tmp_path
):
    run = tmp_path / "first"
    small = "--set prompts_per_step=2 --group-size 2 --max-new-tokens 5 --set eval.tasks=0"
    trained = grpo("run", *words(f"--env arithmetic --model {model} --steps 1 {small} --out {run}"))
    assert trained.exit_code == 0, trained.output
    task = load_environment(PluginHost(), "arithmetic", {}).task(TaskKey("arithmetic", "train", 0))
    sent = [{"role": message.role, "content": message.content} for message in task.prompt]
    with serving(str(run), "--with-prompt") as (_, lines), client_of(lines) as client:
        ask = partial(client.chat.completions.create, model="first", seed=1)
        whole, question = ask(messages=sent), ask(messages=sent[-1:])
        assert question.usage.prompt_tokens == whole.usage.prompt_tokens > 100
        assert question.choices[0].message == whole.choices[0].message
        assert whole.usage.completion_tokens > 5
        own = [{"role": "system", "content": "Be brief."}, sent[-1]]
        assert ask(messages=own, max_tokens=1).usage.prompt_tokens < 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--with-prompt"], "--with-prompt needs an environment, and this policy has none"),
        (["--env", "arithmetik"], "did you mean 'arithmetic'"),
        (["--env", "besiege/car", "--set", "sampler.name=vlm"], "each chat begins with"),
        (["--env", "fillin"], "raw texts to continue and no chats"),
    ],
)
def test_the_prompt_of_an_environment_is_found_before_the_model_is_loaded(model, options, message):
    result = grpo("serve", str(model), *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_run_that_is_not_finished_and_a_model_that_fills_gaps_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    masked = save_masked(tmp_path / "masked")
    texts = {tmp_path: "is not finished", masked: "fills gaps and continues no texts"}
    for folder, message in texts.items():
        result = grpo("serve", str(folder), "--port=0")
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
