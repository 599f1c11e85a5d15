"""Every launch command and flag list of the articles, imported and written as an argv again."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.engines.capabilities import parse_help
from gpubox.interchange.importing import import_source
from gpubox.interchange.reference_options import model_arguments
from gpubox.paths import shipped_profiles
from gpubox.profiles.argv import server_argv
from gpubox.profiles.loader import load_profile
from gpubox.profiles.profile import Profile

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAUNCHES = sorted(path for path in (FIXTURES / "launches").iterdir() if path.is_file())
STOCK = parse_help((FIXTURES / "llama-server-b11434.help.txt").read_text())
DEFAULTS = {("host", "127.0.0.1"), ("port", "8080")}
"""llama-server's defaults, which a profile states."""


def published(path: Path) -> list[str]:
    """The words of a fixture, split independently of gpubox."""
    text = path.read_text()
    windows = path.suffix == ".bat"
    words = re.sub(r"\^\n", " ", text).split() if windows else shlex.split(text.replace("\\\n", " "))
    return words if words[0].startswith("-") else words[1:]


def pairs(argv: list[str]) -> set[tuple[str, str]]:
    """The options of an argv under their canonical names. None of these commands has a positional argument."""
    flags = set()
    words = iter([*argv, "--end"])
    word = next(words)
    while word != "--end":
        name, value, word = STOCK.canonical(word), "", next(words)
        if not word.startswith("-"):
            value, word = word, next(words)
        flags.add((name, json.dumps(json.loads(value)) if value.startswith("{") else value))
    return flags


def argv_of(profile: Profile) -> list[str]:
    return server_argv(profile, model_arguments(profile.model) if profile.model else [])


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.name)
def test_a_published_launch_comes_back_as_the_same_argv(path: Path) -> None:
    (imported,) = import_source(str(path))
    assert pairs(argv_of(imported.profile)) - DEFAULTS == pairs(published(path)) - DEFAULTS


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.name)
def test_pasted_it_is_the_same_as_from_its_file(path: Path) -> None:
    (pasted,) = import_source(path.read_text())
    (read,) = import_source(str(path))
    assert replace(pasted.profile, name="") == replace(read.profile, name="")


def test_nothing_is_lost_on_the_way_but_what_is_said() -> None:
    notes = {path.name: import_source(str(path))[0].notes for path in LAUNCHES}
    assert notes["article4-run.sh"] == ()
    assert all(
        "names no model" in note for name in ("article2-flags.txt", "article3-flags.txt") for note in notes[name]
    )
    (engine,) = notes["article5-qwen.sh"]
    assert "~/llama.cpp/build/bin/llama-server" in engine
    bat = "\n".join(notes["article1-start-server.bat"])
    for word in ("--no-mmap", 'load-mode = "none"', "TurboQuant fork", "draft-mtp", "Windows", "0.0.0.0"):
        assert word in bat


@pytest.mark.parametrize(
    ("launch", "shipped", "apart_from"),
    [
        ("article1-start-server.bat", "qwen36-mtp-16gb", set()),
        ("article2-flags.txt", "qwen35-24gb", set()),
        ("article3-flags.txt", "qwen36-mtp-24gb", {"ctx-size"}),  # the app uses 262K, the benchmark 32K
        ("article4-run.sh", "qwen36-hifi-mtp", set()),
        ("article5-qwen.sh", "bench12-qwen35", set()),
    ],
)
def test_the_shipped_profile_has_the_flags_of_its_article(launch: str, shipped: str, apart_from: set[str]) -> None:
    (imported,) = import_source(str(FIXTURES / "launches" / launch))
    ours = load_profile(shipped_profiles() / f"{shipped}.toml")
    differ = {key for key in imported.profile.flags.keys() | ours.flags.keys()
              if imported.profile.flags.get(key) != ours.flags.get(key)}  # fmt: skip
    assert differ == apart_from
    assert imported.profile.chat.template_kwargs == ours.chat.template_kwargs
