"""Docker and Podman compose files (the Compose Specification)."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpubox.interchange.containers import (
    RESTART_POLICIES,
    Container,
    ServerInvocation,
    environment,
    split_joined_options,
)
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ExpansionBudget, split_words
from gpubox.interchange.server_invocation import server_in_container
from gpubox.interchange.yaml_text import YamlValue, leaf_texts, mapping_of, omitted_leaves, texts_of

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?::?([-?+])([^{}]*))?\}|\$([A-Za-z_]\w*)")
_COMPOSE_ONLY = "compose's own"


def is_compose(value: YamlValue) -> bool:
    """Whether a YAML document is a compose file."""
    return isinstance(mapping_of(value).get("services"), dict)


def read_compose(documents: list[YamlValue]) -> Reading:
    """The services that run llama-server, and notes about all other lines.

    Raises UsageError if its variables expand to too much text.
    """
    entries: list[FileEntry] = []
    notes: list[str] = []
    budget = ExpansionBudget()
    for value in documents:
        _read_document(mapping_of(value), entries, notes, budget)
    return Reading(entries=entries, notes=notes)


def _read_document(
    values: dict[str, YamlValue], entries: list[FileEntry], notes: list[str], budget: ExpansionBudget
) -> None:
    in_services = {text for _, text in leaf_texts(values["services"])}
    for key, content in values.items():
        if key.startswith("x-") and all(text in in_services for _, text in leaf_texts(content)):
            continue  # an extension that the services merge
        if key != "services":
            notes += omitted_leaves(content, _COMPOSE_ONLY, path=key)
    for name, service in mapping_of(values["services"]).items():
        if server := _service(name, mapping_of(service), budget):
            entries.append(FileEntry(server))
        else:
            notes += omitted_leaves(service, path=f"services.{name}")


def _service(name: str, service: dict[str, YamlValue], budget: ExpansionBudget) -> ServerInvocation | None:
    unresolved: list[str] = []

    def text(value: str) -> str:
        return budget.expand(_VARIABLE, value, _value, unresolved)

    container = Container(name)
    for key, value in service.items():
        if key == "image" and isinstance(value, str):
            container.image = text(value)
        elif key in {"command", "entrypoint"} and isinstance(value, (str, list)):
            words = split_words(value) if isinstance(value, str) else split_joined_options(texts_of(value))
            setattr(container, key, [text(word) for word in words])
        elif key == "environment" and isinstance(value, (dict, list)):
            pairs: dict[str, str | None] | list[str] = (
                {name: text(str(content)) if content is not None else None for name, content in value.items()}
                if isinstance(value, dict)
                else [text(item) for item in texts_of(value)]
            )
            container.env = environment(pairs, container.notes)
        elif key == "volumes" and isinstance(value, list):
            _volumes(container, [_interpolated_texts(item, text) for item in value])
        elif key == "ports" and isinstance(value, list):
            _ports(container, [_interpolated_texts(item, text) for item in value])
        elif key == "restart" and value in RESTART_POLICIES:
            container.restart = str(value)
        elif key == "network_mode" and value == "host":
            container.host_network = True
        else:
            container.notes += [omitted(f"{path} {text(leaf)}", _COMPOSE_ONLY) for path, leaf in leaf_texts(value, key)]
    return server_in_container(container, tuple(dict.fromkeys(unresolved)))


def _interpolated_texts(value: YamlValue, text: Callable[[str], str]) -> YamlValue:
    if isinstance(value, str):
        return text(value)
    return {key: text(item) if isinstance(item, str) else item for key, item in mapping_of(value).items()}


def _volumes(container: Container, values: list[YamlValue]) -> None:
    for value in values:
        if isinstance(value, str):
            container.mount(value)
            continue
        entry = mapping_of(value)
        source, target = entry.get("source"), entry.get("target")
        if isinstance(source, str) and isinstance(target, str):
            container.volumes.append((source, target))
        rest = {key: item for key, item in entry.items() if key not in {"source", "target", "type"} or source is None}
        container.notes += omitted_leaves(rest, prefix="volume ")


def _ports(container: Container, values: list[YamlValue]) -> None:
    for value in values:
        if isinstance(value, str):
            container.publish(value)
            continue
        entry = mapping_of(value)
        inside, outside = entry.get("target"), entry.get("published")
        if isinstance(inside, str) and isinstance(outside, str):
            ip = entry.get("host_ip")
            container.publish(f"{ip}:{outside}:{inside}" if isinstance(ip, str) else f"{outside}:{inside}")
        else:
            container.notes += omitted_leaves(entry, prefix="port ")


def _value(variable: re.Match[str]) -> str | None:
    """What a variable stands for if no environment sets it: its default; None: nobody knows."""
    return "$" if variable[0] == "$$" else variable[3] if variable[2] == "-" else None


FORMAT = Format("compose files", lambda documents, path: read_compose(documents), "", is_compose, "yaml")
