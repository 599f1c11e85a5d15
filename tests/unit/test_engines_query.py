"""Short runs of an engine, with shell scripts as engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.engines import query
from gpubox.engines.find import Engine
from gpubox.engines.query import check_arguments, list_devices, read_capabilities, refusal_text
from gpubox.errors import GpuboxError
from gpubox.hardware.process import identity_of
from gpubox.paths import Paths
from tests.conftest import until

HELP = Path(__file__).parents[1] / "fixtures" / "llama-server-b11434.help.txt"
Script = Callable[[str], Engine]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def make(body: str) -> Engine:
        path = tmp_path / "engine"
        path.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{body}\n")
        path.chmod(0o755)
        return Engine("fake", "llama-server", (str(path),), path)

    return make


def real(tmp_path: Path) -> str:
    return f"case $1 in --version) echo 'version: 1.2 (build 7, commit ab)' >&2;; --help) cat {HELP};; esac"


def runs(tmp_path: Path) -> int:
    path = tmp_path / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_probe_asks_once_and_again_when_the_file_changes(script: Script, paths: Paths, tmp_path: Path) -> None:
    engine = script(real(tmp_path))
    first = read_capabilities(engine, paths)
    assert first.version == "1.2 (build 7, commit ab)"
    assert runs(tmp_path) == 2
    assert read_capabilities(engine, paths) == first
    assert runs(tmp_path) == 2
    engine = script(real(tmp_path) + "\n# rebuilt")
    assert read_capabilities(engine, paths).options == first.options
    assert runs(tmp_path) == 4


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema": 1}', b"null", b"[" * 100_000])
def test_a_damaged_cache_is_asked_anew(script: Script, paths: Paths, tmp_path: Path, junk: bytes) -> None:
    engine = script(real(tmp_path))
    first = read_capabilities(engine, paths)
    (cache,) = paths.capabilities.iterdir()
    cache.write_bytes(junk)
    assert read_capabilities(engine, paths) == first
    assert runs(tmp_path) == 4
    assert read_capabilities(engine, paths) == first
    assert runs(tmp_path) == 4


def test_a_cache_that_cannot_be_written_costs_only_time(script: Script, paths: Paths, tmp_path: Path) -> None:
    paths.cache.parent.mkdir(parents=True, exist_ok=True)
    paths.cache.write_text("a file where the folder should be")
    engine = script(real(tmp_path))
    assert read_capabilities(engine, paths).option("ctx-size")
    assert read_capabilities(engine, paths).option("ctx-size")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo hello", "is not a llama-server"),
        (
            "echo 'llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object "
            "file: No such file or directory' >&2; exit 127",
            "the library libcudart.so.12 is missing",
        ),
        (
            f"case $1 in --help) cat '{HELP}';; *) echo 'error: xllamacpp does not load: libgomp.so.1: cannot open "
            "shared object file: No such file or directory' >&2; exit 1;; esac",
            "the library libgomp.so.1 is missing",
        ),
        ("", "is not a llama-server"),
        ("echo '--all    do everything'", "is not a llama-server"),
        ("echo 'error while loading shared libraries: libcuda.so.1' >&2; exit 127", "libcuda.so.1"),
        ("kill -SEGV $$", "crashed on --version (SIGSEGV)"),
    ],
)
def test_what_is_no_llama_server(script: Script, paths: Paths, body: str, message: str) -> None:
    with pytest.raises(GpuboxError) as error:
        read_capabilities(script(body), paths)
    assert message in str(error.value)
    assert not list(paths.capabilities.glob("*"))


def test_an_engine_that_hangs_is_ended_with_its_children(
    script: Script, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query.run_engine, "__defaults__", (None, 0.3))
    with pytest.raises(GpuboxError, match="did not answer --version"):
        read_capabilities(
            script(f"sleep 600 & echo $! > {tmp_path}/child; wait"), paths
        )  # the sleep holds the pipes open
    child = tmp_path / "child"
    pid = child.read_text().strip() if child.exists() else ""  # empty if the timeout came before it started
    until(lambda: not pid or identity_of(int(pid)) is None)


def test_a_file_that_is_no_program(tmp_path: Path, paths: Paths) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"\x7fELF and then nothing")
    path.chmod(0o755)
    with pytest.raises(GpuboxError, match="cannot be started"):
        read_capabilities(Engine("odd", "llama-server", (str(path),), path), paths)


def test_validate_puts_version_last_and_passes_the_environment(script: Script) -> None:
    engine = script('for last; do :; done; [ "$last" = --version ] && [ "$GPUBOX_X" = 1 ] && exit 0; exit 1')
    assert check_arguments(engine, ["--ctx-size", "4"], {"GPUBOX_X": "1"}) is None
    assert check_arguments(engine, ["--ctx-size", "4"], {}) == "it exited without an error message"


def test_a_refusal_is_one_sentence(script: Script) -> None:
    text = (
        'warn: x\nerror while handling argument "--spec-type": unknown speculative type: mtp\n\nusage:\n--spec-type a,b'
    )
    engine = script(f"cat >&2 <<'END'\n{text}\nEND\nexit 1")
    wanted = 'error while handling argument "--spec-type": unknown speculative type: mtp'
    assert check_arguments(engine, ["--spec-type", "mtp"], {}) == wanted


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("error: invalid argument: --no-mmap\n", "error: invalid argument: --no-mmap"),
        ('error while handling argument "-c": stoi\n\nusage:\n-c', 'error while handling argument "-c": not a number'),
        (
            'error while handling argument "-fa": error: unknown value\n',
            'error while handling argument "-fa": unknown value',
        ),
        ("terminate called\n", "terminate called"),
        ("", "it exited without an error message"),
    ],
)
def test_refusals_as_llama_server_prints_them(stderr: str, message: str) -> None:
    assert refusal_text(stderr) == message


def test_devices(script: Script) -> None:
    line = "CUDA0: NVIDIA GeForce RTX 4090 (24077 MiB, 23650 MiB free)"
    assert list_devices(script(f"printf 'Available devices:\\n  {line}\\n'")) == [line]
    assert list_devices(script("printf 'Available devices:\\n  (none)\\n'")) == []
    assert list_devices(script("exit 1")) is None
