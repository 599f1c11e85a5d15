"""Finds llama-server in the words of a command: bare, behind a launcher, in ``sh -c`` or in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpubox.interchange.batch import looks_like_batch, read_batch
from gpubox.interchange.shell import Command, read_shell

_BINARY = re.compile(r"llama[-_]server(?:[-_.][\w.-]*)?", re.I)
_IMAGE = re.compile(r"(?:^|/)llama\.cpp:(server|full)")
_NOT_A_PROGRAM = re.compile(r"\.(?:service|log|sh|bat|cmd|py|conf|toml|txt|pid|env|ya?ml|json|md)$", re.I)
_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")
_SHELLS = {"sh", "bash", "zsh", "dash", "cmd"}
_SILENT = {"exec", "nohup", "env", "setsid", "start", "$", "&", ">", "%", "command"}
"""What stands before a server without changing what it does."""
_OTHER_VERBS = {
    "systemctl", "service", "pkill", "killall", "kill", "pgrep", "which", "type", "where", "cmake", "make",
    "ninja", "cp", "mv", "ln", "rm", "chmod", "chown", "ls", "echo", "printf", "cd", "tail", "cat", "grep",
    "git", "journalctl", "test", "[", "[[", "apt", "apt-get", "brew", "winget", "taskkill", "tasklist", "title",
    "man", "curl", "wget", "install", "pip", "ps", "export",
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
class Found:
    """A llama-server that a command starts."""

    binary: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...]
    unresolved: tuple[str, ...]
    """Expansions that only a shell or another program could have done, as written."""
    branched: tuple[str, ...]
    """Variables that the script sets in branches, and that the command uses."""


def find_server(command: Command, depth: int = 0) -> Found | None:
    """The server that ``command`` starts, or ``None``. Raises UsageError where its text grows without measure."""
    words = command.words
    if not words or _base(words[0]) in _OTHER_VERBS:
        return None
    for inner in _inner(words) if depth < 3 else ():
        for nested in read_batch(inner) if looks_like_batch(inner) else read_shell(inner):
            branched = (*command.branched, *nested.branched)
            merged = replace(nested, env={**command.env, **nested.env}, branched=branched)
            if found := find_server(merged, depth + 1):
                return found
    return _plain(command, sure=True) or _plain(command, sure=False)


def _plain(command: Command, *, sure: bool) -> Found | None:
    """The server among the words themselves; with ``sure`` not one that may be the value of an option before it."""
    words = command.words
    for at, word in enumerate(words):
        if match := _IMAGE.search(word):
            rest = words[at + 1 :]
            rest = rest[1:] if match[1] == "full" and rest[:1] in (("--server",), ("-s",)) else rest
            notes = (f"It ran in the container image {word}: paths and port are those inside it.",)
            return Found("", rest, _container_env(words[:at]), notes, command.unresolved, command.branched)
        if end := _program(words, at, sure=sure):
            env = _assigned(words[:at], command.env)
            return Found(word, words[end:], env, _before(words[:at]), command.unresolved, command.branched)
    return None


def only_flags(commands: Sequence[Command]) -> Command | None:
    """The one list of flags that a text without any program is, or ``None``."""
    if not commands or not all(command.words[0].startswith(("-", "–", "—")) for command in commands):
        return None
    words = [word for command in commands for word in command.words]
    return Command(tuple(words), {}, tuple(raw for command in commands for raw in command.unresolved))


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
        if _base(word).lower() in _SHELLS and re.fullmatch(r"-[a-z]*c|/c", words[at + 1], re.I):
            return [words[at + 2] if words[at + 1] != "/c" else " ".join(words[at + 2 :])]
    launcher = next((word for word in words if not (_ASSIGNMENT.fullmatch(word) or _silent(word))), "")
    if _base(launcher) == "sudo":
        launcher = next((word for word in words if _base(word) in _CARRIERS), "")
    return [word for word in words if re.search(r"\s", word)] if _base(launcher) in _CARRIERS else []


def _assigned(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    return {**env, **{match[1]: match[2] for word in words if (match := _ASSIGNMENT.fullmatch(word))}}


def _container_env(words: Sequence[str]) -> dict[str, str]:
    inside = [
        word.removeprefix("--env=")
        for before, word in zip(("", *words), words, strict=False)
        if before in {"-e", "--env"} or word.startswith("--env=")
    ]
    return _assigned(inside, {})


def _before(words: Sequence[str]) -> tuple[str, ...]:
    if words[-2:-1] and words[-1] == "-m":
        return ()  # python -m
    launcher = next((word for word in words if not (_ASSIGNMENT.fullmatch(word) or _silent(word))), None)
    # Only its name is said: what follows it may be a password.
    return (f"What stands before the server was left out: {_base(launcher)!r} and its options.",) if launcher else ()


def _silent(word: str) -> bool:
    return not word or _base(word) in _SILENT or bool(re.fullmatch(r"/[a-z]{1,5}", word, re.I))
