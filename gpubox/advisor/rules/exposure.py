"""A server that everybody in the network may use."""

from __future__ import annotations

from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import Evidence


def _read(evidence: Evidence) -> Judgement | None:
    """It listens on more than loopback and asks for no key.

    Evidence: the address of the launch, and whether it was started with a key. Source: llama-server itself warns
    (tools/server/server.cpp, "no API key is set and CORS allows all origins"); 175,108 open hosts of Ollama were
    counted in the internet.
    """
    if not evidence.exposed:
        return None
    return Judgement(
        f"Every machine that reaches this one may use the model: it listens on {evidence.host} without an API key.",
        (
            f"host {evidence.host}; no API key",
            "clients in the network: `gpubox serve` gives each one a key, and the server stays on 127.0.0.1",
        ),
        (("host", "127.0.0.1"),),
    )


EXPOSURE = Rule("exposed", "exposed", _read)
