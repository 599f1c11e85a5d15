"""Quadlet ``.container`` units: containers that systemd starts with Podman (podman-systemd.unit(5))."""

from __future__ import annotations

import re

from gpubox.interchange.compose import RESTART_POLICIES, ContainerServer
from gpubox.interchange.containers import Container, environment
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ScriptCommand
from gpubox.interchange.server_invocation import server_in_container
from gpubox.interchange.systemd import unit_assignments, unit_words


def read_quadlet(text: str) -> tuple[list[ContainerServer], list[str]]:
    """The server of a ``.container`` unit, and a note for each line that says nothing of it."""
    container = Container()
    left: list[str] = []
    restart = ""
    for section, key, value in unit_assignments(text):
        if section == "Unit" and key == "Description":
            container.title = value
            continue
        if section == "Container" and _quadlet(container, key, value):
            continue
        if key == "Restart" and value in RESTART_POLICIES:
            restart = str(value)
        else:
            left.append(
                omitted(f"{key}={value}" if section else f"{key} {value}".strip(), f"[{section}]" if section else "")
            )
    found = server_in_container(container, ())
    return ([("", found, ScriptCommand((), {}, ()), restart)] if found else []), left


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
