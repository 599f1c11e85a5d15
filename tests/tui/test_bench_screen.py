"""The Bench screen: what it shows of runs, and what its keys do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gpubox.bench.kinds import all_kinds
from gpubox.bench.model import Doubt
from gpubox.bench.report.formatting import item_words
from gpubox.paths import Paths
from gpubox.tui import app as app_module
from gpubox.tui.app import GpuboxApp
from gpubox.tui.bench import plan_form
from gpubox.tui.bench.bench_screen import BenchScreen
from gpubox.tui.bench.plan_form import bench_arguments, bench_command_line, plan_fields, plannable_kinds
from gpubox.tui.dashboard.screen import DashboardScreen
from tests.bench_runs import speed_run
from tests.tui.conftest import act, drag, opened, settled, shows, text, until
from tests.tui.fake_bench import BenchServices, sweep_run


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.01)
    monkeypatch.setattr(plan_form, "OUTLINE_DELAY", 0.0)
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


@asynccontextmanager
async def benching(
    box: Paths, *, size: tuple[int, int] = (120, 36), open_: bool = True
) -> AsyncIterator[tuple[Pilot[bool], BenchServices]]:
    services = BenchServices(box)
    app = GpuboxApp(services)
    async with app.run_test(size=size, notifications=True) as pilot:
        await opened(pilot)
        if open_:
            await pilot.press("3")
            await until(pilot, lambda: app.bench and app.bench.is_current and app.bench.rows.has_focus, "the screen")
        try:
            yield pilot, services
        finally:
            services.bench.ended.set()


def screen_of(pilot: Pilot[bool]) -> BenchScreen:
    screen = pilot.app.bench  # type: ignore[attr-defined]
    assert isinstance(screen, BenchScreen)
    return screen


def title_of(pilot: Pilot[bool]) -> str:
    """The title of the pane."""
    return screen_of(pilot).pane.border_title or ""


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
async def test_the_report_of_the_run_under_the_cursor(box: Paths, size: tuple[int, int]) -> None:
    speed_run(box, "slow", tg=30.0)
    speed_run(box, "fast", tg=60.0, doubts=[Doubt("throttling", "power cap")])
    async with benching(box, size=size) as (pilot, _):
        await shows(pilot, "2 runs", "fast", "slow", "Speed over HTTP")
        assert title_of(pilot).endswith("speed-fast")
        await pilot.press("j")
        await until(pilot, lambda: title_of(pilot).endswith("speed-slow"))
        await pilot.press("enter")
        await until(pilot, lambda: screen_of(pilot).pane.has_focus and screen_of(pilot).pane.drawn)
        assert max(len("".join(t for t, _ in row)) for row in screen_of(pilot).pane.drawn) <= size[0]
        await pilot.press("escape")
        await until(pilot, lambda: screen_of(pilot).rows.has_focus)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, DashboardScreen))


async def test_text_of_a_report_is_selected_with_the_mouse_and_copied(box: Paths) -> None:
    speed_run(box, "fast", tg=60.0)
    async with benching(box, size=(200, 50)) as (pilot, _):
        await shows(pilot, "Speed over HTTP")
        await settled(pilot)
        pane = screen_of(pilot).pane
        rows = ["".join(part for part, _ in row).rstrip() for row in pane.drawn]
        await drag(pilot, "over HTTP", "median")
        await pilot.press("ctrl+c")
        first, last = (next(i for i, row in enumerate(rows) if part in row) for part in ("over HTTP", "median"))
        whole = "\n".join(rows[first : last + 1])
        assert pilot.app.clipboard == whole[whole.index("over HTTP") : whole.index("median") + len("median")]
        await pilot.click(offset=(pane.region.x + 2, pane.region.bottom - 2))
        assert not screen_of(pilot).get_selected_text()
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.clipboard == "\n".join(rows))
        await shows(pilot, "Copied the report.")


async def test_two_marked_runs_are_compared_and_exported(box: Paths) -> None:
    slow, fast = speed_run(box, "slow", tg=30.0), speed_run(box, "fast", tg=60.0)
    async with benching(box) as (pilot, services):
        await shows(pilot, "2 runs")
        await pilot.press("v")
        await shows(pilot, "Mark two runs")
        await pilot.press("space", "j", "space", "v")
        await shows(pilot, "Comparison", "started the same flags", "+100.0 %")
        await act(pilot, "bench_export")
        await shows(pilot, "Without paths")
        await pilot.press("s")
        await until(pilot, lambda: services.bench.asked == [("export", "compare", fast.id, slow.id, "svg")])
        await pilot.press("escape")
        await until(pilot, lambda: title_of(pilot).endswith("speed-slow"))


async def test_p_writes_the_card_and_the_block_of_a_run_and_copies_the_block(
    box: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    speed_run(box, "annas-box")
    async with benching(box) as (pilot, _):
        await until(pilot, lambda: screen_of(pilot).selected_run, "the run")
        await act(pilot, "bench_post")
        await shows(pilot, "Copied the Markdown block")
        folder = tmp_path / "gpubox-posts"
        card, block = (folder / f"2026-11-21-speed-Qwen3.6-35B-A3B-Q4_K_M.{end}" for end in ("svg", "md"))
        assert card.read_text().startswith("<svg")
        assert pilot.app.clipboard == block.read_text()
        assert "annas-box" not in card.read_text() + block.read_text()

        card.unlink()
        block.unlink()
        folder.rmdir()
        folder.write_text("in the way")
        await act(pilot, "bench_post")
        await shows(pilot, "exists")


async def test_runs_that_cannot_be_compared_show_why(box: Paths) -> None:
    sweep_run(box)
    speed_run(box)
    async with benching(box) as (pilot, _):
        await shows(pilot, "2 runs")
        await pilot.press("space", "j", "space", "v")
        await shows(pilot, "is of the kind sweep")
        await until(pilot, lambda: screen_of(pilot).rows.has_focus and "⏎ report" in text(pilot), "the list")


async def test_the_leaderboard(box: Paths) -> None:
    speed_run(box, "slow", tg=30.0)
    speed_run(box, "fast", tg=60.0)
    async with benching(box) as (pilot, _):
        await shows(pilot, "2 runs")
        await pilot.press("l")
        await shows(pilot, "Leaderboard", "profile")
        board = [line for line in text(pilot).splitlines() if "1  fast" in line or "2  slow" in line]
        assert len(board) == 2
        await act(pilot, "bench_remove")
        await pilot.press("r")  # no run is selected
        await settled(pilot)
        assert "Delete" not in text(pilot)
        bar = text(pilot).splitlines()[-1]
        assert "esc back" in bar and not [word for word in ("report", "delete", "resume") if word in bar]
        await pilot.press("escape")
        await until(pilot, lambda: "⏎ report" in text(pilot).splitlines()[-1])
        assert "esc back" in text(pilot).splitlines()[-1]


async def test_a_run_started_elsewhere_is_followed_and_marked_on_the_dashboard(box: Paths) -> None:
    run = speed_run(box, share=0.5, state="interrupted")
    async with benching(box, open_=False) as (pilot, services):
        services.bench.working = run
        done, of = len(run.results()), len(run.items())
        await shows(pilot, f"bench speed {done}/{of}")
        await pilot.press("3")
        now = item_words(run.items()[done].id)
        await shows(pilot, ", active", f"{done} of {of}", "left", "so far", "Last measurements", now)
        with run.owned():
            run.add_result(next(iter(run.results().values())).__class__(run.items()[done].id, {"tg": 1.0}, 4.0))
        await shows(pilot, f"{done + 1} of {of}")
        await act(pilot, "bench_remove")
        await shows(pilot, "Stop the run?")
        await pilot.press("y")
        await until(pilot, lambda: services.bench.asked == [("stop", run.id)])
        await until(pilot, lambda: "bench speed" not in text(pilot))


async def test_b_shows_the_outline_before_it_measures_the_running_profile(box: Paths) -> None:
    async with benching(box, open_=False) as (pilot, services):
        await pilot.press("b")
        await shows(
            pilot,
            "Measure qwen36-mtp-16gb?",
            "45 measurements",
            "runs again",
            "gpubox bench speed qwen36-mtp-16gb --preset quick",
        )
        assert "answered" not in text(pilot)
        await pilot.press("n")
        await until(pilot, lambda: screen_of(pilot).is_current)
        assert services.bench.asked == []
        services.bench.answered = ("qwen36-mtp-16gb: slot 0 answers",)
        await pilot.press("1")
        await until(pilot, lambda: isinstance(pilot.app.screen, DashboardScreen))
        await pilot.press("b")
        await shows(pilot, "The server is answering a request", "cut off")
        await pilot.press("y")
        await until(pilot, lambda: services.bench.asked == [("speed", "qwen36-mtp-16gb", "--preset", "quick", "--now")])
        await shows(pilot, "being started")
        await pilot.press("n")
        await shows(pilot, "only one can run at a time")


async def test_after_the_first_sentence_the_longer_plans_are_rows_with_their_minutes(box: Paths) -> None:
    async with benching(box, open_=False) as (pilot, services):
        await pilot.press("b")
        await shows(pilot, "Measure qwen36-mtp-16gb?")
        await pilot.press("y")
        await until(pilot, lambda: services.bench.asked)
        speed_run(box, "qwen36-mtp-16gb")
        services.bench.ended.set()
        await shows(pilot, "writes 5", "lengths, about 4 minutes", "all depths, about", "that is enough")
        await pilot.press("down", "enter")
        await shows(pilot, "Plan a run", "--preset lengths")
        assert len(services.bench.asked) == 1


async def test_b_estimates_the_time_from_the_speed_of_the_running_server(box: Paths) -> None:
    async with benching(box, open_=False) as (pilot, services):
        planned = services.bench.planned
        services.bench.planned = replace(planned, seconds=None, tokens=3270.0)
        await pilot.press("b")
        await shows(pilot, "It takes about a minute at 68.0 tok/s")


async def test_the_form_shows_the_equivalent_command(box: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with benching(box) as (pilot, services):
        await pilot.press("n")
        await shows(pilot, "gpubox bench speed qwen36-mtp-16gb")
        await pilot.press("down", "down")
        # A key goes to the widget that has the focus when it is handled: wait for the last arrow key.
        await until(pilot, lambda: getattr(pilot.app.focused, "name", "") == "preset")
        await pilot.press("right")
        await shows(pilot, "gpubox bench speed qwen36-mtp-16gb --preset quick")
        await pilot.press("up", "up")
        await until(pilot, lambda: getattr(pilot.app.focused, "name", "") == "kind")
        await shows(pilot, "is started")
        monkeypatch.setattr(plan_form, "OUTLINE_DELAY", 60.0)
        await pilot.press("right")
        await shows(pilot, "gpubox bench ab", "the run is being planned …")
        assert "is started" not in text(pilot), "the plan of the other kind"
        await settled(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: screen_of(pilot).is_current)
        assert services.bench.asked == []


async def test_a_run_is_resumed_and_removed(box: Paths) -> None:
    run = speed_run(box, share=0.5, state="interrupted")
    async with benching(box) as (pilot, services):
        await shows(pilot, "1 run")
        await pilot.press("r")
        await until(pilot, lambda: services.bench.asked == [("resume", run.id)])
        services.bench.ended.set()
        await until(pilot, lambda: not screen_of(pilot).starting)
        await act(pilot, "bench_remove")
        await shows(pilot, "Delete")
        await pilot.press("y")
        await shows(pilot, "0 runs", "No runs yet")


async def begin_speed(pilot: Pilot[bool]) -> None:
    """Starts a run from the form."""
    await pilot.press("n")
    await shows(pilot, "Plan a run", "45 measurements")
    await pilot.press("enter")
    await shows(pilot, "being started")


async def test_the_cursor_goes_to_the_run_that_was_started(box: Paths) -> None:
    speed_run(box, "older", tg=30.0)
    async with benching(box) as (pilot, services):
        screen, bench = screen_of(pilot), services.bench
        await shows(pilot, "1 run", "Speed over HTTP")
        await begin_speed(pilot)
        await act(pilot, "bench_remove")
        await shows(pilot, "The run is being started; it")  # the pane does not show the run under the cursor
        run = speed_run(box, "newer", share=0.5)
        bench.working = run
        await until(pilot, lambda: screen.rows.value and screen.rows.value.id == run.id, "the cursor on it")
        await shows(pilot, f"{run.id}, active")
        await pilot.press("j")
        await until(pilot, lambda: title_of(pilot).endswith("speed-older"))
        await pilot.press("o")
        await until(pilot, lambda: screen.rows.value and screen.rows.value.id == run.id, "the cursor on it again")
        bench.working = None
        bench.ended.set()
        await until(pilot, lambda: screen.pane.shown == run.id, "its report")
        await shows(pilot, "2 runs", "Speed over HTTP")
        assert screen.rows.value
        assert screen.rows.value.id == run.id


async def test_the_end_of_a_run_does_not_replace_another_report(box: Paths) -> None:
    older = speed_run(box, "older", tg=30.0)
    async with benching(box) as (pilot, services):
        screen, bench = screen_of(pilot), services.bench
        await shows(pilot, "1 run")
        await begin_speed(pilot)
        bench.working = speed_run(box, "newer", share=0.5)
        await shows(pilot, ", active", "Last measurements")
        await pilot.press("j")
        await until(pilot, lambda: screen.pane.shown == older.id)
        bench.working = None
        bench.ended.set()
        await until(pilot, lambda: screen.live is None and not screen.starting, "the end")
        await settled(pilot)
        assert (screen.pane.shown, screen.rows.value and screen.rows.value.id) == (older.id, older.id)


async def test_a_run_that_ends_before_it_was_seen_active_is_shown(box: Paths) -> None:
    speed_run(box, "older", tg=30.0)
    async with benching(box) as (pilot, services):
        screen = screen_of(pilot)
        await shows(pilot, "1 run")
        await begin_speed(pilot)
        run = speed_run(box, "newer")
        services.bench.ended.set()
        await until(pilot, lambda: screen.pane.shown == run.id, "its report")
        assert screen.rows.value
        assert screen.rows.value.id == run.id


async def test_a_run_that_never_started_says_why_and_leaves_the_report_in_place(box: Paths) -> None:
    older = speed_run(box, "older", tg=30.0)
    async with benching(box) as (pilot, services):
        await shows(pilot, "1 run")
        await begin_speed(pilot)
        services.bench.problem = "No sandbox confines here."
        services.bench.ended.set()
        await shows(pilot, "No sandbox confines here.")
        await until(pilot, lambda: screen_of(pilot).pane.shown == older.id, "the report")
        assert services.bench.asked == [("speed", "qwen36-mtp-16gb")]


async def test_the_best_cell_of_a_sweep_is_saved(box: Paths) -> None:
    run = sweep_run(box)
    speed_run(box, "newer")
    async with benching(box, size=(200, 50)) as (pilot, services):
        await shows(pilot, "2 runs", "save as profile", "qwen36-mtp-16gb n-cpu-moe ")
        await pilot.press("j")
        await until(pilot, lambda: "save as profile" not in text(pilot))
        await pilot.press("w")
        await shows(pilot, "Only a finished sweep or tune")
        await pilot.press("k")
        await shows(pilot, "save as profile")
        await pilot.press("w")
        await shows(pilot, "Best: n-cpu-moe=4", "qwen36-mtp-16gb-n-cpu-moe-4")
        await pilot.press(*"mine", "enter")
        await shows(pilot, "There is a profile 'mine' already")
        await pilot.press(*"best", "enter")
        await until(pilot, lambda: services.bench.asked == [("keep", run.id, "best")])
        await shows(pilot, "Saved as the profile best")


async def test_the_server_before_an_interrupted_run_is_restored(box: Paths) -> None:
    run = speed_run(box, share=0.5, state="interrupted")
    async with benching(box, size=(200, 50)) as (pilot, services):
        await shows(pilot, "1 run", "resume")
        assert "bench_restore" in screen_of(pilot).keys.hidden_actions
        await pilot.press("u")
        await shows(pilot, "No interrupted run has left")
        run.save(replace(run.info, restore_pending=True))  # the list has not read this yet
        await pilot.press("u")
        await shows(pilot, "Restore what ran before?", run.id)
        await pilot.press("y")
        await shows(pilot, "qwen36-256k runs again.")
        assert services.bench.asked == [("restore",)]
        await until(pilot, lambda: "bench_restore" in screen_of(pilot).keys.hidden_actions)


async def test_after_a_run_is_deleted_the_cursor_is_on_the_next(box: Paths) -> None:
    for name in ("oldest", "middle", "newest"):
        speed_run(box, name)
    async with benching(box) as (pilot, _):
        await shows(pilot, "3 runs")
        await pilot.press("j")
        await act(pilot, "bench_remove")
        await shows(pilot, "Delete")
        await pilot.press("y")
        await shows(pilot, "2 runs")
        await until(pilot, lambda: title_of(pilot).endswith("speed-oldest"))


async def test_a_run_that_was_deleted_meanwhile_leaves_the_list_without_an_error(box: Paths) -> None:
    for name in ("oldest", "middle", "newest"):
        speed_run(box, name)
    async with benching(box) as (pilot, services):
        await shows(pilot, "3 runs")
        await services.bench.delete(screen_of(pilot).summaries[1].id)
        await pilot.press("j")
        await shows(pilot, "2 runs")
        await until(pilot, lambda: title_of(pilot).endswith("speed-oldest"))
        assert "There is no run" not in text(pilot)


async def test_the_key_bar_shows_only_actions_that_do_something(box: Paths) -> None:
    async with benching(box, size=(200, 50)) as (pilot, services):
        await shows(pilot, "No runs yet", "new", "measure")
        bar = text(pilot).splitlines()[-1]
        assert not [word for word in ("report", "export", "delete", "mark", "compare", "resume") if word in bar]
        run = speed_run(box, share=0.5)
        services.bench.working = run
        await until(pilot, lambda: "x menu: stop" in text(pilot).splitlines()[-1], "what stops it")
        assert not [word for word in ("new", "measure", "resume") if word in text(pilot).splitlines()[-1]]
        services.bench.working = None
        await until(pilot, lambda: "x menu" in text(pilot).splitlines()[-1], "what deletes it")


@pytest.mark.parametrize(
    ("kind", "chosen", "expected"),
    [
        ("speed", {"profile": "a"}, "gpubox bench speed a"),
        ("speed", {"profile": "a", "depths": "0,8192"}, "gpubox bench speed a --depths 0,8192"),
        ("ab", {"profile": "a", "second": "b"}, "gpubox bench ab a b"),
        ("ab", {"profile": "a", "set": "n-cpu-moe=20 mmap=false"},
         "gpubox bench ab a --set n-cpu-moe=20 --set mmap=false"),
        ("sweep", {"profile": "a", "over": "ctx-size=8192,16384 n-cpu-moe=16..28:2"},
         "gpubox bench sweep a --over ctx-size=8192,16384 --over n-cpu-moe=16..28:2"),
        ("humaneval", {"profile": "a", "mode": "agentic", "limit": "20"},
         "gpubox bench humaneval a --mode agentic --limit 20"),
        ("quality", {"profile": "a", "second": "b", "chunks": "4"}, "gpubox bench quality a b --chunks 4"),
        ("quality", {"profile": "a", "set": "cache-type-k=q8_0"}, "gpubox bench quality a --set cache-type-k=q8_0"),
        ("suite", {"profile": "a", "repeats": "2"}, "gpubox bench suite a --repeats 2"),
        ("suite", {"profile": "a", "max-tokens": "512"}, "gpubox bench suite a --max-tokens 512"),
        ("ab", {"profile": "a", "vary": "mmap", "prompts": "2", "max-tokens": "32"},
         "gpubox bench ab a --vary mmap --prompts 2 --max-tokens 32"),
    ],
)  # fmt: skip
def test_the_arguments_of_a_form(kind: str, chosen: dict[str, str], expected: str) -> None:
    assert bench_command_line(bench_arguments(kind, chosen)) == expected
    if all_kinds()[kind].takes_url:
        assert "--url http://x" in bench_command_line(bench_arguments(kind, chosen, "http://x"))


def test_with_a_url_only_kinds_that_take_one_are_offered() -> None:
    assert set(plannable_kinds(url=True)) == {"speed", "soak", "humaneval", "suite"}


def test_a_form_fits_the_narrowest_terminal() -> None:
    for row in (row for kind in all_kinds() for row in plan_fields(kind)):
        assert len(row.label) <= 11, row.label
        assert len(row.about) <= 28, row.about
        assert all(len(f"‹ {word} ›") <= 33 for _, word in row.choices), row.label
    assert all(len(about) <= 60 for about in (kind.summary for kind in all_kinds().values()))
