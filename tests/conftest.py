"""What more than one kind of test needs. Nothing here is autouse: tests/engine and tests/tui set up their own box."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gpubox.paths import Paths
from gpubox.telemetry import http_source, sampler
from tests import guards
from tests.guards import pytest_runtest_makereport  # noqa: F401  a hook

HELP = Path(__file__).parent / "fixtures" / "llama-server-b11434.help.txt"
# A shell that starts the run in the background makes it ignore SIGINT, and who ignores a signal hands that on to its
# children: a gpubox started by a test would never hear its Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))

WAIT_SECONDS = 60.0
"""Far more than anything that a test waits for takes, also on two busy cores."""
# Programs that tests start write, and keep their bytecode, as an owner's do, wherever this runs.
for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)
sys.dont_write_bytecode = False  # pytest's own compiled tests, too: each worker would compile all of them each time
_FOREIGN = ("GPUBOX_", "LLAMA_", "HF_", "HUGGINGFACE_")


_TOGETHER = {"engine": "module", "hostile": "folder"}
"""Folders whose tests share one box (a server, a machine's limits): each module, or all of it, in one worker."""


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process that runs tests a home of its own, and has the whole run watched from outside."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(guards.Watch(Path.home(), Paths.default().models))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.add_cleanup(guards.own_home().cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Says to ``--dist loadgroup`` which tests belong to one worker; these come first, not alone at the end."""
    for item in items:
        folder = item.path.parent.name
        if how := _TOGETHER.get(folder):
            item.add_marker(pytest.mark.xdist_group(folder if how == "folder" else f"{folder}-{item.path.stem}"))
    yield  # xdist reads the marks, and the order becomes random
    items.sort(key=lambda item: item.path.parent.name not in _TOGETHER)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives to the end, thousands of tests: else it takes a quarter of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def until(true: Callable[[], object]) -> None:
    """Returns as soon as ``true()`` is; fails when that takes WAIT_SECONDS."""
    end = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers is waited for, however slow this machine is; the screen's owner would not wait so long."""
    monkeypatch.setattr(sampler, "FIRST_SECONDS", 30.0)
    monkeypatch.setattr(http_source, "REQUEST_TIMEOUT_SECONDS", 30.0)


@pytest.fixture
def need_ipv6() -> None:
    """Skips where this machine has no IPv6 loopback."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")


@pytest.fixture
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and empty XDG folders; nothing of the owner's environment gets in."""
    root = tmp_path_factory.mktemp("owner")
    home = root / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in guards.XDG:
        monkeypatch.setenv(name, str(root / name.split("_")[1].lower()))
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUBOX_WATCHER", "0")  # the tests that mean it take this away
    return home


@pytest.fixture
def paths(own_home: Path) -> Paths:
    """The folders of this test."""
    return Paths.default()


@pytest.fixture
def write_profile(paths: Paths) -> Callable[[str, str], Path]:
    """Writes ``NAME.toml`` into the owner's folder."""

    def write(name: str, text: str) -> Path:
        paths.profiles.mkdir(parents=True, exist_ok=True)
        path = paths.profiles / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def fake_engine(tmp_path: Path) -> Path:
    """A shell script that answers --help as llama-server b11434 does, and refuses --ctx-size 13 by itself."""
    script = tmp_path / "llama-server"
    script.write_text(
        f"""#!/bin/sh
case "$*" in
  *"--ctx-size 13 "*) echo 'error while handling argument "--ctx-size": 13 brings bad luck' >&2; exit 1 ;;
  *--help) cat '{HELP}' ;;
  *--version) echo 'version: 0.6.0-dev (build 11434, commit abc)' >&2 ;;
  *--list-devices) echo 'Available devices:'; echo '  (none)' ;;
  *) exec {sys.executable} '{Path(__file__).parent / "cli" / "fake_server.py"}' "$@" ;;
esac
"""
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """The smallest whole GGUF: a header without metadata and without tensors."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 0))
    return path
