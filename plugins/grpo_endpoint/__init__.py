"""An endpoint that serves the policy as an OpenAI-compatible server."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_endpoints() -> list[Spec]:
    return [
        Spec(
            "http",
            "grpo_endpoint.server:HttpEndpoint",
            "An OpenAI-compatible server at a port of this machine and a Unix socket.",
            extra="serve",
        )
    ]
