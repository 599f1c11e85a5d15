"""Docker and Podman compose files (the Compose Specification)."""

from __future__ import annotations

import re

from gpubox.interchange.containers import Container, environment, split_joined_options
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ExpansionBudget, ScriptCommand, split_words
from gpubox.interchange.server_invocation import ServerInvocation, server_in_container
from gpubox.interchange.yaml_text import YamlValue, leaf_texts, mapping_of, texts_of

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?::?([-?+])([^{}]*))?\}|\$([A-Za-z_]\w*)")
RESTART_POLICIES = {"always", "on-failure", "unless-stopped", "on-abnormal", "on-watchdog", "on-abort", "on-success"}
ContainerServer = tuple[str, ServerInvocation, ScriptCommand, str]
"""Its name, the server, the command, and the word that has it started again when it ends (``""``: it is not)."""


def is_compose(value: YamlValue) -> bool:
    """Whether a YAML document is a compose file."""
    return isinstance(mapping_of(value).get("services"), dict)


def read_compose(value: YamlValue) -> tuple[list[ContainerServer], list[str]]:
    """The services that are llama-servers, and a note for each line of what is none of them.

    Raises UsageError where its variables grow without measure.
    """
    servers: list[ContainerServer] = []
    left: list[str] = []
    budget = ExpansionBudget()
    merged = {text for _, text in leaf_texts(mapping_of(value)["services"])}
    for key, content in mapping_of(value).items():
        if key.startswith("x-") and all(text in merged for _, text in leaf_texts(content)):
            continue  # services are made of it
        if key != "services":
            left += [omitted(f"{path} {text}", "compose's own") for path, text in leaf_texts(content, key)]
    for name, service in mapping_of(mapping_of(value)["services"]).items():
        server = _service(mapping_of(service), budget)
        if server is None:
            left += [omitted(f"services.{path} {text}") for path, text in leaf_texts(service, name)]
        else:
            servers.append((name, *server))
    return servers, left


def _service(
    service: dict[str, YamlValue], budget: ExpansionBudget
) -> tuple[ServerInvocation, ScriptCommand, str] | None:
    unresolved: list[str] = []

    def text(value: str) -> str:
        return _interpolated(value, unresolved, budget)

    container = Container()
    restart = ""
    for key, value in service.items():
        if key == "image" and isinstance(value, str):
            container.image = text(value)
        elif key in {"command", "entrypoint"} and isinstance(value, (str, list)):
            words = split_words(value) if isinstance(value, str) else split_joined_options(texts_of(value))
            words = [text(word) for word in words]
            if key == "command":
                container.command = words
            else:
                container.entrypoint = words
        elif key == "environment" and isinstance(value, (dict, list)):
            pairs: dict[str, str | None] | list[str] = (
                {name: text(str(one)) if one is not None else None for name, one in value.items()}
                if isinstance(value, dict)
                else [text(one) for one in texts_of(value)]
            )
            container.env = environment(pairs, container.notes)
        elif key == "volumes" and isinstance(value, list):
            _volumes(container, [_texts_of(item, text) for item in value])
        elif key == "ports" and isinstance(value, list):
            _ports(container, [_texts_of(item, text) for item in value])
        elif key == "restart" and value in RESTART_POLICIES:
            restart = str(value)
        elif key == "network_mode" and value == "host":
            container.host_network = True
        else:
            container.notes += [
                omitted(f"{path} {text(leaf)}", "compose's own") for path, leaf in leaf_texts(value, key)
            ]
    command = ScriptCommand((), {}, ())
    found = server_in_container(container, tuple(dict.fromkeys(unresolved)))
    return (found, command, restart) if found else None


def _texts_of(value: YamlValue, text: object) -> YamlValue:
    assert callable(text)
    if isinstance(value, str):
        return str(text(value))
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
        container.notes += [omitted(f"volume {path} {text}") for path, text in leaf_texts(rest)] if rest else []


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
            container.notes += [omitted(f"port {path} {text}") for path, text in leaf_texts(entry)]


def _interpolated(value: str, unresolved: list[str], budget: ExpansionBudget) -> str:
    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[2] == "-":
            budget.spend(len(match[3]))
            return match[3]
        unresolved.append(match[0])
        return match[0]

    return _VARIABLE.sub(replaced, value)
