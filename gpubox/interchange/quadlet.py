"""Quadlet ``.container`` units: containers that systemd starts with Podman (podman-systemd.unit(5))."""

from __future__ import annotations

import re

from gpubox.interchange.compose import RESTARTS, Server
from gpubox.interchange.containers import Container, environment
from gpubox.interchange.leftovers import left_out
from gpubox.interchange.locate import container_server
from gpubox.interchange.shell import Command
from gpubox.interchange.systemd import assignments, unit_words


def read_quadlet(text: str) -> tuple[list[Server], list[str]]:
    """The server of a ``.container`` unit, and a note for each line that says nothing of it."""
    container = Container()
    left: list[str] = []
    restart = ""
    for section, key, value in assignments(text):
        if section == "Unit" and key == "Description":
            container.title = value
            continue
        if section == "Container" and _quadlet(container, key, value):
            continue
        if key == "Restart" and value in RESTARTS:
            restart = str(value)
        else:
            left.append(
                left_out(f"{key}={value}" if section else f"{key} {value}".strip(), f"[{section}]" if section else "")
            )
    found = container_server(container, ())
    return ([("", found, Command((), {}, ()), restart)] if found else []), left


def _quadlet(container: Container, key: str, value: str) -> bool:
    """Takes one key of ``[Container]``; whether there is a place for it."""
    if key == "Image":
        container.image = value
    elif key == "Exec":
        container.command = unit_words(value)
    elif key == "Entrypoint":
        container.entrypoint = unit_words(value)
    elif key == "Environment":
        container.env |= environment(unit_words(value), container.notes)
    elif key == "Volume":
        container.mount(re.sub(r"%h", "~", value))
    elif key == "PublishPort":
        container.publish(value)
    elif key == "Network" and value == "host":
        container.host_network = True
    else:
        return False
    return True
