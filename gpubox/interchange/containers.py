"""Containers of docker run, compose and Quadlet, and their folders and ports on the host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpubox.interchange.import_notes import join_words, omitted
from gpubox.interchange.profile_draft import ProfileDraft
from gpubox.interchange.script import ScriptCommand, split_words
from gpubox.profiles.flag_values import map_paths

_IMAGE = re.compile(r"(?:^|/)[\w.-]*llama[._-]?(?:cpp|server)[\w.-]*(?::[\w.-]*)?(?:@sha256:\w+)?$", re.I)
_OTHER_PROGRAM = re.compile(
    r"vllm|ollama|koboldcpp|localai|sglang|text-generation|tabby|llama-swap|llamafile|comfyui", re.I
)
_OWN_OPTION = re.compile(r"-hfr?|--hf-repo|-ngl|--(?:n-)?gpu-layers|--ctx-size|.*\.gguf", re.I)
"""A word that only llama-server's command line has."""
_PORT = re.compile(
    r"(?:(?P<ip>\[[0-9a-f:]*\]|\d+\.[\d.]+|[\w.-]*[a-z][\w.-]*):)?(?:(?P<host>\d*):)?(?P<inside>\d+)(?:/tcp)?", re.I
)
_DOCKER = {"docker", "podman", "nerdctl", "container"}
_SWITCHES = {
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "-dt", "-td", "-P",
    "--publish-all", "--rm", "--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable",
    "--sig-proxy", "--replace", "--tls-verify", "-q", "--quiet",
}  # fmt: skip
"""Options of ``docker run`` without a value; all others have one."""
RESTART_POLICIES = {
    "always", "on-failure", "unless-stopped", "on-abnormal", "on-watchdog", "on-abort", "on-success",
}  # fmt: skip
"""Values of ``restart`` in compose files and of ``Restart=`` in units that restart a server."""


@dataclass(frozen=True, slots=True)
class PublishedPort:
    """A port of the container that is published on the host."""

    inside: int
    port: int
    host: str


@dataclass(slots=True)
class Container:
    """One container that may run llama-server."""

    name: str = ""
    image: str = ""
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    volumes: list[tuple[str, str]] = field(default_factory=list)
    """(on the host, inside the container)"""
    ports: list[PublishedPort] = field(default_factory=list)
    host_network: bool = False
    title: str = ""
    restart: str = ""
    """The restart policy; ``""``: it is not restarted."""
    notes: list[str] = field(default_factory=list)

    def server_words(self) -> list[str] | None:
        """The command line, beginning with ``llama-server``; ``None`` if it starts another program.

        The entry point of llama.cpp's images is llama-server; that of the ``full`` images is a script that takes
        ``--server``.
        """
        if self.entrypoint:
            return [*self.entrypoint, *self.command]
        if not _IMAGE.search(self.image) and not self._takes_servers_options():
            return list(self.command) or None
        command = self.command
        if ":full" in self.image and command[:1] in (["--server"], ["-s"]):
            command = command[1:]
        if command and re.search(r"(?:^|/)(?:llama-)?server$", command[0]):
            return list(command)
        return ["llama-server", *command]

    def _takes_servers_options(self) -> bool:
        """Whether the entry point of an image with another name must be llama-server."""
        if _OTHER_PROGRAM.search(self.image):
            return False
        if not self.command:
            return any(name.startswith("LLAMA_ARG_") for name in self.env)
        return self.command[0].startswith("-") and any(map(_OWN_OPTION.fullmatch, self.command))

    def publish(self, text: str) -> None:
        """Adds the port ``[ip:][host:]inside[/tcp]`` of docker and podman."""
        match = _PORT.fullmatch(text)
        if match is None or int(match["inside"]) > 65535 or int(match["host"] or 0) > 65535:
            self.notes.append(omitted(f"port {text}", "its port on the host is unknown"))
            return
        inside = int(match["inside"])
        self.ports.append(PublishedPort(inside, int(match["host"] or inside), (match["ip"] or "0.0.0.0").strip("[]")))

    def mount(self, text: str) -> None:
        """Adds the volume ``host:inside[:options]``."""
        parts = re.split(r":(?![\\/]{2})(?!\\)", text)
        if re.fullmatch(r"[A-Za-z]", parts[0]) and len(parts) > 2:
            parts = [f"{parts[0]}:{parts[1]}", *parts[2:]]  # C:/models:/models
        if len(parts) < 2:
            self.notes.append(omitted(f"volume {text}"))
            return
        self.volumes.append((parts[0], parts[1].rstrip("/") or "/"))
        if len(parts) > 2:
            self.notes.append(omitted(f"volume option {':'.join(parts[2:])}", "a setting of the container only"))

    def map_to_host(self, draft: ProfileDraft) -> None:
        """Replaces the paths and the address in ``draft`` by those on the host, and adds title and restart policy."""
        draft.title = self.title
        used: set[tuple[str, str]] = set()

        def on_host(path: str) -> str:
            for host, inside in sorted(self.volumes, key=lambda pair: -len(pair[1])):
                if path == inside or path.startswith(f"{inside.rstrip('/')}/"):
                    used.add((host, inside))
                    return host.rstrip("/") + path[len(inside.rstrip("/")) :]
            if path.startswith("/"):
                draft.notes.append(f"{path} is a path in the container, and no volume maps it to the host.")
            return path

        if not draft.model.startswith(("hf:", "~")) and draft.model:
            draft.model = on_host(draft.model)
        draft.flags = {name: map_paths(name, value, on_host) for name, value in draft.flags.items()}
        for host, inside in self.volumes:
            if (host, inside) in used:
                draft.notes.append(f"{inside} in the container is {host} on the host; the profile has the host's path.")
            else:
                draft.notes.append(omitted(f"volume {host}:{inside}", "the command uses no path in it"))
        self._map_address(draft)
        if self.restart:
            draft.restart = True
            draft.notes.append(f"restart: {self.restart} became restart = true in the profile.")

    def _map_address(self, draft: ProfileDraft) -> None:
        inside = draft.port
        published = next((port for port in self.ports if port.inside == inside), None)
        for port in self.ports:
            if port is not published:
                draft.notes.append(
                    omitted(f"port {port.host}:{port.port}:{port.inside}", f"the server listens on {inside}")
                )
        if published is not None:
            host, draft.port, draft.host = draft.host, published.port, published.host
            if "host" in draft.given and host != published.host:
                draft.notes.append(f"It listens on {host} in the container and is published on {published.host}.")
            if published.port != inside:
                draft.notes.append(
                    f"The container's port {inside} is {published.port} on the host; the profile has the host's port."
                )
        elif not self.host_network:
            instead = "" if draft.host == "127.0.0.1" else f", not {draft.host}"
            draft.notes.append(f"The container publishes no port: the profile listens on 127.0.0.1:{inside}{instead}.")
            draft.host = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerInvocation:
    """The command line of a llama-server, and what belongs to it."""

    command: ScriptCommand
    """The command that starts it."""
    args: tuple[str, ...]
    notes: tuple[str, ...] = ()
    binary: str = ""
    """``""``: another program's, or that of a container."""
    container: Container | None = None
    """Its container, if any: then paths and address are those inside."""


def split_joined_options(words: Sequence[str]) -> list[str]:
    """``words``, with ``-m /a.gguf`` in one word split into option and value."""
    joined = re.compile(r"--?[A-Za-z][\w-]*\s+\S")
    return [part for word in words for part in (split_words(word) if joined.match(word) else [word])]


def read_docker_run(words: Sequence[str]) -> tuple[Container, int] | None:
    """The container of ``docker run ...``, and the number of words before ``docker``; ``None`` for other commands."""
    start = next((at for at, word in enumerate(words) if word.rpartition("/")[2] in _DOCKER), None)
    if start is None:
        return None
    verbs = list(words[start + 1 : start + 3])
    at = start + 2 + (verbs[:1] == ["container"])
    if verbs[:1] not in (["run"], ["create"]) and verbs != ["container", "run"]:
        return None
    container = Container()
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            container.image = word
            container.command = list(words[at:])
            return container, start
        name, joined, value = word.partition("=")
        if word in _SWITCHES or (name in _SWITCHES and joined):
            container.notes.append(omitted(word, "a setting of the container only"))
            continue
        if not joined and re.fullmatch(r"-[epvw].+", word):
            name, value = word[:2], word[2:]
        elif not joined:
            value = words[at] if at < len(words) else ""
            at += 1
        _run_option(container, name, value)
    return container, start


def _run_option(container: Container, name: str, value: str) -> None:
    if name in {"-v", "--volume"}:
        container.mount(value)
    elif name == "--mount":
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        source, target = parts.get("source") or parts.get("src"), parts.get("target") or parts.get("dst")
        if source:
            container.mount(f"{source}:{target or parts.get('destination', '')}")
        else:
            container.notes.append(omitted(f"{name} {value}", "a setting of the container only"))
    elif name in {"-p", "--publish"}:
        container.publish(value)
    elif name in {"-e", "--env"}:
        key, equals, text = value.partition("=")
        if equals:
            container.env[key] = text
        else:
            container.notes.append(omitted(f"{name} {key}", "only the shell that ran it has its value"))
    elif name == "--entrypoint":
        container.entrypoint = [value]
    elif name in {"--network", "--net"} and value == "host":
        container.host_network = True
    else:
        container.notes.append(omitted(join_words([name, value]), "a setting of the container only"))


def environment(value: Mapping[str, str | None] | Sequence[str], notes: list[str]) -> dict[str, str]:
    """The variables of ``environment`` in compose: a mapping, or a list of ``NAME=value``."""
    if not isinstance(value, Mapping):
        assignments = (item.partition("=") for item in value)
        value = {name: text if equals else None for name, equals, text in assignments}
    env: dict[str, str] = {}
    for name, text in value.items():
        if text is None:
            notes.append(omitted(f"variable {name}", "only the shell that ran it has its value"))
        else:
            env[name] = text
    return env
