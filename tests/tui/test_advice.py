"""The advice on the screen: the line on the dashboard, the list behind A, trying and dismissing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from gpubox.advisor.advice import Advice
from gpubox.advisor.advisor import AdviceList
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.telemetry.snapshot import Snapshot
from gpubox.tui import app as app_module
from gpubox.tui.advice import AdviceScreen, advice_details
from gpubox.tui.app import GpuboxApp
from gpubox.tui.dashboard.operation_line import advice_phrases
from gpubox.tui.styled_lines import cell_width
from gpubox.tui.workshop.trial import TrialScreen
from tests.tui.conftest import SIZE, act, app_of, on_dashboard, on_screen, opened, pictured, shows, text, until
from tests.tui.fake import BUSY, READY, STOPPED, FakeServices, model_log
from tests.tui.fake_workshop import write_mine
from tests.tui.scenes import LISTED, NOW, SESSION
from tests.tui.snapshots import CARD, IN_RAM, MIB, ONE_CARD, SLOT, SPLIT, filled
from tests.tui.test_trial import VERDICT, TrialServices

SIZES = {"80x24": (80, 24), "120x36": (120, 36), "200x50": (200, 50)}
PROFILE = "qwen36-mtp-16gb"
PAGING = Advice(
    "mmap",
    "paging",
    "The CPU waits for weights that are read from the disk while it computes; load-mode none (no mmap) loads them "
    "into RAM once.",
    (
        "load-mode auto; ~9.3 GiB of weights in RAM",
        "1.2 GiB of them are on the disk now",
        "118 major faults/s while it works (median of 40 readings)",
        "~9.3 GiB of RAM are taken at the start instead; 31.0 GiB can be freed",
    ),
    {"load-mode": "none"},
    {"load-mode": None},
    PROFILE,
)
CONTEXT = Advice(
    "context",
    "context",
    "The largest of 312 requests used 43,512 of 131,072 tokens; ctx-size 90112 frees ~608 MiB on CUDA0: room for the "
    "experts of 1 more layer.",
    (
        "requests of the history of 12 days, and the server's log",
        "90,112 tokens hold at least 2 times the largest request",
    ),
    {"ctx-size": 90112, "n-cpu-moe": 21},
    {"ctx-size": 131072, "n-cpu-moe": 22},
    PROFILE,
)
OTHERS = Advice(
    "other-programs",
    "VRAM",
    "Other programs hold 2.0 GiB of VRAM on CUDA0, room for the experts of ~4 layers, while a part of the model is on "
    "the CPU.",
    ("CUDA0: firefox 1.7 GiB, Xorg 300 MiB", "~433 MiB for the experts of one layer"),
)
JUDGED = AdviceList(PROFILE, (PAGING, OTHERS, CONTEXT))
FIREFOX = 1740 * MIB
CROWDED: dict[str, Any] = LISTED | {
    "driver": replace(ONE_CARD, gpus=(replace(CARD, vram_used_bytes=(CARD.vram_used_bytes or 0) + FIREFOX),)),
    "memory": (
        replace(
            SPLIT,
            other_processes=(("firefox", FIREFOX), *SPLIT.other_processes),
            other_processes_bytes=(SPLIT.other_processes_bytes or 0) + FIREFOX,
            free_bytes=(SPLIT.free_bytes or 0) - FIREFOX,
        ),
        IN_RAM,
    ),
}
"""The box of which OTHERS and CONTEXT are true."""


def services(judged: AdviceList | None = JUDGED) -> FakeServices:
    """A server at work, and what the advisor says of it."""
    fake = FakeServices(BUSY)
    fake.at, fake.step = NOW, 0.0
    fake.extra_readings = LISTED
    fake.judged = judged
    return fake


async def advised(pilot: Pilot[bool]) -> None:
    """From the dashboard to the list."""
    await opened(pilot)
    await act(pilot, "advice")
    await until(pilot, lambda: isinstance(pilot.app.screen, AdviceScreen), "the advice")


async def test_the_dashboard_says_the_most_urgent_advice_in_one_line() -> None:
    fake = services()
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "→ paging  The CPU waits for weights", "+2 more  the menu (x) says why")
        line = next(each for each in text(pilot).splitlines() if "→ paging" in each)
        assert len(line.rstrip()) <= SIZE[0]
        fake.judged = replace(JUDGED, advice=(replace(PAGING, dismissed=True), OTHERS))
        fake.status = replace(BUSY, pid=4712)
        await shows(pilot, "→ VRAM  Other programs hold 2.0 GiB")
        assert not on_screen(pilot, "more  a in the menu")
        fake.judged = AdviceList(PROFILE)
        fake.status = replace(BUSY, pid=4713)
        await until(pilot, lambda: "the menu (x) says why" not in text(pilot), "no advice")


async def test_a_rule_that_fails_ends_nothing() -> None:
    class Failing(FakeServices):
        def __init__(self) -> None:
            super().__init__(BUSY)
            self.saved: list[str] = []

        def advice(self, snapshot: Snapshot | None, profile: str = "") -> AdviceList | None:
            raise ZeroDivisionError

        def save_traceback(self, text: str) -> None:
            self.saved.append(text)

    fake = Failing()
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await until(pilot, lambda: fake.saved)
        assert "ZeroDivisionError" in fake.saved[0] and not app.crash
        await shows(pilot, PROFILE)


async def test_nothing_to_advise_says_where_advice_comes_from() -> None:
    async with on_dashboard(services(AdviceList(PROFILE))) as pilot:
        await advised(pilot)
        await shows(pilot, "Nothing to advise.", "Advice comes from real requests")


async def test_the_list_shows_evidence_and_change_and_dismisses() -> None:
    fake = services()
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await advised(pilot)
        await shows(pilot, f"Advice for {PROFILE}", "118 major faults/s", "+ load-mode = none", "t try", "x menu")
        await pilot.press("j")
        await shows(pilot, "firefox 1.7 GiB", "no flag of the profile mends it")
        assert "t try" not in text(pilot)
        await act(pilot, "advice_dismiss")
        await shows(pilot, "VRAM is dismissed", "1 dismissed")
        assert fake.asked[-1] == ("dismiss", PROFILE, "other-programs")
        await pilot.press("a")
        await until(pilot, lambda: "Other programs hold" in text(pilot))
        screen = app.screen
        assert isinstance(screen, AdviceScreen)
        screen.rows.highlight("other-programs")
        await act(pilot, "advice_dismiss")
        await until(pilot, lambda: fake.asked[-1] == ("show", PROFILE, "other-programs"))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)


async def test_without_a_server_the_highlighted_profile_is_judged() -> None:
    fake = services(AdviceList("qwen36-256k", (replace(CONTEXT, try_profile="qwen36-256k"),)))
    fake.status, fake.extra_readings = STOPPED, {}
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        app.dashboard.profiles.highlight(f"profile:{'qwen36-256k'}")
        await act(pilot, "advice")
        await shows(pilot, "Advice for qwen36-256k")


async def test_a_recording_gives_no_advice() -> None:
    fake = services()
    fake.read_only = "This is a recording: nothing in it can be changed."
    async with on_dashboard(fake, notifications=True) as pilot:
        app = app_of(pilot)
        await act(pilot, "advice")
        await shows(pilot, "This is a recording")
        assert app.screen is app.dashboard


async def test_an_advice_is_tried_with_one_key(
    paths: Paths, fake_engine: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.01)
    mine = TrialServices(*write_mine(paths, fake_engine, tiny_gguf), READY)
    change = {"ctx-size": 1024, "threads": 2}
    mine.judged = AdviceList("mine", (replace(CONTEXT, changes=change, before={"ctx-size": 2048}, try_profile="mine"),))
    app = GpuboxApp(mine)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await advised(pilot)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(pilot.app.screen, TrialScreen), "the trial")
        await shows(pilot, "ctx-size 1024 instead of 2048", VERDICT)
        await act(pilot, "trial_keep")
        await shows(pilot, "mine is written")
    flags = load_catalog(paths).get("mine").flags
    assert (flags["ctx-size"], flags["threads"], flags["n-cpu-moe"]) == (1024, 2, 22)
    assert "# experts" in (paths.profiles / "mine.toml").read_text()  # comments stay


def test_hostile_text_is_drawn_as_text() -> None:
    nasty = "[red]x[/] \x1b]52;c;aGk=\x07 \u202e 漢字"
    advice = Advice("a", nasty, nasty, (nasty,), {"ctx-size": 1}, {"ctx-size": None}, nasty)
    phrases = advice_phrases(AdviceList("p", (advice,)))
    shown = "".join(p.plain for p in phrases) + "".join(text for line in advice_details(advice, 40) for text, _ in line)
    assert "\x1b" not in shown and "\u202e" not in shown and "[red]" in shown
    for width in (20, 40, 80, 200):
        assert all(cell_width(line) <= width for line in advice_details(CONTEXT, width))


async def _line(pilot: Pilot[bool]) -> None:
    await shows(pilot, "→ VRAM", "the menu (x)")


async def _list(pilot: Pilot[bool]) -> None:
    await act(pilot, "advice")
    await until(pilot, lambda: isinstance(pilot.app.screen, AdviceScreen))
    await pilot.press("j")
    await shows(pilot, "+ n-cpu-moe = 21")


SCENES: dict[str, Callable[[Pilot[bool]], Awaitable[None]]] = {"line": _line, "list": _list}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("size", SIZES)
async def test_picture(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, size: str, scene: str) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    fake = services(AdviceList(PROFILE, (OTHERS, CONTEXT)))
    fake.extra_readings, fake.lines = CROWDED, model_log(SESSION[:5], SLOT)
    app = GpuboxApp(fake)
    app.bridge.poller.history = filled(BUSY, NOW, SESSION, (SLOT,))
    async with app.run_test(size=SIZES[size]) as pilot:
        await opened(pilot)
        await SCENES[scene](pilot)
        await pictured(pilot, snapshot)
