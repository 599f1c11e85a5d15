"""What an owner sees and does on the dashboard."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widget import Widget
from textual.widgets import Input

from gpubox.errors import GpuboxError
from gpubox.server.events import Step, StepDone, StepStarted, WaitingForSlots
from gpubox.tui import dashboard
from gpubox.tui.actions import ACTIONS
from gpubox.tui.app import GpuboxApp
from gpubox.tui.dashboard import layout, screen
from gpubox.tui.services import ATTACHED_READ_ONLY
from tests.tui.conftest import SIZE, act, app_of, choose, on_dashboard, opened, settled, shows, text, until
from tests.tui.fake import BUSY, DEMO, MINE, READY, STOPPED, FakeServices, Gate, rollback_events, switch_events


async def test_shows_what_runs(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await until(pilot, lambda: "41°C" in text(pilot).splitlines()[0])
        for word in ("● qwen36-mtp-16gb ready", "llama-server b11434", "127.0.0.1:8081", "13:02"):
            assert word in text(pilot).splitlines()[0]
        await shows(pilot, "not with your llama-server", "prot is not a known key")
        await act(pilot, "zoom_detail")  # the highlighted profile is the one that runs, with its command line
        await shows(pilot, "--ctx-size 131072", "measured generation, server side: 56 tok/s")


async def test_shows_who_can_reach_the_server(fake: FakeServices) -> None:
    fake.status = replace(READY, exposed="LAN, no key")
    async with on_dashboard(fake, size=(80, 24)) as pilot:
        await until(pilot, lambda: "▲ LAN, no key" in text(pilot).splitlines()[0])


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (100, 30), (120, 36), (200, 50)])
async def test_fits_every_terminal(fake: FakeServices, size: tuple[int, int]) -> None:
    async with on_dashboard(fake, size=size) as pilot:
        await shows(pilot, "qwen36-mtp-16gb")
        await settled(pilot)
        assert all(len(line) <= size[0] for line in text(pilot).splitlines())
        for widget in pilot.app.screen.walk_children(Widget):
            if widget.is_on_screen:
                assert widget.region.right <= size[0], widget


async def test_a_pane_is_one_file_and_one_line(
    fake: FakeServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fans.py").write_text(
        "from gpubox.tui.widgets.lines import SnapshotPane\n\n"
        "class FansPane(SnapshotPane):\n"
        "    def title(self, snapshot): return 'Fans'\n"
        "    def lines(self, snapshot, width, height): return [((f'fans of {snapshot.server.profile}', ''),)]\n"
    )
    monkeypatch.setattr(dashboard, "__path__", [*dashboard.__path__, str(tmp_path)])
    line = layout.Pane("fans", "FansPane", "Fans", "left", up="narrow", key="N")
    for module in (layout, screen):
        monkeypatch.setattr(module, "PANES", (*layout.PANES[:1], line, *layout.PANES[1:]))

    app = GpuboxApp(fake)
    app.bind(line.key, "screen.zoom('fans')")  # as the table of actions does with each line
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "╭─ Fans ─", "fans of qwen36-mtp-16gb", "CPU offload")
        await pilot.press("N")
        await until(pilot, lambda: "CPU offload" not in text(pilot))
        await shows(pilot, "fans of qwen36-mtp-16gb")


async def test_search_narrows_and_esc_shows_all(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("slash", *"256k")
        await until(pilot, lambda: len(app.dashboard.profiles.rows.values) == 1)
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == "qwen36-256k")
        await pilot.press("enter")
        await until(pilot, lambda: app.dashboard.profiles.rows.has_focus)
        assert not fake.asked, "Enter in the search line only chooses the row"
        await pilot.press("escape")
        await until(pilot, lambda: len(app.dashboard.profiles.rows.values) == 7)


async def test_letters_typed_right_behind_the_slash_reach_the_search(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("slash", "s", "q", "r")
        await until(pilot, lambda: app.dashboard.profiles.search.value == "sqr")
        assert not fake.asked and app.screen is app.dashboard


async def test_enter_switches_and_shows_the_progress(fake: FakeServices) -> None:
    gate = Gate(threading.Event())
    fake.script = switch_events(gate=gate)
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "qwen36-256k")
        await until(pilot, lambda: "12.9 of 21.1 GB ~4 s left" in text(pilot))
        await shows(
            pilot,
            "◌ qwen36-256k",
            "flags and memory ✓",
            "stop ✓ 400 ms",
            "VRAM settled ✓",
            "load ▓▓▓▓▓▓░░░░",
            "load 61%",
        )
        gate.open.set()
        await until(pilot, lambda: "✓ qwen36-256k answers in 11.2 s" in text(pilot))
        await until(pilot, lambda: "● qwen36-256k ready" in text(pilot))
        assert fake.asked == [("switch", "qwen36-256k", False, False)]


async def test_a_failed_switch_says_why_and_what_is_back(fake: FakeServices) -> None:
    fake.script = rollback_events()
    fake.error = GpuboxError("x", "Try n-cpu-moe 26 or cache-type-k/v q8_0.")
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "qwen36-256k")
        await until(pilot, lambda: "✗ qwen36-256k" in text(pilot) and "Try n-cpu-moe 26" in text(pilot))
        await shows(pilot, "out of VRAM: KV cache on CUDA0 (4,096 MiB)", "qwen36-mtp-16gb is restored (3.1 s)")
        await pilot.press("j", "j")
        await settled(pilot)
        assert "out of VRAM" in text(pilot), "it stays until the next action"


async def test_nothing_runs_enter_starts(fake: FakeServices) -> None:
    fake.status = STOPPED
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "⏎ start")
        await choose(pilot, "mine")
        await until(pilot, lambda: fake.asked)
        assert fake.asked == [("start", "mine", False, False)]


async def test_a_busy_server_is_asked_about(fake: FakeServices) -> None:
    fake.status = BUSY
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "mine")
        await until(pilot, lambda: "Slot 0 is answering (182 tokens so far)" in text(pilot))
        await pilot.press("c")
        await until(pilot, lambda: pilot.app.screen is pilot.app.dashboard)  # type: ignore[attr-defined]
        assert not fake.asked
        await pilot.press("enter")
        await until(pilot, lambda: "is busy" in text(pilot))
        await pilot.press("n")
        await until(pilot, lambda: fake.asked)
        assert fake.asked == [("switch", "mine", True, False)]


async def test_esc_cancels_waiting_for_busy_slots(fake: FakeServices) -> None:
    busy = WaitingForSlots("x", ("slot 0 is answering",), 600.0)
    fake.script = [StepDone(Step.CHECK, "mine", 0.1), StepStarted(Step.WAIT, "x"), busy, Gate(threading.Event())]
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "mine")
        await until(pilot, lambda: "wait … slot 0 is answering" in text(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "Given up; what runs was not touched" in text(pilot))


async def test_an_open_port_is_asked_about(fake: FakeServices) -> None:
    fake.status = STOPPED
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "lan")
        await until(pilot, lambda: "Open to the network without a key?" in text(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is pilot.app.dashboard)  # type: ignore[attr-defined]
        assert not fake.asked
        await pilot.press("enter")
        await until(pilot, lambda: "without a key?" in text(pilot))
        await pilot.press("o")
        await until(pilot, lambda: fake.asked == [("start", "lan", False, True)])


async def test_a_missing_model_is_downloaded_first(fake: FakeServices) -> None:
    fake.status = STOPPED
    gate = Gate(threading.Event())
    fake.script = [(49_000_000, 98_000_000), gate]
    async with on_dashboard(fake) as pilot:
        await choose(pilot, DEMO.name)
        await shows(pilot, "Download 98 MB?")
        await pilot.press("d")
        await until(pilot, lambda: "download ▓▓▓▓▓░░░░░ 49 of 98 MB" in text(pilot))
        gate.open.set()
        await until(pilot, lambda: ("start", "demo", False, False) in fake.asked)


async def test_stop_asks_first(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "Stop qwen36-mtp-16gb?" in text(pilot))
        await pilot.press("enter")  # the first answer is the safe one
        await until(pilot, lambda: pilot.app.screen is pilot.app.dashboard)  # type: ignore[attr-defined]
        assert not fake.asked
        await pilot.press("s")
        await until(pilot, lambda: "Stop qwen36" in text(pilot))
        await pilot.press("y")
        await until(pilot, lambda: fake.asked == [("stop", "main", False, False)])


async def test_a_crash_is_named_and_r_starts_it_again(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        fake.last = "qwen36-mtp-16gb"
        fake.status = replace(STOPPED, state="crashed", message="qwen36-mtp-16gb died: out of VRAM: an illegal access.")
        await until(pilot, lambda: "✗ crashed" in text(pilot))
        await until(pilot, lambda: "died: out of VRAM: an illegal access" in text(pilot))
        await shows(pilot, "r starts qwen36-mtp-16gb again", "t on its row tries it smaller")
        await pilot.press("r")
        await until(pilot, lambda: fake.asked == [("restart", "qwen36-mtp-16gb", False, False)])


async def test_a_first_run_without_engine_says_what_to_do(fake: FakeServices) -> None:
    fake.status, fake.engine, fake.profiles, fake.broken = STOPPED, False, [DEMO], {}
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "No llama-server was found.", "[engines]")
        await shows(pilot, "'gpubox[embedded]'")
        await until(pilot, lambda: "Enter starts the highlighted profile" not in text(pilot), "no start without engine")
        assert "⏎ start" not in text(pilot)


async def test_without_any_profile(fake: FakeServices) -> None:
    fake.status, fake.profiles, fake.broken = STOPPED, [], {}
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.dashboard.header.overview)
        await pilot.press("enter", "y", "s", "r", "j", "end")
        assert app.is_running and not fake.asked


async def test_enter_on_a_model_without_a_profile_makes_one_and_starts_it(fake: FakeServices) -> None:
    fake.new_models = [Path("/data/models/new.gguf")]
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await until(pilot, lambda: "new model: Enter starts it" in text(pilot))
        await pilot.press("end")
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.kind == "model")
        assert "Enter" not in str(app.dashboard.log_pane.placeholder.content), "something runs already"
        await pilot.press("enter")
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == "new")
        await until(pilot, lambda: fake.asked == [("switch", "new", False, False)])


async def test_profile_files_are_read_again_when_they_change(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        fake.profiles.append(replace(MINE, name="later"))
        fake.version += 1
        await until(pilot, lambda: any(e.name == "later" for e in app.dashboard.profiles.rows.values))
        assert app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == READY.profile


async def test_read_only_where_the_server_is_not_ours(fake: FakeServices) -> None:
    fake.url, fake.read_only = "http://10.0.0.7:8080", ATTACHED_READ_ONLY
    fake.status = replace(READY, instance=None, profile=None, pid=None, base_url=fake.url)
    fake.extra_readings = {"requests": ()}
    async with on_dashboard(fake, notifications=True) as pilot:
        await shows(pilot, "watching this server", "No requests yet, or no log")
        await shows(pilot, "10.0.0.7:8080")
        assert "switch" not in text(pilot).splitlines()[-1]
        await pilot.press("s", "r", "enter")
        await until(pilot, lambda: "gpubox did not start this server, so" in text(pilot))
        assert not fake.asked


async def test_a_server_can_be_started_as_the_screen_opens(fake: FakeServices) -> None:
    fake.status = STOPPED
    fake.absent = set()
    async with GpuboxApp(fake, start="demo").run_test(size=SIZE) as pilot:
        await until(pilot, lambda: fake.asked == [("start", "demo", False, False)])


async def test_the_result_of_a_successful_operation_disappears(
    fake: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "RESULT_SECONDS", 0.05)
    fake.script = switch_events()
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "qwen36-256k")
        await until(pilot, lambda: pilot.app.bridge.operation and pilot.app.bridge.operation.succeeded)  # type: ignore[attr-defined]
        await until(pilot, lambda: pilot.app.dashboard._operation is None)  # type: ignore[attr-defined]
        await until(pilot, lambda: "answers in" not in text(pilot))


async def test_the_bar_names_what_works_while_a_text_is_typed_and_in_a_pane_alone(fake: FakeServices) -> None:
    async with on_dashboard(fake, size=(80, 24)) as pilot:

        def bar() -> str:
            return text(pilot).splitlines()[-1]

        await until(pilot, lambda: "p profiles" in bar() and "x menu" in bar() and "esc" not in bar())
        await pilot.press("l")
        await until(pilot, lambda: "esc back" in bar() and "⏎" not in bar())
        await pilot.press("slash")
        await until(pilot, lambda: bar().strip() == "⏎ confirm  esc back  F1 help  ^p palette  ^q quit")
        await pilot.press("escape")
        await until(pilot, lambda: "p profiles" in bar() and "esc back" in bar())
        await pilot.press("escape")
        await until(pilot, lambda: "esc" not in bar())


async def test_restart_is_offered_where_something_ran(fake: FakeServices) -> None:
    fake.status = STOPPED
    async with on_dashboard(fake) as pilot:
        assert "restart" not in text(pilot)
        fake.last = "demo"
        await shows(pilot, "r restart")


async def test_copy_takes_the_command_line(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await act(pilot, "copy")
        await until(pilot, lambda: app.clipboard.startswith("llama-server --model hf:unsloth/"))


async def test_help_has_every_key_and_definition(fake: FakeServices) -> None:
    async with on_dashboard(fake, size=(120, 300)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, *(verb.title for verb in ACTIONS))
        await shows(pilot, "pp", "tg", "TTFT", "effective", "acceptance", "crashed", "~/.config")
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is pilot.app.dashboard)  # type: ignore[attr-defined]


async def test_help_scrolls_with_the_keys_of_a_list(fake: FakeServices) -> None:
    async with on_dashboard(fake, size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, ACTIONS[0].title)
        await pilot.press("end")
        await shows(pilot, "~/.config")
        await pilot.press("home")
        await shows(pilot, ACTIONS[0].title)
        await pilot.press(*"jjjjjjjj")
        await until(pilot, lambda: ACTIONS[0].title not in text(pilot))


async def test_palette_switches_to_a_profile(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: pilot.app.screen.query(Input))
        await pilot.press(*"to mine")
        await until(pilot, lambda: "Switch to mine" in text(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: fake.asked == [("switch", "mine", False, False)])


async def test_palette_copies_a_command_that_no_action_performs(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: pilot.app.screen.query(Input))
        await pilot.press(*"upload picture")
        await shows(pilot, "Nothing is called that; press F1 for help.")
        pilot.app.screen.query_one(Input).value = "update llama.cpp"
        await shows(pilot, "In a shell: gpubox engines build", "⏎ copies it.")
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.clipboard == "gpubox engines build --version latest")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: pilot.app.screen.query(Input))
        await pilot.press("f1")
        await shows(pilot, "x opens the menu of the pane you are in")


async def test_a_profile_that_runs_elsewhere_is_not_started(fake: FakeServices) -> None:
    sentence = "far runs elsewhere, at http://box2:8080; gpubox does not start it."
    far = replace(MINE, name="far", title="", upstream="http://box2:8080", aliases=("gpt-4o",))
    fake.profiles = [*fake.profiles, far]
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("slash", *"far", "enter")
        await until(pilot, lambda: app.dashboard.profiles.entry and app.dashboard.profiles.entry.name == "far")
        await shows(pilot, "→ far")
        await act(pilot, "zoom_detail")
        await shows(pilot, f"→ {sentence}", "aliases", "gpt-4o")
        await pilot.press("escape", "enter")
        await settled(pilot)
        await shows(pilot, sentence)
        assert fake.asked == []


async def test_a_figure_explains_itself_by_enter_and_under_the_mouse(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        dashboard = app_of(pilot).dashboard
        pane = dashboard.throughput
        await until(pilot, lambda: "usual" in text(pilot))
        dashboard.set_focus(pane)
        await until(pilot, lambda: dashboard.history.usual is not None and pane.figure != "")
        await pilot.press("down", "down", "up", "down", "enter")
        await shows(
            pilot, pane.figure, "moved by", "More than usual here: 400 ms, the median of 212 requests in 30 days."
        )
        await pilot.press("escape")
        row = next(y for y, line in enumerate(pane.drawn) if any(part == "TTFT " for part, _ in line))
        column = "".join(part for part, _ in pane.drawn[row]).index("TTFT")
        await pilot.hover(pane, offset=(column + pane.gutter.left, row + pane.gutter.top))
        await until(pilot, lambda: "TTFT: time to first token" in str(pane.tooltip))
        await pilot.press("escape")
        await until(pilot, lambda: not pane.has_focus)
