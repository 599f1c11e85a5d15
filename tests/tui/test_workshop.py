"""What the owner does with profile files on the dashboard: new, duplicate, rename, delete, compare, $EDITOR."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.tui.app import GpuboxApp
from gpubox.tui.services import ATTACHED_READ_ONLY
from gpubox.tui.workshop.profile_dialogs import ComparisonScreen, SourceScreen
from tests.bench_runs import speed_run
from tests.tui.conftest import SIZE, act, app_of, highlight, on_dashboard, opened, shows, until
from tests.tui.fake_workshop import WorkshopServices, write_mine


@pytest.fixture
def services(
    paths: Paths, fake_engine: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path]
) -> WorkshopServices:
    """The profiles ``mine`` and ``other`` on the fake engine."""
    write_profile("other", f'model = "{tiny_gguf}"\nport = 8099\n[flags]\nctx-size = 4096\nngl = 9\n')
    return WorkshopServices(*write_mine(paths, fake_engine, tiny_gguf))


@asynccontextmanager
async def highlighted(services: WorkshopServices, name: str = "mine") -> AsyncIterator[Pilot[bool]]:
    async with on_dashboard(services, notifications=True) as pilot:
        await highlight(pilot, name)
        yield pilot


def text_of(services: WorkshopServices, name: str) -> str:
    return (services.paths.profiles / f"{name}.toml").read_text()


async def test_duplicates_with_the_comments(services: WorkshopServices) -> None:
    async with highlighted(services) as pilot:
        await act(pilot, "duplicate")
        await shows(pilot, "Duplicate mine", "mine-2")
        await pilot.press(*"other", "enter")
        await shows(pilot, "There is a profile 'other' already")
        await pilot.press(*"copy", "enter")
        await shows(pilot, "copy is saved")
    assert text_of(services, "copy") == text_of(services, "mine")


async def test_renames_and_refuses_a_bad_name(services: WorkshopServices) -> None:
    async with highlighted(services) as pilot:
        app = app_of(pilot)
        before = text_of(services, "mine")
        await act(pilot, "rename")
        await shows(pilot, "Rename mine")
        await pilot.press(*"a/b", "enter")
        await shows(pilot, "cannot be a profile's name")
        await pilot.press(*"yours", "enter")
        await shows(pilot, "mine is called yours now")
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == "yours")
    assert text_of(services, "yours") == before and not (services.paths.profiles / "mine.toml").exists()


async def test_deletes_after_a_question_and_brings_it_back(services: WorkshopServices) -> None:
    async with highlighted(services) as pilot:
        app = app_of(pilot)
        before = text_of(services, "mine")
        await act(pilot, "delete")
        await shows(pilot, "Delete mine?")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)
        assert text_of(services, "mine") == before
        await act(pilot, "delete")
        await shows(pilot, "Delete mine?")
        await pilot.press("y")
        await shows(pilot, "mine is deleted. u brings it back.")
        await until(pilot, lambda: all(entry.name != "mine" for entry in app.bridge.entries))
        await pilot.press("u")
        await shows(pilot, "mine is back")
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == "mine")
        await pilot.press("u")
        await shows(pilot, "There is nothing to undo.")
    assert text_of(services, "mine") == before


async def test_a_shipped_profile_is_neither_deleted_nor_renamed(services: WorkshopServices) -> None:
    async with highlighted(services, "demo") as pilot:
        app = app_of(pilot)
        for action in ("delete", "rename"):
            await act(pilot, action)
            await shows(pilot, "demo is shipped with")
            app.clear_notifications()


async def test_makes_a_profile_of_a_pasted_command_line(services: WorkshopServices, tiny_gguf: Path) -> None:
    async with highlighted(services) as pilot:
        app = app_of(pilot)
        await act(pilot, "new_profile")
        await until(pilot, lambda: isinstance(app.screen, SourceScreen))
        assert isinstance(app.screen, SourceScreen)
        await pilot.press(*"nonsense", "enter")
        await shows(pilot, "nothing here that starts llama-server")
        assert isinstance(app.screen, SourceScreen)
        app.screen.source.text = f"llama-server -m {tiny_gguf} \\\n  -c 8192 -ngl 20 \\\n --port 8123"
        await pilot.press("enter")
        await shows(pilot, "Name of the new profile:")
        await pilot.press(*"pasted", "enter")
        await shows(pilot, "pasted is saved")
    made = load_catalog(services.paths).get("pasted")
    assert (made.port, made.flags["ctx-size"], made.flags["n-gpu-layers"]) == (8123, 8192, 20)


async def test_a_model_without_a_profile_is_the_proposal(services: WorkshopServices, tiny_gguf: Path) -> None:
    services.new_models = [tiny_gguf]
    async with on_dashboard(services, notifications=True) as pilot:
        app = app_of(pilot)
        await until(pilot, lambda: any(entry.kind == "model" for entry in app.bridge.entries))
        app.dashboard.profiles.highlight(f"model:{tiny_gguf}")
        await act(pilot, "new_profile")
        await until(pilot, lambda: isinstance(app.screen, SourceScreen) and app.screen.source.text == str(tiny_gguf))
        await pilot.press("enter")
        await shows(pilot, "Name of the new profile:", "tiny")
        await pilot.press("enter")
        await shows(pilot, "tiny is saved")


async def test_compares_two_profiles(services: WorkshopServices) -> None:
    speed_run(services.paths, "mine", tg=60.0, seed=2)
    async with highlighted(services) as pilot:
        app = app_of(pilot)
        await act(pilot, "compare")
        await shows(pilot, "Compare (x) on another profile shows it beside mine", "=mine")
        await highlight(pilot, "other")
        await act(pilot, "compare")
        await until(pilot, lambda: isinstance(app.screen, ComparisonScreen))
        await shows(pilot, "mine and other", "ctx-size", "2048", "4096", "n-gpu-layers", "are the same", "not measured")
        await shows(pilot, "tok/s")
        await pilot.press("a")
        await shows(pilot, "8099")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)


async def test_opens_the_owners_editor(
    services: WorkshopServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ed"
    script.write_text("#!/bin/sh\nsed -i 's/2048/1024/' \"$1\"\n")
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)
    app = GpuboxApp(services)
    said: list[str] = []
    say = app.say

    def note(text: str, *, bad: bool = False) -> None:
        said.append(text)
        say(text, bad=bad)

    monkeypatch.setattr(app, "say", note)

    @contextmanager
    def suspend() -> Iterator[None]:
        said.clear()  # a notification does not outlast an editor
        yield

    monkeypatch.setattr(app, "suspend", suspend)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await opened(pilot)
        await highlight(pilot, "mine")
        await act(pilot, "external_editor")
        await shows(pilot, "mine is saved")
        assert load_catalog(services.paths).get("mine").flags["ctx-size"] == 1024
        script.write_text("#!/bin/sh\necho 'model = ' > \"$1\"\n")
        await act(pilot, "external_editor")
        await shows(pilot, "Nothing is written")
        script.write_text("#!/bin/sh\necho 'ctx-sise = 1' >> \"$1\"\n")
        await act(pilot, "external_editor")
        await shows(pilot, "The engine refuses this")
        assert any("Text that was typed for mine" in text for text in said)
        await pilot.press("escape")
        await shows(pilot, "Your text is in")
    assert load_catalog(services.paths).get("mine").flags["ctx-size"] == 1024
    texts = [path.read_text() for path in services.paths.drafts.iterdir()]
    assert len(texts) == 2 and "model = \n" in texts and any("ctx-sise = 1\n" in text for text in texts)


async def test_a_watched_server_changes_nothing(services: WorkshopServices) -> None:
    services.read_only, services.url = ATTACHED_READ_ONLY, "http://127.0.0.1:9"
    async with highlighted(services) as pilot:
        await act(pilot, "delete")
        await shows(pilot, "gpubox did not start")


async def test_a_broken_file_is_not_opened_in_the_form(services: WorkshopServices) -> None:
    (services.paths.profiles / "broken.toml").write_text("model = \n")
    async with on_dashboard(services, notifications=True) as pilot:
        app = app_of(pilot)
        app.dashboard.profiles.highlight("broken:broken")
        await pilot.press("e")
        await shows(pilot, "broken has an error in its file")
