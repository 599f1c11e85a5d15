"""Kubernetes manifests: every container of a pod that is a llama-server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpubox.interchange.compose import Server
from gpubox.interchange.containers import Container, Published, environment, one_by_one
from gpubox.interchange.leftovers import is_secret, left_out
from gpubox.interchange.locate import container_server
from gpubox.interchange.shell import Command
from gpubox.interchange.yamltext import Value, leaves, table, texts

_READ = {"name", "image", "command", "args", "env", "ports", "volumeMounts"}


def is_kubernetes(value: Value) -> bool:
    """Whether a YAML document is a manifest."""
    return {"apiVersion", "kind"} <= table(value).keys()


def read_kubernetes(documents: list[Value]) -> tuple[list[Server], list[str]]:
    """The containers that are llama-servers, and a note for each line of what is none of them."""
    servers: list[Server] = []
    left: list[str] = []
    nodes = _published(documents)
    for document in documents:
        kind = table(document).get("kind")
        pods = list(_pods(document))
        pod_ids = {id(pod) for pod, _ in pods}
        left += _lines(document, str(kind or ""), pod_ids)
        for pod, path in pods:
            for key, value in pod.items():
                if key not in {"containers", "volumes"}:
                    left += [
                        left_out(f"{path}.{place} {text}", "Kubernetes' own") for place, text in leaves(value, key)
                    ]
            volumes = _volumes(pod.get("volumes"), left, path)
            for item in _list(pod.get("containers")):
                if server := _container(table(item), volumes, nodes, pod.get("hostNetwork") == "true"):
                    servers.append(server)
                else:
                    left += [left_out(f"{path}.containers.{place} {text}") for place, text in leaves(item)]
    return servers, left


def _pods(value: Value, path: str = "", depth: int = 0) -> Iterator[tuple[dict[str, Value], str]]:
    """Every mapping with ``containers``, and where it stands."""
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


def _lines(value: Value, kind: str, pods: set[int]) -> list[str]:
    """What stands around the pods."""

    def without(part: Value) -> Value:
        if id(part) in pods:
            return None
        if isinstance(part, dict):
            kept = {key: without(item) for key, item in part.items()}
            return {key: item for key, item in kept.items() if item is not None}
        return [without(item) for item in part] if isinstance(part, list) else part

    rest = without(value)
    return [
        left_out(f"{kind} {path} {text}", "Kubernetes' own") for path, text in leaves(rest) if path and text != "{}"
    ]


def _published(documents: list[Value]) -> dict[str, int]:
    """Port (or its name) in the pod -> the port of the node that a Service gives it."""
    found: dict[str, int] = {}
    for document in documents:
        if table(document).get("kind") == "Service":
            for port in _list(table(table(document).get("spec")).get("ports")):
                node, inside = table(port).get("nodePort"), table(port).get("targetPort") or table(port).get("port")
                if isinstance(node, str) and node.isdecimal() and isinstance(inside, str):
                    found[inside] = int(node)
    return found


def _volumes(value: Value, left: list[str], path: str) -> dict[str, str]:
    """The name of each volume that is a folder of the host -> that folder."""
    found: dict[str, str] = {}
    for item in _list(value):
        entry = table(item)
        name, host = entry.get("name"), table(entry.get("hostPath")).get("path")
        if isinstance(name, str) and isinstance(host, str):
            found[name] = host
            entry = {key: inner for key, inner in entry.items() if key not in {"name", "hostPath"}}
            kind = table(table(item).get("hostPath")).get("type")
            entry |= {"hostPath.type": kind} if kind else {}
        left += [
            left_out(f"{path}.volumes.{place} {text}", "Kubernetes' own") for place, text in leaves(entry) if place
        ]
    return found


def _container(
    item: dict[str, Value], volumes: dict[str, str], nodes: dict[str, int], host_network: bool
) -> Server | None:
    container = Container(image=str(item.get("image") or ""), host_network=host_network)
    # Kubernetes' `command` is the entry point, its `args` the command.
    container.entrypoint, container.command = texts(item.get("command")), one_by_one(texts(item.get("args")))
    for pair in _list(item.get("env")):
        entry = table(pair)
        name, value = entry.get("name"), entry.get("value")
        if isinstance(name, str) and isinstance(value, str):
            container.env |= environment({name: value}, container.notes)
        else:
            container.notes += [left_out(f"env {path} {text}", "Kubernetes' own") for path, text in leaves(entry)]
    container.entrypoint = [_with_variables(word, container.env) for word in container.entrypoint]
    container.command = [_with_variables(word, container.env) for word in container.command]
    for mount in _list(item.get("volumeMounts")):
        entry = table(mount)
        name, inside = entry.get("name"), entry.get("mountPath")
        rest = {key: value for key, value in entry.items() if key not in {"name", "mountPath"}}
        if isinstance(name, str) and isinstance(inside, str) and name in volumes and "subPath" not in rest:
            container.volumes.append((volumes[name], inside.rstrip("/") or "/"))
        else:
            rest = dict(entry)
        container.notes += [
            left_out(f"volumeMounts.{path} {text}", "Kubernetes' own") for path, text in leaves(rest) if path
        ]
    for port in _list(item.get("ports")):
        _port(container, table(port), nodes)
    for key in item.keys() - _READ:
        container.notes += [left_out(f"{path} {text}", "Kubernetes' own") for path, text in leaves(item[key], key)]
    found = container_server(container, ())
    return (str(item.get("name") or ""), found, Command((), {}, ()), "") if found else None


def _with_variables(word: str, env: Mapping[str, str]) -> str:
    """``word`` with the ``$(NAME)`` that Kubernetes puts in for variables of the container; secrets stay names."""

    def value(match: re.Match[str]) -> str:
        return env[match[1]] if match[1] in env and not is_secret(match[1]) else match[0]

    return re.sub(r"\$\(([A-Za-z_][\w.-]*)\)", value, word)


def _port(container: Container, entry: dict[str, Value], nodes: dict[str, int]) -> None:
    inside, name = entry.get("containerPort"), entry.get("name")
    if isinstance(inside, str) and inside.isdecimal():
        node = nodes.get(inside) or nodes.get(str(name))
        host = entry.get("hostPort")
        outside = int(host) if isinstance(host, str) and host.isdecimal() else node
        if outside:
            container.ports.append(Published(int(inside), outside, "0.0.0.0"))
        entry = {key: value for key, value in entry.items() if key not in {"containerPort", "hostPort"}}
        if not outside:
            entry["containerPort"] = inside
    container.notes += [left_out(f"ports.{path} {text}", "Kubernetes' own") for path, text in leaves(entry) if path]


def _list(value: Value) -> list[Value]:
    return value if isinstance(value, list) else []
