"""llamafile's command lines and ``.args`` files (its README, release 0.9)."""

from __future__ import annotations

import re

from gpubox.interchange.containers import ServerInvocation
from gpubox.interchange.format import Format, Reading
from gpubox.interchange.import_notes import join_words, omitted
from gpubox.interchange.script import ScriptCommand, base_name

_OWN_SWITCHES = {
    "--server", "--v2", "--nobrowser", "--unsecure", "--nocompile", "--recompile", "--ftrace", "--strace", "--chat",
    "--cli", "--precise", "--fast", "--trap", "--tinyblas", "--no-display-prompt", "--ascii",
}  # fmt: skip
_OWN_VALUES = {"--gpu", "--url-prefix", "--www-root", "--image", "-w", "--workers", "-k", "--keepalive"}
_ZIP = "/zip/"


def find_llamafile(command: ScriptCommand) -> ServerInvocation | None:
    """The server that a llamafile starts, with llama-server's flags; ``None`` for other commands."""
    words = command.words
    start = next((at for at, word in enumerate(words) if _is_llamafile(word)), None)
    if start is None or "--cli" in words:
        return None
    binary = words[start]
    notes = [omitted(join_words(words[:start]), "it comes before the server")] if start else []
    if re.search(r"\.llamafile(?:\.exe)?$", binary, re.I) and not {"-m", "--model"} & set(words):
        notes.append(f"{binary} is a program with its model inside: unzip its .gguf, and give that as --model.")
    args: list[str] = []
    rest = list(words[start + 1 :])
    while rest:
        word = rest.pop(0)
        if word in _OWN_SWITCHES:
            notes.append(omitted(word, "llamafile's own"))
        elif word in _OWN_VALUES:
            notes.append(omitted(join_words([word, *rest[:1]]), "llamafile's own"))
            rest = rest[1:]
        elif word in {"-l", "--listen"} and rest:
            host, _, port = rest.pop(0).rpartition(":")
            args += ["--port", port, *(["--host", host] if host else [])]
        elif word == "...":
            notes.append(omitted(word, "llamafile inserts its command line there"))
        else:
            args.append(word)
    notes += [f"{word} is inside the llamafile: unzip it." for word in args if word.startswith(_ZIP)]
    return ServerInvocation(command, tuple(args), tuple(notes))


def read_args_file(text: str) -> Reading:
    """The command of a llamafile's ``.args``, which has one word in each line."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if line and not line.startswith("#")]
    return Reading([ScriptCommand(("llamafile", *words), {})] if words else [])


def looks_like_args(text: str) -> bool:
    """Whether a text is an ``.args`` file: its first line is an option, and no line has two words."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    single_words = all(" " not in line for line in lines)
    return len(lines) > 2 and single_words and lines[0].startswith("-") and not lines[1].startswith("-")


def _is_llamafile(word: str) -> bool:
    return bool(re.fullmatch(r"llamafile(?:-[\d.]+)?(?:\.exe)?|[\w.+-]+\.llamafile(?:\.exe)?", base_name(word), re.I))


FORMAT = Format(".args", lambda text, path: read_args_file(text), r".*\.args", looks_like_args, program=find_llamafile)
