"""Kubernetes manifests: every container of a pod that is a llama-server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpubox.interchange.compose import ContainerServer
from gpubox.interchange.containers import Container, PublishedPort, environment, split_joined_options
from gpubox.interchange.import_notes import is_secret, omitted
from gpubox.interchange.script import ScriptCommand
from gpubox.interchange.server_invocation import server_in_container
from gpubox.interchange.yaml_text import YamlValue, leaf_texts, mapping_of, texts_of

_READ = {"name", "image", "command", "args", "env", "ports", "volumeMounts"}


def is_kubernetes(value: YamlValue) -> bool:
    """Whether a YAML document is a manifest."""
    return {"apiVersion", "kind"} <= mapping_of(value).keys()


def read_kubernetes(documents: list[YamlValue]) -> tuple[list[ContainerServer], list[str]]:
    """The containers that are llama-servers, and a note for each line of what is none of them."""
    servers: list[ContainerServer] = []
    left: list[str] = []
    nodes = _published(documents)
    for document in documents:
        kind = mapping_of(document).get("kind")
        pods = list(_pods(document))
        pod_ids = {id(pod) for pod, _ in pods}
        left += _lines(document, str(kind or ""), pod_ids)
        for pod, path in pods:
            for key, value in pod.items():
                if key not in {"containers", "volumes"}:
                    left += [
                        omitted(f"{path}.{place} {text}", "Kubernetes' own") for place, text in leaf_texts(value, key)
                    ]
            volumes = _volumes(pod.get("volumes"), left, path)
            for item in _list(pod.get("containers")):
                if server := _container(mapping_of(item), volumes, nodes, pod.get("hostNetwork") == "true"):
                    servers.append(server)
                else:
                    left += [omitted(f"{path}.containers.{place} {text}") for place, text in leaf_texts(item)]
    return servers, left


def _pods(value: YamlValue, path: str = "", depth: int = 0) -> Iterator[tuple[dict[str, YamlValue], str]]:
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


def _lines(value: YamlValue, kind: str, pods: set[int]) -> list[str]:
    """What stands around the pods."""

    def without(part: YamlValue) -> YamlValue:
        if id(part) in pods:
            return None
        if isinstance(part, dict):
            kept = {key: without(item) for key, item in part.items()}
            return {key: item for key, item in kept.items() if item is not None}
        return [without(item) for item in part] if isinstance(part, list) else part

    rest = without(value)
    return [
        omitted(f"{kind} {path} {text}", "Kubernetes' own") for path, text in leaf_texts(rest) if path and text != "{}"
    ]


def _published(documents: list[YamlValue]) -> dict[str, int]:
    """Port (or its name) in the pod -> the port of the node that a Service gives it."""
    found: dict[str, int] = {}
    for document in documents:
        if mapping_of(document).get("kind") == "Service":
            for port in _list(mapping_of(mapping_of(document).get("spec")).get("ports")):
                node, inside = (
                    mapping_of(port).get("nodePort"),
                    mapping_of(port).get("targetPort") or mapping_of(port).get("port"),
                )
                if isinstance(node, str) and node.isdecimal() and isinstance(inside, str):
                    found[inside] = int(node)
    return found


def _volumes(value: YamlValue, left: list[str], path: str) -> dict[str, str]:
    """The name of each volume that is a folder of the host -> that folder."""
    found: dict[str, str] = {}
    for item in _list(value):
        entry = mapping_of(item)
        name, host = entry.get("name"), mapping_of(entry.get("hostPath")).get("path")
        if isinstance(name, str) and isinstance(host, str):
            found[name] = host
            entry = {key: inner for key, inner in entry.items() if key not in {"name", "hostPath"}}
            kind = mapping_of(mapping_of(item).get("hostPath")).get("type")
            entry |= {"hostPath.type": kind} if kind else {}
        left += [
            omitted(f"{path}.volumes.{place} {text}", "Kubernetes' own") for place, text in leaf_texts(entry) if place
        ]
    return found


def _container(
    item: dict[str, YamlValue], volumes: dict[str, str], nodes: dict[str, int], host_network: bool
) -> ContainerServer | None:
    container = Container(image=str(item.get("image") or ""), host_network=host_network)
    # Kubernetes' `command` is the entry point, its `args` the command.
    container.entrypoint, container.command = (
        texts_of(item.get("command")),
        split_joined_options(texts_of(item.get("args"))),
    )
    for pair in _list(item.get("env")):
        entry = mapping_of(pair)
        name, value = entry.get("name"), entry.get("value")
        if isinstance(name, str) and isinstance(value, str):
            container.env |= environment({name: value}, container.notes)
        else:
            container.notes += [omitted(f"env {path} {text}", "Kubernetes' own") for path, text in leaf_texts(entry)]
    container.entrypoint = [_with_variables(word, container.env) for word in container.entrypoint]
    container.command = [_with_variables(word, container.env) for word in container.command]
    for mount in _list(item.get("volumeMounts")):
        entry = mapping_of(mount)
        name, inside = entry.get("name"), entry.get("mountPath")
        rest = {key: value for key, value in entry.items() if key not in {"name", "mountPath"}}
        if isinstance(name, str) and isinstance(inside, str) and name in volumes and "subPath" not in rest:
            container.volumes.append((volumes[name], inside.rstrip("/") or "/"))
        else:
            rest = dict(entry)
        container.notes += [
            omitted(f"volumeMounts.{path} {text}", "Kubernetes' own") for path, text in leaf_texts(rest) if path
        ]
    for port in _list(item.get("ports")):
        _port(container, mapping_of(port), nodes)
    for key in item.keys() - _READ:
        container.notes += [omitted(f"{path} {text}", "Kubernetes' own") for path, text in leaf_texts(item[key], key)]
    found = server_in_container(container, ())
    return (str(item.get("name") or ""), found, ScriptCommand((), {}, ()), "") if found else None


def _with_variables(word: str, env: Mapping[str, str]) -> str:
    """``word`` with the ``$(NAME)`` that Kubernetes puts in for variables of the container; secrets stay names."""

    def value(match: re.Match[str]) -> str:
        return env[match[1]] if match[1] in env and not is_secret(match[1]) else match[0]

    return re.sub(r"\$\(([A-Za-z_][\w.-]*)\)", value, word)


def _port(container: Container, entry: dict[str, YamlValue], nodes: dict[str, int]) -> None:
    inside, name = entry.get("containerPort"), entry.get("name")
    if isinstance(inside, str) and inside.isdecimal():
        node = nodes.get(inside) or nodes.get(str(name))
        host = entry.get("hostPort")
        outside = int(host) if isinstance(host, str) and host.isdecimal() else node
        if outside:
            container.ports.append(PublishedPort(int(inside), outside, "0.0.0.0"))
        entry = {key: value for key, value in entry.items() if key not in {"containerPort", "hostPort"}}
        if not outside:
            entry["containerPort"] = inside
    container.notes += [omitted(f"ports.{path} {text}", "Kubernetes' own") for path, text in leaf_texts(entry) if path]


def _list(value: YamlValue) -> list[YamlValue]:
    return value if isinstance(value, list) else []
