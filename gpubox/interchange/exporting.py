"""Writes a profile as a systemd unit, a shell script or a llama-swap entry. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.interchange.client_settings import one_line
from gpubox.profiles.argv import SECRET_NAME
from gpubox.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class _Export:
    profile: Profile
    argv: Sequence[str]

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, value in self.profile.env.items() if not SECRET_NAME.search(name)}

    @property
    def title(self) -> str:
        return one_line(self.profile)


def export_profile(profile: Profile, kind: str, argv: Sequence[str]) -> str:
    """The text of one of KINDS, without secrets. ``argv`` is the whole command, with the binary first.

    Raises UsageError for an unknown kind.
    """
    if kind not in _WRITERS:
        raise UsageError(f"There is no export {kind!r}.", f"There are: {', '.join(KINDS)}.")
    return _WRITERS[kind](_Export(profile, argv))


def _systemd(export: _Export) -> str:
    env = "".join(f"Environment={unit_word(f'{name}={value}', dollars=False)}\n" for name, value in export.env.items())
    command = " \\\n  ".join(" ".join(map(unit_word, words)) for words in _grouped(export.argv))
    unit = Path(__file__).with_name("data").joinpath("llama-server.service").read_text(encoding="utf-8")
    title = export.title.replace("%", "%%")
    return unit.format(name=export.profile.name, title=title, env=env, command=command)


def _sh(export: _Export) -> str:
    env = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in export.env.items())
    command = " \\\n  ".join(" ".join(map(_shell_word, words)) for words in _grouped(export.argv))
    return f"""\
#!/bin/sh
# {export.profile.name}: {export.title}
# llama-server reads its API key from the variable LLAMA_API_KEY.
{env}exec {command} \\
  "$@"
"""


def _llama_swap(export: _Export) -> str:
    argv = list(export.argv)
    if "--port" in argv[:-1]:
        argv[argv.index("--port") + 1] = "${PORT}"  # llama-swap chooses the port
    lines = [" ".join(map(_swap_word, words)) for words in _grouped(argv)]
    command = "\n".join(lines)
    if all(line.isprintable() for line in lines):
        cmd = " |\n" + "".join(f"      {line}\n" for line in lines)
    else:  # a line break in a word would get the block's indentation
        cmd = f" {json.dumps(command)}"
    entry = {"name": export.profile.title, "description": export.profile.description}
    text = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in entry.items() if value)
    if export.env:
        text += "    env:\n" + "".join(f"      - {json.dumps(f'{n}={v}')}\n" for n, v in export.env.items())
    return f"models:\n  {json.dumps(export.profile.name)}:\n{text}    cmd:{cmd.rstrip()}\n"


_WRITERS: dict[str, Callable[[_Export], str]] = {"systemd": _systemd, "sh": _sh, "llama-swap": _llama_swap}
KINDS = tuple(_WRITERS)
"""The values of ``gpubox export --as``."""


def _grouped(argv: Sequence[str]) -> Iterator[list[str]]:
    """The lines of the command: the binary, then each option with its value."""
    group: list[str] = []
    for at, word in enumerate(argv):
        if at and re.match(r"--[A-Za-z]", word) and group:
            yield group
            group = []
        group.append(word)
    yield group


def _shell_word(word: str) -> str:
    # The shell expands "~/" only without quotes.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)


def _swap_word(word: str) -> str:
    """llama-swap splits words like a shell, but expands only its own macros."""
    if word == "${PORT}":
        return word
    return shlex.quote(f"${{env.HOME}}/{word[2:]}" if word.startswith("~/") else word)


_C_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def unit_word(word: str, *, dollars: bool = True) -> str:
    """One word of a setting of a systemd unit (systemd.syntax(7)). ``dollars``: of a command line."""
    text = word.replace("\\", "\\\\").replace("%", "%%").replace('"', '\\"')
    text = re.sub(r"[\x00-\x1f\x7f]", lambda match: _C_ESCAPES.get(match[0]) or f"\\x{ord(match[0]):02x}", text)
    text = text.replace("$", "$$") if dollars else text
    text = f"%h/{text[2:]}" if text.startswith("~/") else text
    return f'"{text}"' if not word or re.search(r"[\s\"';\x00-\x1f]", word) else text
