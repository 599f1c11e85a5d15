"""Which OpenAI-compatible server answers, and which of its own words a request may use there."""

from __future__ import annotations

from typing import Any

from gpubox.errors import ExitCode, GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.server.client import LlamaClient
from gpubox.server.dialect import EXTRA_FIELDS, detect_dialect, read_other_server
from gpubox.server.other_server import LLAMA, LM_STUDIO, OLLAMA, OPENAI

_CONTROLS = {"cache_prompt": "its cache", "ignore_eos": "the length of answers", "chat_template_kwargs": "thinking"}


async def identify_endpoint(client: LlamaClient, model: str, *, ours: bool) -> tuple[str, str, dict[str, Any]]:
    """What answers, the model's name for requests, and llama-server's ``/props`` (else empty).

    ``ours``: gpubox started it, so it is a llama-server. Raises GpuboxError where nothing answers, or it has no such
    model.
    """
    props = await client.get_json("/props")
    props = props if isinstance(props, dict) else {}
    if ours or "default_generation_settings" in props:
        return LLAMA, model or "gpubox", props  # it serves one model, whatever it is called
    models = _names(await client.get_json("/v1/models"))
    if model and models and model not in models:
        raise GpuboxError(
            f"{client.base_url} has no model {model!r}.", f"It has: {sanitize_line(', '.join(models[:8]))[:400]}."
        )
    if not model and not models:
        raise GpuboxError(f"{client.base_url} lists no models.", "Name one: --model NAME.", code=ExitCode.UNHEALTHY)
    dialect = await detect_dialect(client)
    if not model and dialect in (OLLAMA, LM_STUDIO) and (other_server := await read_other_server(client, dialect)):
        model = other_server.model  # the one that is loaded: another would be loaded in its place
    return dialect or OPENAI, model or models[0], {}


def uncontrolled_settings(dialect: str) -> str:
    """What of a measurement is as such a server has it, in words; empty: nothing."""
    missing = [word for word in _CONTROLS if word not in EXTRA_FIELDS.get(dialect, frozenset())]
    if not missing:
        return ""
    return f"{dialect} takes no {', '.join(missing)}; left to it: {', '.join(_CONTROLS[w] for w in missing)}"


def _names(models: Any) -> list[str]:
    data = models.get("data") if isinstance(models, dict) else None
    found = data if isinstance(data, list) else []
    return [item["id"] for item in found if isinstance(item, dict) and isinstance(item.get("id"), str)]
