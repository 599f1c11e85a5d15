"""Finds llama-server in the words of a command: bare, behind a launcher, in ``sh -c`` or in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpubox.interchange.batch import looks_like_batch, read_batch
from gpubox.interchange.containers import Container, read_docker_run
from gpubox.interchange.import_notes import is_secret, join_words, omitted
from gpubox.interchange.script import ScriptCommand
from gpubox.interchange.shell import read_shell

_BINARY = re.compile(r"llama[-_]server(?:[-_.][\w.-]*)?", re.I)
_NOT_A_PROGRAM = re.compile(r"\.(?:service|log|sh|bat|cmd|py|conf|toml|txt|pid|env|ya?ml|json|md)$", re.I)
_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")
_SHELLS = {"sh", "bash", "zsh", "dash", "cmd"}
_SILENT = {"exec", "nohup", "env", "setsid", "start", "$", "&", ">", "%", "command"}
"""What stands before a server without changing what it does."""
_OTHER_VERBS = {
    "systemctl", "service", "pkill", "killall", "kill", "pgrep", "which", "type", "where", "cmake", "make",
    "ninja", "cp", "mv", "ln", "rm", "chmod", "chown", "ls", "echo", "printf", "cd", "tail", "cat", "grep",
    "git", "journalctl", "test", "[", "[[", "apt", "apt-get", "brew", "winget", "taskkill", "tasklist", "title",
    "man", "curl", "wget", "install", "pip", "ps", "export", "pushd", "popd", "chcp", "pause", "tee", "mkdir",
}  # fmt: skip
"""Commands that speak of llama-server without starting it."""


_CARRIERS = {
    "tmux", "screen", "byobu", "zellij", "dtach", "abduco", "ssh", "mosh", "su", "runuser", "script", "xterm",
    "gnome-terminal", "konsole", "kitty", "alacritty", "wsl", "watch",
}  # fmt: skip
"""Programs that are given a whole command line as one word."""
_NAMES = {
    "--name", "--hostname", "--unit", "--target", "--network-alias", "--container-name", "--session", "--title",
    "--description", "--slice", "--entrypoint", "--label", "--tag", "--network", "--profile",
}  # fmt: skip
"""Options whose value may be called like the server without being it."""


@dataclass(frozen=True, slots=True)
class ServerInvocation:
    """A llama-server that a command starts."""

    binary: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    """Expansions that only a shell or another program could have done, as written."""
    branched: tuple[str, ...] = ()
    """Variables that the script sets in branches, and that the command uses."""
    container: Container | None = None
    """The container it runs in: its paths and its address are those inside."""


def find_server(command: ScriptCommand, depth: int = 0) -> ServerInvocation | None:
    """The server that ``command`` starts, or ``None``. Raises UsageError where its text grows without measure."""
    words = command.words
    if is_unrelated(command):
        return None
    if found := _nested(command, depth) if depth < 3 else None:
        return found
    if run := read_docker_run(words):
        return _in_container(command, *run, depth)
    return _plain(command, sure=True) or _plain(command, sure=False)


def is_unrelated(command: ScriptCommand) -> bool:
    """Whether a command only speaks of programs: ``chmod +x llama-server``, ``title llama-server``."""
    return not command.words or _base(command.words[0]) in _OTHER_VERBS


def _nested(command: ScriptCommand, depth: int) -> ServerInvocation | None:
    """The server in a text that the command hands to a shell; what else is in that text is named."""
    public = {name: value for name, value in command.env.items() if not is_secret(name)}
    for inner in _inner(command.words):
        found: ServerInvocation | None = None
        beside: list[str] = []
        for nested in read_batch(inner) if looks_like_batch(inner) else read_shell(inner, public):
            branched = (*command.branched, *nested.branched)
            merged = replace(nested, env={**command.env, **nested.env}, branched=branched)
            if found is None and (server := find_server(merged, depth + 1)):
                found = server
                beside += [omitted(word) for word in nested.dropped]
            else:
                beside.append(omitted(nested.text))
        if found is not None:
            # "cmd /c" takes all words after it, the others one
            around = [word for word in command.words if word != inner and word not in inner.split()]
            notes = (*_before(around), *beside, *found.notes)
            return replace(found, notes=notes)
    return None


def server_in_container(container: Container, unresolved: tuple[str, ...], depth: int = 0) -> ServerInvocation | None:
    """The server that ``container`` runs, or ``None``; its notes name what of the container no profile has."""
    words = container.server_words()
    if words is None:
        return None
    found = find_server(ScriptCommand(tuple(words), container.env, unresolved), depth + 1) if depth < 3 else None
    if found is None:
        return None
    where = f"It ran in the container image {container.image}."
    return replace(found, binary="", notes=(where, *container.notes, *found.notes), container=container)


def _in_container(command: ScriptCommand, container: Container, start: int, depth: int) -> ServerInvocation | None:
    found = server_in_container(container, command.unresolved, depth)
    if found is None:
        return None
    outside = [omitted(f"{name}={value}", "it is outside the container") for name, value in command.env.items()]
    notes = (*_before(command.words[:start]), *outside, *found.notes)
    return replace(found, notes=notes, branched=command.branched)


def _plain(command: ScriptCommand, *, sure: bool) -> ServerInvocation | None:
    """The server among the words themselves; with ``sure`` not one that may be the value of an option before it."""
    words = command.words
    for at, word in enumerate(words):
        if end := _program(words, at, sure=sure):
            env = _assigned(words[:at], command.env)
            return ServerInvocation(word, words[end:], env, _before(words[:at]), command.unresolved, command.branched)
    return None


def flags_without_program(commands: Sequence[ScriptCommand]) -> ScriptCommand | None:
    """The one list of flags that a text without any program is, or ``None``."""
    if not commands or not all(command.words[0].startswith(("-", "–", "—")) for command in commands):
        return None
    words = [word for command in commands for word in command.words]
    return ScriptCommand(tuple(words), {}, tuple(raw for command in commands for raw in command.unresolved))


def _program(words: Sequence[str], at: int, *, sure: bool) -> int:
    """Where the arguments begin if ``words[at]`` is the server, else 0."""
    base, following = _base(words[at]), words[at + 1] if at + 1 < len(words) else ""
    if words[at] == "gpubox.engines.embedded_server":
        return at + 1
    if _BINARY.fullmatch(base) and not _NOT_A_PROGRAM.search(base):
        before = words[at - 1] if at else ""
        if not before.startswith("--") or "=" in before:
            return at + 1
        # "--name llama-server" names something, "systemd-run --user llama-server -m ..." starts it
        return 0 if sure or before in _NAMES or not following.startswith("-") else at + 1
    if base == "server" and (following.startswith("-") or "llama" in words[at]):
        return at + 1
    return at + 2 if base == "llama" and following in {"serve", "server"} else 0


def _base(word: str) -> str:
    base = re.split(r"[\\/]", word)[-1]
    return base[:-4] if base.lower().endswith(".exe") else base


def _inner(words: Sequence[str]) -> list[str]:
    """The texts that ``sh -c TEXT`` and ``tmux new TEXT`` run."""
    for at, word in enumerate(words[:-2]):
        if _base(word).lower() in _SHELLS and re.fullmatch(r"-[a-z]*c|/[ck]", words[at + 1], re.I):
            return [words[at + 2] if not words[at + 1].startswith("/") else " ".join(words[at + 2 :])]
    launcher = next((word for word in words if not (_ASSIGNMENT.fullmatch(word) or _silent(word))), "")
    if _base(launcher) == "sudo":
        launcher = next((word for word in words if _base(word) in _CARRIERS), "")
    return [word for word in words if re.search(r"\s", word)] if _base(launcher) in _CARRIERS else []


def _assigned(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    return {**env, **{match[1]: match[2] for word in words if (match := _ASSIGNMENT.fullmatch(word))}}


def _before(words: Sequence[str]) -> tuple[str, ...]:
    """The note for what stands before the server, where that is more than words which change nothing."""
    if words[-2:-1] and words[-1] == "-m":
        return ()  # python -m
    rest = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    return (omitted(join_words(rest), "it stands before the server"),) if not all(map(_silent, rest)) else ()


def _silent(word: str) -> bool:
    shell = _base(word).lower() in _SHELLS or re.fullmatch(r"-[a-z]*c", word)
    return not word or bool(shell) or _base(word) in _SILENT or bool(re.fullmatch(r"/[a-z]{1,5}", word, re.I))
