"""FIFOs, sockets and folders in the place of files: no verb waits for them, and other files still work."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.paths import Paths

SECONDS = 20.0
"""A verb is faster, even on a busy machine; one that waits for a FIFO never ends."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def large(path: Path) -> None:
    path.write_text('a = "b"\n' + "# filler\n" * (12 * 1024 * 1024 // 9))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


ODD: tuple[Callable[[Path], None], ...] = (fifo, a_socket, without_end, loop, large, sparse, lambda path: path.mkdir())
NAMES = ("fifo", "socket", "dev-zero", "loop", "large", "sparse", "folder")


def gpubox(*words: str) -> subprocess.CompletedProcess[str]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpubox", *words], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert time.monotonic() - began < SECONDS
    return done


def test_odd_profiles_spoil_only_themselves(
    paths: Paths, write_profile: Callable[[str, str], Path], tiny_gguf: Path
) -> None:
    write_profile("good", f'model = "{tiny_gguf}"\n')
    for name, make in zip(NAMES, ODD, strict=True):
        make(paths.profiles / f"{name}.toml")

    began = os.times()
    listed = json.loads(gpubox("ls", "--json").stdout)
    ended = os.times()

    assert set(NAMES) <= set(listed["broken"])
    assert "good" in [profile["name"] for profile in listed["profiles"]]
    assert "a FIFO, not a file" in listed["broken"]["fifo"]
    assert "12.6 MB, more than" in listed["broken"]["large"]
    spent = ended.children_user + ended.children_system - began.children_user - began.children_system
    assert spent < 4  # parsing the large one alone took 5 s
    assert gpubox("start", "fifo").returncode == 2


@pytest.mark.parametrize("make", ODD, ids=NAMES)
def test_an_odd_config_key_state_or_log_is_a_sentence(
    make: Callable[[Path], None], paths: Paths, write_profile: Callable[[str, str], Path], tiny_gguf: Path
) -> None:
    write_profile("good", f'model = "{tiny_gguf}"\n')
    places = [
        (paths.config_file, ["ls"], {2}),
        (paths.api_key_file, ["start", "good"], {1, 2}),
        (paths.instance_state("main"), ["status"], {3}),
        (paths.instance_log("main"), ["logs", "-n", "1"], {0, 3}),
        (paths.chats / "odd.jsonl", ["chat", "ls"], {0}),
        (paths.chats / "odd.jsonl", ["chat", "search", "word"], {0, 1}),
    ]
    for path, verb, codes in places:
        if make in (large, sparse) and path.suffix in (".jsonl", ".log"):
            continue  # these have no limit
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink() and not path.exists():
            make(path)
        assert gpubox(*verb).returncode in codes, (path, verb)
        if path.is_dir():
            path.rmdir()
        elif path.suffix != ".jsonl":
            path.unlink()


def test_odd_models_are_refused_and_not_waited_for(
    paths: Paths, write_profile: Callable[[str, str], Path], fake_engine: Path, tmp_path: Path
) -> None:
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(
        f'default-engine = "fake"\nmodel-dirs = ["{tmp_path}"]\n[engines]\nfake = "{fake_engine}"\n'
    )
    for name, make in zip(NAMES, ODD, strict=True):
        path = tmp_path / f"{name}.gguf"
        make(path)
        if name == "sparse":
            with path.open("r+b") as file:
                file.write(struct.pack("<4sIQQ", b"GGUF", 3, 2**40, 2**40))
        write_profile(f"m-{name}", f'model = "{path}"\nport = 0\n')

        assert gpubox("start", f"m-{name}").returncode == 1, name
    assert gpubox("ls").returncode == 0
