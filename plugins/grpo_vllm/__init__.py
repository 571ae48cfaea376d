"""A sampler that draws completions with vLLM, in a server process that the run starts."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_samplers() -> list[Spec]:
    return [
        Spec(
            "vllm",
            "grpo_vllm.sampler:VLLM",
            "vLLM in a server process, which is started, watched and restarted.",
            extra="vllm",
        )
    ]
