"""Docker and Podman compose files (the Compose Specification)."""

from __future__ import annotations

import re

from gpubox.interchange.containers import Container, environment, one_by_one
from gpubox.interchange.leftovers import left_out
from gpubox.interchange.limits import Budget
from gpubox.interchange.locate import Found, container_server
from gpubox.interchange.shell import Command
from gpubox.interchange.split import split_words
from gpubox.interchange.yamltext import Value, leaves, table, texts

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?::?([-?+])([^{}]*))?\}|\$([A-Za-z_]\w*)")
RESTARTS = {"always", "on-failure", "unless-stopped", "on-abnormal", "on-watchdog", "on-abort", "on-success"}
Server = tuple[str, Found, Command, str]
"""Its name, the server, the command, and the word that has it started again when it ends (``""``: it is not)."""


def is_compose(value: Value) -> bool:
    """Whether a YAML document is a compose file."""
    return isinstance(table(value).get("services"), dict)


def read_compose(value: Value) -> tuple[list[Server], list[str]]:
    """The services that are llama-servers, and a note for each line of what is none of them.

    Raises UsageError where its variables grow without measure.
    """
    servers: list[Server] = []
    left: list[str] = []
    budget = Budget()
    merged = {text for _, text in leaves(table(value)["services"])}
    for key, content in table(value).items():
        if key.startswith("x-") and all(text in merged for _, text in leaves(content)):
            continue  # services are made of it
        if key != "services":
            left += [left_out(f"{path} {text}", "compose's own") for path, text in leaves(content, key)]
    for name, service in table(table(value)["services"]).items():
        server = _service(table(service), budget)
        if server is None:
            left += [left_out(f"services.{path} {text}") for path, text in leaves(service, name)]
        else:
            servers.append((name, *server))
    return servers, left


def _service(service: dict[str, Value], budget: Budget) -> tuple[Found, Command, str] | None:
    unresolved: list[str] = []

    def text(value: str) -> str:
        return _interpolated(value, unresolved, budget)

    container = Container()
    restart = ""
    for key, value in service.items():
        if key == "image" and isinstance(value, str):
            container.image = text(value)
        elif key in {"command", "entrypoint"} and isinstance(value, (str, list)):
            words = split_words(value) if isinstance(value, str) else one_by_one(texts(value))
            words = [text(word) for word in words]
            if key == "command":
                container.command = words
            else:
                container.entrypoint = words
        elif key == "environment" and isinstance(value, (dict, list)):
            pairs: dict[str, str | None] | list[str] = (
                {name: text(str(one)) if one is not None else None for name, one in value.items()}
                if isinstance(value, dict)
                else [text(one) for one in texts(value)]
            )
            container.env = environment(pairs, container.notes)
        elif key == "volumes" and isinstance(value, list):
            _volumes(container, [_texts_of(item, text) for item in value])
        elif key == "ports" and isinstance(value, list):
            _ports(container, [_texts_of(item, text) for item in value])
        elif key == "restart" and value in RESTARTS:
            restart = str(value)
        elif key == "network_mode" and value == "host":
            container.host_network = True
        else:
            container.notes += [left_out(f"{path} {text(leaf)}", "compose's own") for path, leaf in leaves(value, key)]
    command = Command((), {}, ())
    found = container_server(container, tuple(dict.fromkeys(unresolved)))
    return (found, command, restart) if found else None


def _texts_of(value: Value, text: object) -> Value:
    assert callable(text)
    if isinstance(value, str):
        return str(text(value))
    return {key: text(item) if isinstance(item, str) else item for key, item in table(value).items()}


def _volumes(container: Container, values: list[Value]) -> None:
    for value in values:
        if isinstance(value, str):
            container.mount(value)
            continue
        entry = table(value)
        source, target = entry.get("source"), entry.get("target")
        if isinstance(source, str) and isinstance(target, str):
            container.volumes.append((source, target))
        rest = {key: item for key, item in entry.items() if key not in {"source", "target", "type"} or source is None}
        container.notes += [left_out(f"volume {path} {text}") for path, text in leaves(rest)] if rest else []


def _ports(container: Container, values: list[Value]) -> None:
    for value in values:
        if isinstance(value, str):
            container.publish(value)
            continue
        entry = table(value)
        inside, outside = entry.get("target"), entry.get("published")
        if isinstance(inside, str) and isinstance(outside, str):
            ip = entry.get("host_ip")
            container.publish(f"{ip}:{outside}:{inside}" if isinstance(ip, str) else f"{outside}:{inside}")
        else:
            container.notes += [left_out(f"port {path} {text}") for path, text in leaves(entry)]


def _interpolated(value: str, unresolved: list[str], budget: Budget) -> str:
    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[2] == "-":
            budget.spend(len(match[3]))
            return match[3]
        unresolved.append(match[0])
        return match[0]

    return _VARIABLE.sub(replaced, value)
