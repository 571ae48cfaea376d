"""Implement `grpo serve`, which serves a run or a model to clients of the OpenAI API."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_core import ConfigError, Message
from grpo_core.api.calls import stoppable, wait_for
from grpo_core.api.plugins import PluginHost
from grpo_core.api.settings import RunConfig, split_setting
from grpo_core.api.verify import Sources
from grpo_core.cli.environment import messages_before_question
from grpo_core.cli.given import Sets, settings_of, takes
from grpo_core.cli.imports import needs_training
from grpo_core.cli.measuring import Remarks
from grpo_core.cli.options import Device, Dtype, Settings, Trust
from grpo_core.cli.output import print_line, remark
from grpo_core.cli.run_config import read_eval_config
from grpo_core.plugins.services import open_endpoint
from grpo_core.protocol.endpoint import Access

app = typer.Typer()

KEY_VARIABLE = "GRPO_SERVE_KEY"
_PORT = 8000
_BUDGET = "sampling.max_new_tokens"
_GATHER_MS = 5.0
"""Clients that send requests at the same time do so within some milliseconds."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Hold the options of `grpo serve`, in the order of its help page."""

    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="A finished run's folder; or a hub id, a model's folder or an alias.",
            show_default=False,
        ),
    ]
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = _PORT
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Address to listen at; others than this machine's own need a key. "
            "\\[default: 127.0.0.1]",
        ),
    ] = None
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket",
            help="Also listen at a Unix socket with this path.",
            readable=False,
            show_default=False,
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            envvar=KEY_VARIABLE,
            help="Key that clients have to send. In the variable, other users of this machine do "
            "not see it.",
            show_default=False,
        ),
    ] = None
    with_prompt: Annotated[
        bool,
        typer.Option(
            "--with-prompt",
            help="Put the system prompt and the examples of the run's environment before each "
            "chat, for clients that send a question alone. A chat with a system prompt of its own "
            "is left as it is.",
        ),
    ] = False
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Take that prompt from this environment instead of the run's.",
            show_default=False,
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            min=1,
            help="Maximum tokens of a completion in a chat whose request names none. "
            "\\[default: the rest of the model's context]",
            show_default=False,
        ),
        Sets(_BUDGET),
    ] = None
    device: Device = None
    dtype: Dtype = None
    settings: Settings = None
    trust: Trust = False


@app.command(epilog="Example: grpo serve runs/first --port 8000")
@takes(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve a run or a model to clients of the OpenAI API, such as evaluation harnesses.

    Requests say how they are sampled; what they leave open is as in the run, or as
    `--set sampling.NAME=VALUE` says. Ctrl-C ends it.
    """
    config = _read_config(options)
    _check_key(options.key, str(config.endpoint.settings.get("host", "localhost")))
    before = _read_prompt(config) if options.with_prompt or options.env else ()
    _serve(config, before, options.key or "")


def _read_config(options: ServeOptions) -> RunConfig:
    """Return the config of the policy and of the endpoint.

    The budget of a completion is not the one of the run, which suits the answers of its
    environment alone.

    Raises:
        ConfigError: the run is not finished or not trusted, or a setting is wrong.
    """
    run = Path(options.policy) if _is_run(Path(options.policy)) else None
    chosen: dict[str, Any] = {
        **settings_of(options),
        "sampling.gather_ms": _GATHER_MS,
        "endpoint.settings.model": _public_name(options.policy),
        "endpoint.settings.host": options.host,
        "endpoint.settings.port": options.port,
        "endpoint.settings.socket": None if options.socket is None else str(options.socket),
    }
    if run is None:
        chosen["model.name"] = options.policy
        chosen |= {} if options.env else {"environment": "none"}
    envs, settings = [options.env] if options.env else [], options.settings or []
    config = read_eval_config(envs, run, chosen, settings, trust=options.trust)
    named = {*chosen, *(split_setting(setting)[0] for setting in settings)}
    if _BUDGET in named:
        return config
    sampling = config.sampling.model_copy(update={"max_new_tokens": None})
    return config.model_copy(update={"sampling": sampling})


def _read_prompt(config: RunConfig) -> tuple[Message, ...]:
    """Return the messages that are put before each chat, and say which they are.

    Raises:
        ConfigError: there is no environment, or its prompts are no chats.
    """
    name, before = messages_before_question(config, advice="serve without --with-prompt")
    if not name:
        raise ConfigError(
            "--with-prompt needs an environment, and this policy has none; name one with --env"
        )
    if before is None:
        raise ConfigError(
            f"--with-prompt: the environment {name!r} has raw texts to continue and no chats; "
            "serve without it, and have clients send texts to /v1/completions"
        )
    remark(f"each chat begins with {len(before)} messages of the environment {name}")
    return before


def _serve(config: RunConfig, before: tuple[Message, ...], key: str) -> None:
    """Serve the policy of a config until a signal comes."""
    endpoint = open_endpoint(PluginHost(), config.endpoint)
    remark(f"loading {config.model.name}")
    with needs_training("grpo serve"):
        from grpo_core.api.training import build_actor, choose_sampler, find_ranks
        from grpo_endpoint.serving import serve
    actor = build_actor(
        config,
        Sources([]),
        ranks=find_ranks(config),
        observer=Remarks(),
        make_sampler=choose_sampler(config, PluginHost()),
    )
    with stoppable(actor.stop, "giving up the requests in progress"):
        wait_for(serve(actor, endpoint, before=before, key=key, on_open=_print_access))


def _print_access(access: Access) -> None:
    """Say how clients reach the server."""
    shown_key = "KEY, the one that you chose" if access.key else "any text, as clients need one"
    print_line(f"serving {access.model} at {access.base_url}; Ctrl-C ends it")
    print_line(f"OPENAI_BASE_URL={access.base_url}")
    print_line(f"OPENAI_API_KEY={shown_key}")
    print_line(f"model: {access.model}")
    if access.socket is not None:
        print_line(f"Unix socket: {access.socket}")


def _is_run(path: Path) -> bool:
    """Return whether a path is a run folder, finished or not; a model's folder is none."""
    return (path / "config.json").is_file() and any(
        (path / name).is_dir() for name in ("final", "checkpoints")
    )


def _public_name(policy: str) -> str:
    """Return the name under which clients know a run or a model: that of its folder, if any."""
    return Path(policy).resolve().name if Path(policy).exists() else policy


def _check_key(key: str | None, host: str) -> None:
    """Refuse a key that cannot be sent, and a host that others reach without a key.

    Raises:
        ConfigError: it is so.
    """
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(
            "the key is empty or has characters that cannot be sent; choose one of letters, "
            "digits and signs of ASCII, without spaces"
        )
    if not key and not _is_local(host):
        raise ConfigError(
            f"--host {host} lets other machines use the policy; choose a key for them: "
            f"{KEY_VARIABLE}=KEY grpo serve ..., or --key KEY"
        )


def _is_local(host: str) -> bool:
    """Return whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
