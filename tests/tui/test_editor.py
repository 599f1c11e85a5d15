"""The editor, with a real service on a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.tui.workshop import editor
from gpubox.tui.workshop.editor import EditorScreen
from tests.tui.conftest import act, app_of, highlight, on_dashboard, shows, until
from tests.tui.fake_workshop import MINE, WorkshopServices, write_mine


@pytest.fixture
def services(paths: Paths, fake_engine: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> WorkshopServices:
    """The profile ``mine`` on the fake engine."""
    monkeypatch.setattr(editor, "ASSESS_DELAY", 0.0)
    monkeypatch.setattr(editor, "DRY_RUN_DELAY", 1000.0)  # the fake engine cannot run dry
    return WorkshopServices(*write_mine(paths, fake_engine, tiny_gguf))


async def open_editor(pilot: Pilot[bool]) -> EditorScreen:
    app = app_of(pilot)
    await highlight(pilot, "mine")
    await pilot.press("e")
    await until(pilot, lambda: isinstance(app.screen, EditorScreen) and app.screen.assessment.words, "the editor")
    assert isinstance(app.screen, EditorScreen)
    return app.screen


@asynccontextmanager
async def editing(services: WorkshopServices) -> AsyncIterator[tuple[Pilot[bool], EditorScreen]]:
    async with on_dashboard(services, notifications=True) as pilot:
        yield pilot, await open_editor(pilot)


def value(services: WorkshopServices, name: str = "n-cpu-moe") -> object:
    return load_catalog(services.paths).get("mine").flags.get(name)


async def test_shows_every_flag_those_of_the_profile_first(services: WorkshopServices) -> None:
    path = services.paths.profiles / "mine.toml"
    path.write_text(path.read_text() + 'turbo-mode = "yes"   # of a fork\n')
    async with editing(services) as (pilot, screen):
        await shows(
            pilot,
            "edit mine",
            "no changes",
            "ctx-size",
            "2048",
            "--n-cpu-moe 22",
            "turbo-mode: this engine has",
            "? turbo-mode",
        )
        names = [row.name for row in screen.rows.values]
        assert names[:4] == ["ctx-size", "n-cpu-moe", "turbo-mode", "model"] and len(names) > 200
        await pilot.press("slash", *"flash")
        await shows(pilot, "flash-attn", "set Flash Attention use")
        await pilot.press("escape")
        await until(pilot, lambda: len(screen.rows.values) > 200)


async def test_changes_a_value_in_place_and_saves_one_line(services: WorkshopServices, tiny_gguf: Path) -> None:
    async with editing(services) as (pilot, _):
        await pilot.press("j", "minus", "minus")
        await shows(pilot, "22 → 20", "n-cpu-moe 20 instead of 22", "--n-cpu-moe 20")
        await pilot.press("slash", *"mmap")
        await pilot.press("escape", "ctrl+s")
        await shows(pilot, "mine is saved")
        await until(pilot, lambda: app_of(pilot).screen is app_of(pilot).dashboard)
    before = MINE.format(model=tiny_gguf)
    assert (services.paths.profiles / "mine.toml").read_text() == before.replace("n-cpu-moe = 22 ", "n-cpu-moe = 20 ")


async def test_types_a_value_removes_a_flag_and_undoes(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, screen):
        await pilot.press("enter")
        await until(pilot, lambda: screen.value.has_focus)
        await pilot.press(*"65536", "enter")
        await shows(pilot, "2048 → 65536", "--ctx-size 65536")
        await pilot.press("j", "delete")
        await shows(pilot, "22 → not set", "without n-cpu-moe")
        assert screen.session.changes == {("flags", "ctx-size"): 65536, ("flags", "n-cpu-moe"): None}
        await pilot.press("u")
        await until(pilot, lambda: screen.session.changes == {("flags", "ctx-size"): 65536})
        await pilot.press("k", "backspace", "enter")
        await pilot.press(*"2048", "enter")
        await shows(pilot, "no changes")
        await pilot.press("u", "u", "u", "u")
        await shows(pilot, "Nothing to undo")


async def test_switches_and_choices_go_round(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, screen):
        await pilot.press("slash", *"kv-offload", "enter", "enter")
        await until(pilot, lambda: screen.session.changes == {("flags", "kv-offload"): False})
        await shows(pilot, "--no-kv-offload", "+ kv-offload")
        await pilot.press("escape", "slash", *"ctk")
        await until(pilot, lambda: screen.rows.value and screen.rows.value.name == "cache-type-k")
        await pilot.press("enter", "right", "right")
        await shows(pilot, "--cache-type-k f16")
        await pilot.press("left", "left")
        await until(pilot, lambda: screen.session.changes == {("flags", "kv-offload"): False})


async def test_finds_a_flag_by_two_letters_of_its_name(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, screen):
        await pilot.press("slash", *"nc")
        await until(pilot, lambda: screen.rows.value and screen.rows.value.name == "n-cpu-moe")


async def test_says_what_the_engine_refuses_before_it_is_saved(services: WorkshopServices) -> None:
    """ctx-size 13 is refused by the engine itself; a word is not in its help either."""
    async with editing(services) as (pilot, screen):
        await pilot.press("enter")
        await pilot.press(*"13", "enter")
        await shows(pilot, "--ctx-size 13")
        await pilot.press("ctrl+s")
        await shows(pilot, "The engine refuses this", "brings bad luck")
        await pilot.press("n", "t")
        await shows(pilot, "The engine refuses this: mine")
        assert value(services, "ctx-size") == 2048 and screen.is_current
        await pilot.press("slash", *"load-mode", "enter", "enter")
        await until(pilot, lambda: screen.value.has_focus)
        await pilot.press(*"sideways", "enter")
        await shows(pilot, "load-mode: does not accept 'sideways' (allowed:", "! load-mode")


async def test_a_wrong_value_is_one_sentence(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, screen):
        await pilot.press("slash", *"port", "enter", "enter")
        await until(pilot, lambda: screen.value.has_focus)
        await pilot.press(*"abc", "enter")
        await shows(pilot, "port takes a number, not 'abc'")
        assert screen.value.has_focus
        await pilot.press("escape")
        await until(pilot, lambda: screen.rows.has_focus and not screen.session.unsaved)
        await pilot.press("enter", *"99999", "enter")
        await shows(pilot, "mine.toml: port")  # refused by the loader, and so before anything is written


async def test_a_file_that_was_changed_meanwhile_is_not_overwritten(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, screen):
        await pilot.press("j", "minus")
        path = services.paths.profiles / "mine.toml"
        path.write_text(path.read_text().replace("2048", "4096"))
        await pilot.press("ctrl+s")
        await shows(pilot, "22 → 21", "4096")
        changed = "was changed by another program meanwhile"
        await until(pilot, lambda: any(changed in note.message for note in pilot.app._notifications))
        assert value(services) == 22 and screen.session.unsaved
        await pilot.press("ctrl+s")
        await until(pilot, lambda: value(services) == 21)
        assert value(services, "ctx-size") == 4096, "both changes are there"


async def test_esc_asks_only_if_something_would_be_lost(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, _):
        app = app_of(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)
        screen = await open_editor(pilot)
        await pilot.press("j", "plus", "escape")
        await shows(pilot, "Leave mine?", "Not saved: n-cpu-moe 23 instead of 22")
        await pilot.press("n")
        await until(pilot, lambda: screen.is_current)
        await pilot.press("q")
        await shows(pilot, "Leave mine?")
        assert not app._exit
        await pilot.press("d")
        await until(pilot, lambda: app._exit)
    assert value(services) == 22


async def test_saves_as_another_profile(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, _):
        app = app_of(pilot)
        await pilot.press("j", "plus")
        await act(pilot, "edit_save_as")
        await shows(pilot, "Save as a new profile", "mine-2")
        await pilot.press("enter")
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == "mine-2")
    profiles = load_catalog(services.paths).profiles
    assert (profiles["mine"].flags["n-cpu-moe"], profiles["mine-2"].flags["n-cpu-moe"]) == (22, 23)


async def test_another_engine_brings_its_own_options(services: WorkshopServices) -> None:
    async with editing(services) as (pilot, screen):
        count = len(screen.rows.values)
        await pilot.press("slash", *"engine", "enter")
        await until(pilot, lambda: screen.rows.value and screen.rows.value.name == "engine")
        row = screen.rows.value
        assert row and "embedded" in row.choices
        screen.session.set(row, "embedded")
        screen.changed()
        await until(pilot, lambda: "embedded" in screen.session.engine)
        await pilot.press("escape")
        await until(pilot, lambda: 100 < len(screen.rows.values) < count)


async def test_a_shipped_profile_becomes_the_owners(services: WorkshopServices) -> None:
    async with on_dashboard(services, notifications=True) as pilot:
        await highlight(pilot, "demo")
        await pilot.press("e")
        await shows(pilot, "saving makes your own copy")
        await pilot.press("plus", "ctrl+s")
        await shows(pilot, "demo is saved")
    own = load_catalog(services.paths).get("demo")
    assert not own.shipped and own.path == services.paths.profiles / "demo.toml"
