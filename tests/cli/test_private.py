"""Nobody but the owner can read what gpubox keeps, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpubox.paths import Paths
from tests.cli.verbs import gpubox

VERBS = (
    ("start", "a"), ("status",), ("ls",), ("logs",), ("chat", "-p", "a secret", "--name", "mine"),
    ("edit", "a", "--set", "ctx-size=1024"), ("edit", "a", "--editor"), ("edit", "a", "--copy", "c"),
    ("edit", "c", "--delete"),
    ("keys", "add", "laptop"), ("history",), ("advice",), ("switch", "b"), ("restart",),
    ("bench", "speed", "a", "--prompts", "short", "--repeats", "1", "--depths", "0", "--max-tokens", "8"),
    ("engines", "use", "fake"), ("stop",),
)  # fmt: skip


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("box", "umask")
def test_all_that_verbs_write_is_the_owners_alone(
    capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "false")
    roots = (paths.state, paths.config, paths.cache)
    made_before = {path for root in roots for path in (root, *root.rglob("*"))}
    for words in VERBS:
        gpubox(capfd, *words)

    made = {path for root in roots for path in (root, *root.rglob("*")) if not path.is_symlink()} - made_before
    closed = [path for path in made if path.suffix in (".layers", ".scratch") and not path.stat().st_mode & 0o077]
    made -= {path for path in made if any(folder in path.parents for folder in closed)}  # as a workspace has its modes
    open_to_others = [f"{path} {path.stat().st_mode & 0o777:o}" for path in sorted(made) if path.stat().st_mode & 0o077]
    assert not open_to_others
    names = {path.name for path in made}
    assert {"servers", "logs", "main.log", "main.json", "chats", "mine.jsonl", "client-keys.json"} <= names
