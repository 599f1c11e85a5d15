"""Identifies the OpenAI-compatible server at an address, and what its kind cannot control in a measurement."""

from __future__ import annotations

from typing import Any

from gpubox.errors import ExitCode, GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.server.client import LlamaClient
from gpubox.server.other_server import EXTRA_FIELDS, LLAMA, LM_STUDIO, OLLAMA, OPENAI, detect_dialect, read_other_server

_CONTROLS = {"cache_prompt": "its cache", "ignore_eos": "the length of answers", "chat_template_kwargs": "thinking"}


async def identify_endpoint(client: LlamaClient, model: str, *, managed: bool) -> tuple[str, str, dict[str, Any]]:
    """The dialect, the model's name for requests, and llama-server's ``/props`` (empty for other servers).

    ``managed``: gpubox started it, so it is a llama-server. Raises GpuboxError if nothing answers or the model is
    missing.
    """
    props = await client.get_json("/props")
    props = props if isinstance(props, dict) else {}
    if managed or "default_generation_settings" in props:
        return LLAMA, model or "gpubox", props  # a llama-server accepts any model name
    models = _model_ids(await client.get_json("/v1/models"))
    if model and models and model not in models:
        raise GpuboxError(
            f"{client.base_url} has no model {model!r}.",
            f"Its models are: {sanitize_line(', '.join(models[:8]))[:400]}.",
        )
    if not model and not models:
        raise GpuboxError(f"{client.base_url} lists no models.", "Name one: --model NAME.", code=ExitCode.UNHEALTHY)
    dialect = await detect_dialect(client)
    if not model and dialect in (OLLAMA, LM_STUDIO) and (peer := await read_other_server(client, dialect)):
        model = peer.model  # the loaded one: naming another would make the server load it
    return dialect or OPENAI, model or models[0], {}


def uncontrolled_settings(dialect: str) -> str:
    """A clause that names the settings which requests cannot control on such a server; empty if there are none."""
    missing = [field for field in _CONTROLS if field not in EXTRA_FIELDS.get(dialect, frozenset())]
    if not missing:
        return ""
    settings = ", ".join(_CONTROLS[field] for field in missing)
    return f"{dialect} does not support {', '.join(missing)}, so gpubox cannot control {settings}"


def _model_ids(models: Any) -> list[str]:
    data = models.get("data") if isinstance(models, dict) else None
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
