"""Kubernetes manifests: every container of a pod that runs llama-server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpubox.interchange.containers import (
    Container,
    PublishedPort,
    ServerInvocation,
    environment,
    split_joined_options,
)
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import is_secret
from gpubox.interchange.server_invocation import server_in_container
from gpubox.interchange.yaml_text import YamlValue, mapping_of, omitted_leaves, texts_of

_READ_KEYS = {"name", "image", "command", "args", "env", "ports", "volumeMounts"}
_KUBERNETES_ONLY = "Kubernetes' own"


def is_kubernetes(value: YamlValue) -> bool:
    """Whether a YAML document is a manifest."""
    return {"apiVersion", "kind"} <= mapping_of(value).keys()


def read_kubernetes(documents: list[YamlValue]) -> Reading:
    """The containers that run llama-server, and notes about all other lines."""
    entries: list[FileEntry] = []
    notes: list[str] = []
    node_ports = _node_ports(documents)
    for document in documents:
        kind = str(mapping_of(document).get("kind") or "")
        pods = list(_pods(document))
        around = _without(document, {id(pod) for pod, _ in pods})
        notes += omitted_leaves(around, _KUBERNETES_ONLY, prefix=f"{kind} ")
        for pod, path in pods:
            for key, value in pod.items():
                if key not in {"containers", "volumes"}:
                    notes += omitted_leaves(value, _KUBERNETES_ONLY, path=f"{path}.{key}")
            volumes = _host_folders(pod.get("volumes"), notes, path)
            for item in _list(pod.get("containers")):
                if server := _container(mapping_of(item), volumes, node_ports, pod.get("hostNetwork") == "true"):
                    entries.append(FileEntry(server))
                else:
                    notes += omitted_leaves(item, prefix=f"{path}.containers.")
    return Reading(entries=entries, notes=notes)


def _pods(value: YamlValue, path: str = "", depth: int = 0) -> Iterator[tuple[dict[str, YamlValue], str]]:
    """Every mapping with ``containers``, and its path."""
    if depth > 12:
        return
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value, path
            return
        for key, inner in value.items():
            yield from _pods(inner, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _pods(inner, path, depth + 1)


def _without(value: YamlValue, pods: set[int]) -> YamlValue:
    """``value`` without the mappings whose ids are ``pods``, and without empty mappings."""
    if id(value) in pods:
        return None
    if isinstance(value, dict):
        kept = {key: _without(item, pods) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {})}
    return [_without(item, pods) for item in value] if isinstance(value, list) else value


def _node_ports(documents: list[YamlValue]) -> dict[str, int]:
    """Port (or port name) in the pod -> the node's port that a Service gives it."""
    node_ports: dict[str, int] = {}
    for document in documents:
        if mapping_of(document).get("kind") == "Service":
            for port in _list(mapping_of(mapping_of(document).get("spec")).get("ports")):
                entry = mapping_of(port)
                node, inside = entry.get("nodePort"), entry.get("targetPort") or entry.get("port")
                if isinstance(node, str) and node.isdecimal() and isinstance(inside, str):
                    node_ports[inside] = int(node)
    return node_ports


def _host_folders(value: YamlValue, notes: list[str], path: str) -> dict[str, str]:
    """Volume name -> its folder on the host."""
    folders: dict[str, str] = {}
    for item in _list(value):
        entry = mapping_of(item)
        name, host = entry.get("name"), mapping_of(entry.get("hostPath")).get("path")
        if isinstance(name, str) and isinstance(host, str):
            folders[name] = host
            entry = {key: inner for key, inner in entry.items() if key not in {"name", "hostPath"}}
            kind = mapping_of(mapping_of(item).get("hostPath")).get("type")
            entry |= {"hostPath.type": kind} if kind else {}
        notes += omitted_leaves(entry, _KUBERNETES_ONLY, prefix=f"{path}.volumes.")
    return folders


def _container(
    item: dict[str, YamlValue], volumes: dict[str, str], node_ports: dict[str, int], host_network: bool
) -> ServerInvocation | None:
    container = Container(str(item.get("name") or ""), str(item.get("image") or ""), host_network=host_network)
    for pair in _list(item.get("env")):
        entry = mapping_of(pair)
        name, value = entry.get("name"), entry.get("value")
        if isinstance(name, str) and isinstance(value, str):
            container.env |= environment({name: value}, container.notes)
        else:
            container.notes += omitted_leaves(entry, _KUBERNETES_ONLY, prefix="env ")
    # Kubernetes' `command` is the entry point, its `args` the command.
    container.entrypoint = [_with_variables(word, container.env) for word in texts_of(item.get("command"))]
    arguments = split_joined_options(texts_of(item.get("args")))
    container.command = [_with_variables(word, container.env) for word in arguments]
    for mount in _list(item.get("volumeMounts")):
        entry = mapping_of(mount)
        name, inside = entry.get("name"), entry.get("mountPath")
        rest = {key: value for key, value in entry.items() if key not in {"name", "mountPath"}}
        if isinstance(name, str) and isinstance(inside, str) and name in volumes and "subPath" not in rest:
            container.volumes.append((volumes[name], inside.rstrip("/") or "/"))
            entry = rest
        container.notes += omitted_leaves(entry, _KUBERNETES_ONLY, prefix="volumeMounts.")
    for port in _list(item.get("ports")):
        _port(container, mapping_of(port), node_ports)
    for key in item.keys() - _READ_KEYS:
        container.notes += omitted_leaves(item[key], _KUBERNETES_ONLY, path=key)
    return server_in_container(container)


def _with_variables(word: str, env: Mapping[str, str]) -> str:
    """``word`` with the container's variables for ``$(NAME)``, as Kubernetes does it; secrets stay names."""

    def value(match: re.Match[str]) -> str:
        return env[match[1]] if match[1] in env and not is_secret(match[1]) else match[0]

    return re.sub(r"\$\(([A-Za-z_][\w.-]*)\)", value, word)


def _port(container: Container, entry: dict[str, YamlValue], node_ports: dict[str, int]) -> None:
    inside, name = entry.get("containerPort"), entry.get("name")
    if isinstance(inside, str) and inside.isdecimal():
        host = entry.get("hostPort")
        node = node_ports.get(inside) or node_ports.get(str(name))
        outside = int(host) if isinstance(host, str) and host.isdecimal() else node
        entry = {key: value for key, value in entry.items() if key not in {"containerPort", "hostPort"}}
        if outside:
            container.ports.append(PublishedPort(int(inside), outside, "0.0.0.0"))
        else:
            entry["containerPort"] = inside
    container.notes += omitted_leaves(entry, _KUBERNETES_ONLY, prefix="ports.")


def _list(value: YamlValue) -> list[YamlValue]:
    return value if isinstance(value, list) else []


FORMAT = Format("Kubernetes manifests", lambda documents, path: read_kubernetes(documents), "", is_kubernetes, "yaml")
