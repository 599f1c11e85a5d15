"""hf: models from a hub of the test on loopback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models.fetch import fetch_model, plan_download
from gpubox.models.find import hub_cache
from gpubox.models.resolve import resolve_model
from gpubox.paths import Paths
from tests.hub import Hub, Stored, running_hub

FILES = {
    "m-Q4_K_M.gguf": b"GGUF" + b"q" * 300_000,
    "m-Q8_0-00001-of-00002.gguf": b"GGUF" + b"a" * 200_000,
    "m-Q8_0-00002-of-00002.gguf": b"GGUF" + b"b" * 100_000,
    "mmproj-F16.gguf": b"GGUF",
    "README.md": b"#",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["u/m"] = {name: Stored.of(data) for name, data in FILES.items()}
        hub.gated, hub.statuses = "gated/", {"broken/": 418}
        yield hub


def ignore(done: int, total: int | None, waiting: str) -> None:
    pass


@pytest.mark.usefixtures("hub")
def test_the_default_quant_lands_in_the_shared_cache(paths: Paths) -> None:
    seen: list[tuple[int, int | None, str]] = []
    path = fetch_model("hf:u/m", paths, Config(), lambda *p: seen.append(p))
    assert path.read_bytes() == FILES["m-Q4_K_M.gguf"]
    assert path.is_relative_to(hub_cache())
    assert seen[-1] == (300_004, 300_004, "")
    assert all(done <= (total or 0) for done, total, _ in seen)
    assert resolve_model("hf:u/m", paths, Config()).path == path
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    assert fetch_model("hf:u/m", paths, Config(), ignore) == path  # no connection is needed any more


@pytest.mark.usefixtures("hub")
def test_a_download_is_planned_with_its_size_and_the_room_there(paths: Paths) -> None:
    planned = plan_download("hf:u/m", paths)
    assert (planned.size_bytes, planned.folder) == (300_004, hub_cache())
    assert planned.free_bytes and planned.fits
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    assert plan_download("hf:u/m", paths).size_bytes is None
    assert plan_download("demo:smollm2", paths).size_bytes == 98_362_432


@pytest.mark.usefixtures("hub")
def test_all_parts_of_a_split_model(paths: Paths) -> None:
    seen: list[int] = []
    path = fetch_model("hf:u/m:q8_0", paths, Config(), lambda done, total, waiting: seen.append(done))
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert path.with_name("m-Q8_0-00002-of-00002.gguf").read_bytes() == FILES["m-Q8_0-00002-of-00002.gguf"]
    assert seen == sorted(seen)
    assert seen[-1] == 300_008


@pytest.mark.usefixtures("hub")
def test_a_cancelled_download_leaves_no_file_under_its_name(paths: Paths) -> None:
    def cancel(done: int, total: int | None, waiting: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model("hf:u/m", paths, Config(), cancel)
    assert resolve_model("hf:u/m", paths, Config()).fetch == "hf"
    assert fetch_model("hf:u/m", paths, Config(), ignore).read_bytes() == FILES["m-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf:u/m:Q5_K_M", "It has: Q4_K_M, Q8_0."),
        ("hf:no/body", "does not exist on Hugging Face, or it is private"),
        ("hf:gated/model", "is gated"),
        ("hf:broken/model", "HTTP 418"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_refusals(paths: Paths, text: str, message: str) -> None:
    with pytest.raises(GpuboxError) as error:
        fetch_model(text, paths, Config(), ignore)
    assert message in str(error.value)


def test_offline(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(GpuboxError, match="no connection to Hugging Face"):
        fetch_model("hf:u/m", paths, Config(), ignore)


@pytest.mark.usefixtures("hub")
def test_no_room(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(GpuboxError, match="are free") as error:
        fetch_model("hf:u/m", paths, Config(), ignore)
    assert "HF_HOME" in error.value.hint


@pytest.mark.usefixtures("hub")
def test_a_cache_that_cannot_be_written(paths: Paths) -> None:
    cache = Path(hub_cache())
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    with pytest.raises(GpuboxError, match="cannot be written"):
        fetch_model("hf:u/m", paths, Config(), ignore)
