"""Every command of gpubox that a message, a hint, a comment or a document names exists, with its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpubox.cli.main import cli

ROOT = Path(__file__).parents[2]
_QUOTED = re.compile(r"`(gpubox(?: [^`]*)?)`")
_WORD = re.compile(r"[a-z][a-z-]*\Z")


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of each string in the package, values that are put in replaced by ``X``, and of each document."""
    for path in sorted((ROOT / "gpubox").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "`gpubox " not in source:
            continue
        tree = ast.parse(source)
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        yield path.name, path.read_text(encoding="utf-8")


def problem(line: str) -> str:
    """What of the command line ``line`` does not exist; empty if all of it does."""
    command: click.Command = cli
    options = {"--help", *(name for param in cli.params for name in param.opts)}
    for word in line.split()[1:]:
        word = word.strip("[]().,;'\"|…")
        if word.startswith("-") and word.strip("-"):
            if word.partition("=")[0] not in options:
                return f"{command.name} has no {word}"
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None and (not _WORD.match(word) or any(isinstance(p, click.Argument) for p in command.params)):
                return ""  # a placeholder
            if inner is None:
                return f"{command.name} has no verb {word}"
            command = inner
            options |= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return ""


def test_every_command_that_is_named_exists() -> None:
    named = [(place, line) for place, text in texts() for line in _QUOTED.findall(" ".join(text.split()))]
    wrong = [f"{place}: `{line}`: {why}" for place, line in named if (why := problem(line))]

    assert len(named) > 150
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["gpubox imprt x", "gpubox import --as y", "gpubox bench spede", "gpubox engines make X"]
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    assert problem(line)
