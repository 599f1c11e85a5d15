"""The models screen: search, verdicts, details, downloads that stop and resume, and new profiles."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from syrupy.assertion import SnapshotAssertion
from textual import events
from textual.pilot import Pilot

from gpubox.errors import GpuboxError
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_download import HubProgress
from gpubox.models.hub_search import read_repository
from gpubox.paths import Paths
from gpubox.tui.workshop.models_screen import ModelsScreen, download_line
from tests.hub import Hub, Stored, running_hub
from tests.tui.conftest import SIZES, act, app_of, on_dashboard, pictured, settled, shows, text, until
from tests.tui.fake_finder import FinderServices


@pytest.fixture
def services(paths: Paths) -> FinderServices:
    return FinderServices(paths)


def screen_of(pilot: Pilot[bool]) -> ModelsScreen:
    models = app_of(pilot).models
    assert models
    return models


@asynccontextmanager
async def searching(
    services: FinderServices, words: str = "qwen", *, size: tuple[int, int] = (120, 36), notifications: bool = True
) -> AsyncIterator[tuple[Pilot[bool], ModelsScreen]]:
    """The models screen, after a search from the dashboard."""
    async with on_dashboard(services, size=size, notifications=notifications) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen), "the models screen")
        await pilot.press("slash", *words, "enter")
        screen = screen_of(pilot)
        await until(pilot, lambda: screen.rows.values and not any(row.planning for row in screen.rows.values), "rows")
        await until(pilot, lambda: not any(each.group == "finder-search" for each in pilot.app.workers), "plans")
        await until(pilot, lambda: screen.rows.has_focus, "the focus")
        yield pilot, screen


async def go_to(pilot: Pilot[bool], label: str) -> None:
    screen = screen_of(pilot)
    await until(pilot, lambda: any(row.title == label for row in screen.rows.values), label)
    row = next(row for row in screen.rows.values if row.title == label)
    screen.rows.highlight(row.key)
    await until(pilot, lambda: screen.rows.value is not None and screen.rows.value.title == label)


async def test_search_and_verdicts(services: FinderServices) -> None:
    async with searching(services, size=(200, 50)) as (pilot, _):
        app = app_of(pilot)
        await shows(pilot, "On this machine", "qwen3:8b", "Ollama", "On Hugging Face", "1,204,311 downloads")
        await shows(pilot, "✓ UD-IQ2_XXS", "~5.1 GiB to spare", "◐ Q8_0", "with n-cpu-moe 28")
        await shows(pilot, "? BF16", "memory unknown")
        await go_to(pilot, "Q8_0")
        await shows(pilot, "mmproj-F16.gguf", "M-Q8_0-00002-of-00002.gguf", "slower generation")
        assert services.finder.searched == ["qwen"]
        await pilot.press("escape")
        await until(pilot, lambda: app.current_mode == "dashboard")


async def test_the_cursor_stays_where_it_is_when_the_hub_answers(services: FinderServices) -> None:
    answers = services.finder.answers = threading.Event()
    async with on_dashboard(services) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen), "the models screen")
        await pilot.press("slash", *"qwen", "enter")
        await until(pilot, lambda: services.finder.searched and screen_of(pilot).rows.value, "what is here")
        await go_to(pilot, "qwen3:8b")
        answers.set()
        await shows(pilot, "On Hugging Face")
        await pilot.press("enter")
        await until(pilot, lambda: services.finder.profiles == ["qwen3:8b"])


async def test_what_is_typed_at_once_behind_a_slash_is_the_search(services: FinderServices) -> None:
    """A key waits for what the one before it does: else the list takes the letters for keys of its own."""
    async with searching(services) as (pilot, screen):
        await pilot.press("slash", "ctrl+u", "escape")
        for key in ("slash", *"qwen"):
            pilot.app.post_message(events.Key(key, "/" if key == "slash" else key))
        await until(pilot, lambda: screen.search.value == "qwen")


async def test_offline_shows_the_disk_and_one_sentence(services: FinderServices) -> None:
    services.finder.problem = GpuboxError("There is no connection to Hugging Face.", "Check the network connection.")
    async with searching(services) as (pilot, screen):
        await shows(pilot, "qwen3:8b", "There is no connection to Hugging Face.")
        assert [row.kind for row in screen.rows.values] == ["heading", "local", "local"]


async def test_text_of_a_hub_is_not_markup(services: FinderServices) -> None:
    services.finder.problem = GpuboxError("[red]evil[/] \x1b[31m sentence")
    async with searching(services) as (pilot, _):
        await shows(pilot, "[red]evil[/]")


async def test_the_engine_measures_a_header(services: FinderServices) -> None:
    async with searching(services, size=(200, 50)) as (pilot, _):
        await go_to(pilot, "Q4_K_M")
        assert "~ the compute" in text(pilot)
        await pilot.press("f")
        await until(pilot, lambda: services.finder.measured == ["Q4_K_M"])
        await until(pilot, lambda: "~ the compute" not in text(pilot))


async def test_profiles_are_made(services: FinderServices) -> None:
    async with searching(services) as (pilot, _):
        await go_to(pilot, "qwen3:8b")
        await pilot.press("enter")
        await until(pilot, lambda: services.finder.profiles == ["qwen3:8b"])
        await go_to(pilot, "Q8_0")
        await pilot.press("n")
        await until(pilot, lambda: len(services.finder.profiles) == 2)
        assert services.finder.profiles[1] == "hf:unsloth/Qwen3.6-35B-A3B-MTP-GGUF:Q8_0"
        await shows(pilot, "Made the profile mine")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, services: FinderServices) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["u/m"] = {"m-Q4_K_M.gguf": Stored.of(b"GGUF" + bytes(4_000_000))}
        with HubClient() as client:
            services.finder.repositories = (read_repository(client, "u/m"),)
        yield hub


async def test_a_download_is_stopped_and_resumed(services: FinderServices, hub: Hub) -> None:
    hub.gate = threading.Event()
    async with searching(services, "m") as (pilot, screen):
        await go_to(pilot, "Q4_K_M")
        await pilot.press("enter")
        await shows(pilot, "Download 4 MB?", "The running server is not touched")
        await pilot.press("d")
        await shows(pilot, "↓ m:Q4_K_M", "x menu: stop the download")
        await until(pilot, lambda: screen._progress and screen._progress.done_bytes > 1_000_000, "half of it")
        await act(pilot, "finder_stop")
        hub.gate.set()
        await shows(pilot, "The download is stopped")
        await until(pilot, lambda: screen.download is None)
        await pilot.press("enter")
        await shows(pilot, "are here already")
        await pilot.press("d")
        await shows(pilot, "Downloaded hf:u/m:Q4_K_M")
        assert screen.rows.value is not None
        assert screen.rows.value.on_disk


async def test_a_download_that_fails(services: FinderServices, hub: Hub) -> None:
    hub.statuses["/resolve/"], hub.retry_after = 429, "3600"
    async with searching(services, "m") as (pilot, screen):
        await go_to(pilot, "Q4_K_M")
        await pilot.press("enter")
        await shows(pilot, "Download 4 MB?")
        await pilot.press("d")
        await shows(pilot, "limits your requests")
        await until(pilot, lambda: screen.download is None)


@pytest.mark.parametrize("width", [78, 118])
def test_the_line_of_a_download(width: int) -> None:
    progress = HubProgress("download", 3_100_000_000, 17_300_000_000, 82_000_000.0)
    line = "".join(text for text, _ in download_line("hf:unsloth/Qwen3.6-35B-A3B-MTP-GGUF:Q4_K_M", progress, width))
    assert len(line) <= width
    assert line.startswith("↓ Qwen3.6-35B")
    assert line.endswith("3.1 GB of 17.3 GB  82 MB/s  ~3 min left")


async def test_a_disk_that_is_too_small(services: FinderServices, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1_000_000})())
    async with searching(services, "m") as (pilot, screen):
        await go_to(pilot, "Q4_K_M")
        await pilot.press("enter")
        await shows(pilot, "The disk has too little space")
        await pilot.press("d")
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert screen.download is None


@pytest.mark.parametrize("size", SIZES)
async def test_picture(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, services: FinderServices, size: str
) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    async with searching(services, size=SIZES[size], notifications=False) as (pilot, screen):
        await until(pilot, lambda: screen.header.gpu_readings, "the header")
        await settled(pilot)  # how far the list is scrolled depends on the rows that it has when the cursor moves
        await go_to(pilot, "Q8_0")
        await shows(pilot, "ready", "41°C", "13:02")
        await shows(pilot, "CUDA0" if size != "80x24" else "hf:unsloth")
        await pictured(pilot, snapshot)
