"""The keys: few, without clashes, each screen with its way back; the menu, undo, and what the screen remembers."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from textual.color import Color
from textual.widgets import OptionList

import gpubox.tui
from gpubox.paths import Paths
from gpubox.tui import theme
from gpubox.tui.actions import ACTIONS, Effect, Scope, key_bar_actions, menu_actions
from gpubox.tui.app import GpuboxApp
from gpubox.tui.background import AnsweringParser, BackgroundKnown
from gpubox.tui.messages import UndoStep
from gpubox.tui.palette import MenuScreen
from gpubox.tui.remembered import Remembered, read_remembered, write_remembered
from tests.tui.conftest import app_of, on_dashboard, shows, until
from tests.tui.contrast import contrast, unreadable
from tests.tui.fake import FakeServices

NAVIGATION = {"enter", "escape", "tab", "up", "down", "left", "right", "home", "end", *"12345"}
"""Not counted: they move, go back, and do what the highlighted row says, on every screen."""
DASHBOARD = (Scope.DASHBOARD, Scope.LIST, Scope.LISTS, Scope.ANYWHERE)


def test_the_dashboard_has_at_most_20_keys() -> None:
    # F1 is ? while a text is typed.
    keys = {key for action in ACTIONS if action.bound and action.scope in DASHBOARD for key in action.keys}
    assert len(keys - NAVIGATION - {"f1"}) <= 20, sorted(keys)


def test_no_key_destroys_on_one_screen_what_it_moves_or_opens_on_another() -> None:
    effects = defaultdict(set)
    for action in ACTIONS:
        for key in set(action.keys) - NAVIGATION:
            effects[key].add(action.effect)
    for key, kinds in effects.items():
        assert not (kinds & {Effect.DESTROYS, Effect.DECIDES} and kinds & {Effect.MOVES, Effect.OPENS}), (key, kinds)
        assert key == key.lower(), "upper case is no other verb"


def test_no_text_names_a_key_of_upper_case() -> None:
    for path in Path(gpubox.tui.__path__[0]).rglob("*.py"):
        named = re.findall(r"""["'; (,][B-Z] [a-z]+s? |"[A-Z]", "bold""", path.read_text(encoding="utf-8"))
        assert not named, (path, named)


@pytest.mark.parametrize("pane", ["profiles", "vram", "offload", "throughput", "requests", "log", "detail"])
def test_a_menu_has_no_key_twice(pane: str) -> None:
    keys = [key for action in menu_actions(Scope.DASHBOARD, {pane, "*"}) for key in action.keys]
    assert len(keys) == len(set(keys)), keys


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope not in DASHBOARD])
def test_every_screen_has_its_way_back(scope: Scope) -> None:
    assert any("escape" in action.keys for action in key_bar_actions(scope))
    menu = menu_actions(scope, set())
    keys = [key for action in menu for key in action.keys]
    assert len(keys) == len(set(keys))


OWN_KEYS = {"question.py", "chat_settings.py", "web.py"}
"""Dialogs whose answers have letters of their own, and what no terminal shows."""
NAMED = re.compile(
    r"(?<![\w`'./+-])(\^?[A-Za-z0-9]|F\d+|esc|ctrl\+[a-z]) ([a-z]+s)\b|\b[Pp]ress (\w)\b|\((\w)\)|menu \(\d, (\w)\)"
)
"""How a text names a key: ``t shows it``, ``press n to``, ``the menu (x)``."""


def named_keys(path: Path) -> set[str]:
    """The keys that the texts of a module name."""
    tree, keys = ast.parse(path.read_text()), set()
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:  # a styled text: ("o", "bold $primary")
            key, style = (getattr(each, "value", "") for each in node.elts)
            keys |= {str(key)} if style == "bold $primary" and str(key).isascii() and len(str(key)) == 1 else set()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            for key, verb, *others in NAMED.findall(node.value):
                if key not in ("a", "A") or verb in ("shows", "opens", "tries"):  # the article
                    keys.add((key or "".join(others)).replace("ctrl+", "^"))
    return keys


def test_each_key_that_a_text_names_exists_where_it_stands() -> None:
    at = {"bench": (Scope.BENCH,), "clients": (Scope.CLIENTS, Scope.CONNECT), "chat": (Scope.CHAT, Scope.DIFF),
          "dashboard": DASHBOARD}  # fmt: skip
    found = 0
    for path in Path(gpubox.tui.__file__).parent.rglob("*.py"):
        scopes = {*at.get(path.parent.name, Scope), Scope.ANYWHERE}
        here = {key.replace("ctrl+", "^") for action in ACTIONS if action.bound and action.scope in scopes
                for key in (*action.keys, action.letter)} | {"^c"}  # fmt: skip
        named = named_keys(path) if path.name not in OWN_KEYS else set()
        found += len(named)
        assert named <= here, (path.name, named - here)
    assert found > 20


async def test_the_menu_is_of_the_focused_pane_and_its_rows_run(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, MenuScreen))
        await shows(pilot, "Profiles", "del  Delete the highlighted profile", "New profile")
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard.startswith("llama-server --model hf:unsloth/"))
        app.dashboard.requests.rows.focus()
        await pilot.press("x")
        await shows(pilot, "Filter the requests of all launches")
        rows = app.screen.query_one(OptionList)
        rows.highlighted = rows.get_option_index("filter_requests")
        await pilot.press("enter")
        await until(pilot, lambda: app.dashboard.requests.filter.has_focus)


async def test_the_bar_offers_only_what_works(fake: FakeServices) -> None:
    fake.extra_readings = {"requests": ()}
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        app.dashboard.requests.rows.focus()
        app.dashboard.requests.rows.show_values(())
        app.dashboard._update_keys()
        await until(pilot, lambda: "⏎" not in app.dashboard.keys.render().plain)  # type: ignore[union-attr]
        assert "  u " not in app.dashboard.keys.render().plain  # type: ignore[union-attr]


async def test_u_names_and_brings_back_the_profile_that_ran_before(fake: FakeServices) -> None:
    fake.undo = [UndoStep("back to mine (ran before)", "mine", runs=True)]
    async with on_dashboard(fake, size=(160, 45)) as pilot:
        await shows(pilot, "u back to mine (ran before)")
        await pilot.press("u")
        await until(pilot, lambda: fake.asked == [("switch", "mine", False, False)])


async def test_u_asks_which_if_more_can_be_taken_back(fake: FakeServices) -> None:
    fake.undo = [UndoStep("undo the edit of demo", "demo", runs=False), UndoStep("back to mine", "mine", runs=True)]
    async with on_dashboard(fake) as pilot:
        await pilot.press("u")
        await shows(pilot, "1  undo the edit of demo", "2  back to mine")
        await pilot.press("down", "enter")  # the highlighted row is what happens
        await until(pilot, lambda: fake.asked == [("switch", "mine", False, False)])


def parsed(*chunks: str) -> tuple[list[bool], str]:
    """What the terminal said, and what was typed."""
    parser, said, typed = AnsweringParser(), [], ""
    for chunk in chunks:
        for message in parser.feed(chunk):
            if isinstance(message, BackgroundKnown):
                said.append(message.light)
            else:
                typed += getattr(message, "character", None) or "?"
    return said, typed


@pytest.mark.parametrize("split", range(1, 26))
def test_the_answer_of_the_terminal_is_typed_nowhere(split: int) -> None:
    answer = "\x1b]11;rgb:ffff/ffff/eeee\x1b\\"
    if split > 1:  # a terminal writes an answer in one piece; a chunk may end within it all the same
        assert parsed("a" + answer[:split], answer[split:] + "b") == ([True], "ab")
    assert parsed("a\x1b]11;rgb:00/10/20\x07b") == ([False], "ab")


def test_a_late_or_foreign_sequence_leaves_the_keys_alone() -> None:
    assert parsed("\x1b[A", "x]11;y")[1].endswith("x]11;y")


@pytest.mark.parametrize(
    ("setting", "variable", "remembered", "name"),
    [
        ("auto", "", Remembered(), "gpubox"),
        ("auto", "", Remembered(background="light"), "gpubox-light"),
        ("auto", "", Remembered(background="light", theme="nord"), "nord"),
        ("auto", "dracula", Remembered(theme="nord"), "dracula"),
        ("gpubox-light", "dracula", Remembered(theme="nord"), "gpubox-light"),
        ("no such theme", "", Remembered(), "gpubox"),
    ],
)
async def test_the_theme_is_that_of_the_settings_else_of_the_owner_else_of_the_terminal(
    fake: FakeServices, monkeypatch: pytest.MonkeyPatch, setting: str, variable: str, remembered: Remembered, name: str
) -> None:
    if variable:
        monkeypatch.setenv("TEXTUAL_THEME", variable)
        monkeypatch.setattr("textual.constants.DEFAULT_THEME", variable)
    fake.config, fake.memory = replace(fake.config, theme=setting), remembered
    assert GpuboxApp(fake).theme == name


async def test_a_light_terminal_gets_the_light_theme_readable_and_remembered(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        app.appearance._asked_at = float("inf")  # as if the terminal was asked just now
        app.post_message(BackgroundKnown(light=True))
        await until(pilot, lambda: app.theme == theme.GPUBOX_LIGHT.name and fake.memory.background == "light")
        await shows(pilot, "qwen36-mtp-16gb")
        assert not unreadable(app.screen._compositor.render_strips())


def test_the_light_theme_has_readable_contrast() -> None:
    background = Color.parse(theme.GPUBOX_LIGHT.background or "").rich_color.get_truecolor()
    for name, (_, light) in theme.COLOURS.items():
        if name not in ("line", "cursor", "mem-free", "diff-added", "diff-removed"):  # borders and backgrounds
            least = 4.5 if name == "quiet" or name.startswith(("code", "heading")) else 2.9
            assert contrast(Color.parse(light).rich_color.get_truecolor(), background) >= least, name


async def test_panes_and_screen_are_remembered(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: fake.memory.zoom == "log")
    again = FakeServices()
    again.memory = fake.memory
    async with on_dashboard(again) as pilot:
        assert app_of(pilot).dashboard._zoomed == "log"


def test_a_damaged_memory_is_no_reason_to_stop(paths: Paths) -> None:
    write_remembered(paths.screen, Remembered(theme="nord", graph=2))
    assert read_remembered(paths.screen) == Remembered(theme="nord", graph=2)
    for text in ("", "[1]", "{", '{"theme": 3, "graph": "x", "else": 1}', '"text"'):
        paths.screen.write_text(text)
        assert read_remembered(paths.screen) == Remembered()
