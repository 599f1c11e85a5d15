"""Finds llama-server in a command: directly, behind a launcher, in ``sh -c`` or in a container."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpubox.interchange.batch import looks_like_batch, read_batch
from gpubox.interchange.containers import Container, ServerInvocation, read_docker_run
from gpubox.interchange.import_notes import is_secret, join_words, omitted
from gpubox.interchange.script import ScriptCommand, base_name
from gpubox.interchange.shell import read_script

_BINARY = re.compile(r"llama[-_]server(?:[-_.][\w.-]*)?", re.I)
_NOT_A_PROGRAM = re.compile(r"\.(?:service|log|sh|bat|cmd|py|conf|toml|txt|pid|env|ya?ml|json|md)$", re.I)
_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")
_SHELLS = {"sh", "bash", "zsh", "dash", "cmd", "powershell", "pwsh"}
_SILENT = {"exec", "nohup", "env", "setsid", "start", "$", "&", ">", "%", "command"}
"""Words before a server that do not change it."""
_OTHER_COMMANDS = {
    "systemctl", "service", "pkill", "killall", "kill", "pgrep", "which", "type", "where", "cmake", "make",
    "ninja", "cp", "mv", "ln", "rm", "chmod", "chown", "ls", "echo", "printf", "cd", "tail", "cat", "grep",
    "git", "journalctl", "test", "[", "[[", "apt", "apt-get", "brew", "winget", "taskkill", "tasklist", "title",
    "man", "curl", "wget", "install", "pip", "ps", "export", "pushd", "popd", "chcp", "pause", "tee", "mkdir",
}  # fmt: skip
"""Commands that may name llama-server but do not start it."""
_LAUNCHERS = {
    "tmux", "screen", "byobu", "zellij", "dtach", "abduco", "ssh", "mosh", "su", "runuser", "script", "xterm",
    "gnome-terminal", "konsole", "kitty", "alacritty", "wsl", "watch",
}  # fmt: skip
"""Programs that take a whole command line as one argument."""
_NAME_OPTIONS = {
    "--name", "--hostname", "--unit", "--target", "--network-alias", "--container-name", "--session", "--title",
    "--description", "--slice", "--entrypoint", "--label", "--tag", "--network", "--profile",
}  # fmt: skip
"""Options whose value may be llama-server as a mere name."""


def find_server(command: ScriptCommand, depth: int = 0) -> ServerInvocation | None:
    """The server that ``command`` starts, or ``None``. Raises UsageError if its text expands to too much."""
    if is_unrelated(command):
        return None
    if invocation := _in_shell_text(command, depth) if depth < 3 else None:
        return invocation
    if run := read_docker_run(command.words):
        return _in_docker_run(command, *run, depth)
    return _among_words(command, certain=True) or _among_words(command, certain=False)


def is_unrelated(command: ScriptCommand) -> bool:
    """Whether a command starts no server, such as ``chmod +x llama-server``."""
    return not command.words or _base(command.words[0]) in _OTHER_COMMANDS


def _in_shell_text(command: ScriptCommand, depth: int) -> ServerInvocation | None:
    """The server in a text that the command gives to a shell, with notes about the rest of that text."""
    public = {name: value for name, value in command.env.items() if not is_secret(name)}
    for inner in _shell_texts(command.words):
        invocation: ServerInvocation | None = None
        notes: list[str] = []
        reading = read_batch(inner) if looks_like_batch(inner) else read_script(inner, public)
        for nested in reading.commands:
            branched = (*command.branched, *nested.branched)
            merged = replace(nested, env={**command.env, **nested.env}, branched=branched)
            if invocation is None and (server := find_server(merged, depth + 1)):
                invocation = server
                notes += [omitted(word) for word in nested.dropped]
            else:
                notes.append(omitted(nested.text))
        if invocation is not None:
            # "cmd /c" takes all words after it, the others one.
            around = [word for word in command.words if word != inner and word not in inner.split()]
            notes = [*_before_server(around), *notes, *invocation.notes]
            inside = replace(invocation.command, dropped=command.dropped)
            return replace(invocation, command=inside, notes=tuple(notes))
    return None


def server_in_container(
    container: Container, unresolved: tuple[str, ...] = (), depth: int = 0
) -> ServerInvocation | None:
    """The server that ``container`` runs, or ``None``. Its notes list what no profile can hold."""
    words = container.server_words()
    if words is None:
        return None
    command = ScriptCommand(tuple(words), container.env, unresolved)
    invocation = find_server(command, depth + 1) if depth < 3 else None
    if invocation is None:
        return None
    program = f", in it {invocation.binary}" if "/" in invocation.binary else ""
    image = f"The source runs the container image {container.image}{program}."
    return replace(invocation, binary="", notes=(image, *container.notes, *invocation.notes), container=container)


def _in_docker_run(command: ScriptCommand, container: Container, start: int, depth: int) -> ServerInvocation | None:
    invocation = server_in_container(container, command.unresolved, depth)
    if invocation is None:
        return None
    outside = [omitted(f"{name}={value}", "it applies outside the container") for name, value in command.env.items()]
    notes = (*_before_server(command.words[:start]), *outside, *invocation.notes)
    inside = replace(invocation.command, branched=command.branched, dropped=command.dropped)
    return replace(invocation, command=inside, notes=notes)


def _among_words(command: ScriptCommand, *, certain: bool) -> ServerInvocation | None:
    """The server among the words; with ``certain`` not one that may be the value of an option before it."""
    words = command.words
    for at, word in enumerate(words):
        if end := _end_of_program(words, at, certain=certain):
            env = {**command.env, **{m[1]: m[2] for w in words[:at] if (m := _ASSIGNMENT.fullmatch(w))}}
            return ServerInvocation(replace(command, env=env), words[end:], _before_server(words[:at]), word)
    return None


def flags_without_program(commands: Sequence[ScriptCommand]) -> ScriptCommand | None:
    """The list of flags in a text that names no program, or ``None``."""
    if not commands or not all(command.words[0].startswith(("-", "–", "—")) for command in commands):
        return None
    words = [word for command in commands for word in command.words]
    return ScriptCommand(tuple(words), {}, tuple(raw for command in commands for raw in command.unresolved))


def _end_of_program(words: Sequence[str], at: int, *, certain: bool) -> int:
    """Where the arguments begin if ``words[at]`` is the server, else 0."""
    base, following = _base(words[at]), words[at + 1] if at + 1 < len(words) else ""
    if words[at] == "gpubox.engines.embedded_server":
        return at + 1
    if _BINARY.fullmatch(base) and not _NOT_A_PROGRAM.search(base):
        before = words[at - 1] if at else ""
        if not before.startswith("--") or "=" in before:
            return at + 1
        # "--name llama-server" is a name, "systemd-run --user llama-server -m ..." starts it.
        return 0 if certain or before in _NAME_OPTIONS or not following.startswith("-") else at + 1
    if base == "server" and (following.startswith("-") or "llama" in words[at]):
        return at + 1
    return at + 2 if base == "llama" and following in {"serve", "server"} else 0


def _base(word: str) -> str:
    base = base_name(word)
    return base[:-4] if base.lower().endswith(".exe") else base


def _shell_texts(words: Sequence[str]) -> list[str]:
    """The texts that ``sh -c TEXT`` and ``tmux new TEXT`` run."""
    shell = next((at for at, word in enumerate(words) if _base(word).lower() in _SHELLS), len(words))
    for at in range(shell + 1, len(words) - 1):
        if re.fullmatch(r"-[a-z]*c|-command|/[ck]", words[at], re.I):
            return [words[at + 1] if not words[at].startswith("/") else " ".join(words[at + 1 :])]
    launcher = next((word for word in words if not (_ASSIGNMENT.fullmatch(word) or _silent(word))), "")
    if _base(launcher) == "sudo":
        launcher = next((word for word in words if _base(word) in _LAUNCHERS), "")
    return [word for word in words if re.search(r"\s", word)] if _base(launcher) in _LAUNCHERS else []


def _before_server(words: Sequence[str]) -> tuple[str, ...]:
    """The note about words before the server, unless none of them matters."""
    if words[-2:-1] and words[-1] == "-m":
        return ()  # python -m
    rest = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    return (omitted(join_words(rest), "it comes before the server"),) if not all(map(_silent, rest)) else ()


def _silent(word: str) -> bool:
    shell = _base(word).lower() in _SHELLS or re.fullmatch(r"-[a-z]*c", word)
    return not word or bool(shell) or _base(word) in _SILENT or bool(re.fullmatch(r"/[a-z]{1,5}", word, re.I))
