"""A trial on the screen: its steps, one key to keep or revert, and leaving in between."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.profiles.edit import ProfileEdit, save_edit
from gpubox.profiles.loader import load_catalog
from gpubox.profiles.profile import Profile
from gpubox.server.state import Launch, TrialRecord
from gpubox.server.supervisor import Supervisor
from gpubox.server.trial import Trial
from gpubox.tui import app as app_module
from gpubox.tui.app import GpuboxApp
from gpubox.tui.workshop import editor
from gpubox.tui.workshop.editor import EditorScreen
from gpubox.tui.workshop.profile_files import WorkshopService
from gpubox.tui.workshop.trial import TrialScreen
from tests.tui.conftest import SIZE, act, app_of, highlight, on_dashboard, shows, until
from tests.tui.fake import BUSY, READY, FakeServices, switch_events
from tests.tui.fake_workshop import WorkshopServices, write_mine

VERDICT = "The change is faster: tg 70.2 before, 74.1 after."


class FakeTrials(WorkshopService):
    """Real files; nothing is measured and no server is switched."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.did: list[str] = []
        self.runs = READY.profile
        """The profile that a trial replaces; ``None``: nothing runs."""
        self.held: set[str] = set()
        """The steps that last until ``release``."""
        self.release = threading.Event()
        self.failing: dict[str, str] = {}
        """Step -> why it fails."""

    def _step(self, name: str, stop: threading.Event | None = None) -> None:
        self.did.append(name)
        while name in self.held and not self.release.wait(0.01):
            if stop and stop.is_set():
                raise GpuboxError("stopped")
        if name in self.failing:
            raise GpuboxError(self.failing[name])

    def answering(self, profile: Profile) -> str | None:
        return self.runs

    def measure(self, profile: Profile, tokens: int, stop: threading.Event) -> tuple[Any, int, str]:
        name = "after" if "switch" in self.did else "before"
        self._step(name, stop)
        return name, 64, "tg 70.2 tok/s" if name == "before" else "tg 74.1 tok/s"

    def compare_sides(self, edit: ProfileEdit, before: Any, after: Any) -> str:
        return VERDICT

    def begin_trial(
        self, edit: ProfileEdit, stop_now: bool, allow_exposed: bool, emit: Callable[[Any], None], *,
        anyway: bool = False,
    ) -> Trial:  # fmt: skip
        for event in switch_events("mine")[:4]:
            emit(event)
        self._step("switch")
        previous = Launch(self.runs, ("llama-server",), "127.0.0.1", 8081) if self.runs else None
        record = TrialRecord("mine", "main", "", str(edit.path), edit.after, previous, own_identity())
        return Trial(edit, record, Supervisor(self.paths, Config()), 0)

    def keep(self, trial: Trial) -> Path:
        self._step("keep")
        return save_edit(trial.edit, self.paths)

    def revert(self, trial: Trial) -> None:
        self._step("revert")


class TrialServices(WorkshopServices):
    """Profiles are files; trials are played."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trials = FakeTrials(self.paths, lambda: self.config, self.run_operation)

    def workshop_service(self) -> WorkshopService:
        return self.trials


@pytest.fixture
def services(paths: Paths, fake_engine: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> TrialServices:
    """The profile ``mine`` on the fake engine."""
    monkeypatch.setattr(editor, "ASSESS_DELAY", 0.0)
    monkeypatch.setattr(editor, "DRY_RUN_DELAY", 1000.0)  # the fake engine cannot run dry
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.01)
    return TrialServices(*write_mine(paths, fake_engine, tiny_gguf))


async def press_try(pilot: Pilot[bool]) -> None:
    """From the dashboard: n-cpu-moe one less, and T."""
    await highlight(pilot, "mine")
    await pilot.press("e")
    await until(pilot, lambda: isinstance(pilot.app.screen, EditorScreen))
    await pilot.press("j", "minus", "t")


@asynccontextmanager
async def trying(services: TrialServices) -> AsyncIterator[Pilot[bool]]:
    """A trial that has just begun."""
    async with on_dashboard(services, notifications=True) as pilot:
        await press_try(pilot)
        await until(pilot, lambda: isinstance(pilot.app.screen, TrialScreen), "the trial")
        yield pilot


def moe(services: TrialServices) -> object:
    return load_catalog(services.paths).get("mine").flags["n-cpu-moe"]


async def test_change_try_and_keep_take_five_keys(services: TrialServices) -> None:
    async with trying(services) as pilot:  # e j - T
        app = app_of(pilot)
        await shows(
            pilot, "trying n-cpu-moe 21 instead of 22", "tg 70.2 tok/s", "tg 74.1 tok/s", VERDICT, "Keep the change"
        )
        assert services.trials.did == ["before", "switch", "after"] and moe(services) == 22
        await act(pilot, "trial_keep")
        await shows(pilot, "mine is written")
        assert moe(services) == 21 and app.workshop.trial and not app.workshop.trial.under_way
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)


async def test_one_key_reverts_and_the_change_can_be_tried_again(services: TrialServices) -> None:
    async with trying(services) as pilot:
        app = app_of(pilot)
        await shows(pilot, VERDICT)
        await act(pilot, "trial_revert")
        await shows(pilot, "The change is reverted: qwen36-mtp-16gb runs as before.")
        assert moe(services) == 22 and services.trials.did[-1] == "revert"
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)
        await pilot.press("t")
        await shows(pilot, "edit mine", "n-cpu-moe 21 instead of 22")


async def test_a_trial_goes_on_behind_the_dashboard(services: TrialServices) -> None:
    services.trials.held = {"after"}
    async with trying(services) as pilot:
        app = app_of(pilot)
        await until(pilot, lambda: "after" in services.trials.did)
        await act(pilot, "trial_keep")
        await shows(pilot, "can be kept after it is measured")
        await pilot.press("escape")
        await shows(pilot, "◌ trying mine", "trying n-cpu-moe 21 instead of 22: measure the change")
        app.dashboard.profiles.rows.action_open()
        await shows(pilot, "A trial of mine is under way: t shows it.")
        services.trials.release.set()
        await shows(pilot, "t: keep or revert it")
        await pilot.press("t")
        await shows(pilot, "Keep the change")
        await act(pilot, "trial_keep")
        await shows(pilot, "mine is written")
    assert not services.asked


async def test_a_measurement_can_be_skipped(services: TrialServices) -> None:
    services.trials.held = {"before", "after"}
    async with trying(services) as pilot:
        await until(pilot, lambda: services.trials.did == ["before"])
        await act(pilot, "trial_skip")
        await until(pilot, lambda: services.trials.did == ["before", "switch", "after"])
        await act(pilot, "trial_skip")
        await shows(pilot, "not measured: stopped", "Not compared.", "Keep the change")
        await act(pilot, "trial_revert")
        await shows(pilot, "The change is reverted")


async def test_reverting_before_the_switch_touches_nothing(services: TrialServices) -> None:
    services.trials.held = {"before"}
    async with trying(services) as pilot:
        await until(pilot, lambda: services.trials.did == ["before"])
        await act(pilot, "trial_revert")
        await shows(pilot, "Nothing was switched, and nothing is written.")
    assert services.trials.did == ["before"]


async def test_reverting_during_the_switch(services: TrialServices) -> None:
    services.trials.held = {"switch"}
    async with trying(services) as pilot:
        await shows(pilot, "stop ✓ 400 ms")
        await act(pilot, "trial_revert")
        services.trials.release.set()
        await shows(pilot, "The change is reverted")
    assert services.trials.did == ["before", "switch", "revert"], "what was started is not measured"


async def test_a_change_that_does_not_start(services: TrialServices) -> None:
    services.trials.failing = {"switch": "out of VRAM: KV cache on CUDA0. qwen36-mtp-16gb is restored."}
    async with trying(services) as pilot:
        app = app_of(pilot)
        await shows(pilot, "✗ out of VRAM", "The change is not written.")
        assert app.workshop.trial and not app.workshop.trial.under_way and moe(services) == 22
        await pilot.press("escape", "t")
        await shows(pilot, "edit mine", "n-cpu-moe 21 instead of 22")


async def test_a_file_that_changed_during_the_trial_is_not_overwritten(services: TrialServices) -> None:
    async with trying(services) as pilot:
        await shows(pilot, VERDICT)
        path = services.paths.profiles / "mine.toml"
        path.write_text(path.read_text().replace("2048", "4096"))
        await act(pilot, "trial_keep")
        await shows(pilot, "✗ ", "Revert the change")
        trial = app_of(pilot).workshop.trial
        assert trial and "was changed by another program meanwhile" in trial.progress.problem
        await act(pilot, "trial_revert")
        await shows(pilot, "The change is reverted")
    assert moe(services) == 22


async def test_a_failed_measurement_leaves_the_decision_to_the_owner(services: TrialServices) -> None:
    services.trials.failing = {"after": "No server answers that could be measured."}
    async with trying(services) as pilot:
        await shows(pilot, "not measured: No server answers", "Not compared.", "Keep the change", "Revert the change")
        await act(pilot, "trial_revert")
        await shows(pilot, "The change is reverted")


async def test_without_a_server_nothing_is_measured_before(services: TrialServices) -> None:
    services.trials.runs = None
    async with trying(services) as pilot:
        await shows(pilot, "nothing ran", "Not compared.")
        assert services.trials.did == ["switch", "after"]
        await act(pilot, "trial_revert")
        await shows(pilot, "The change is reverted: nothing runs, as before.")


async def test_a_busy_server_is_asked_about_first(services: TrialServices) -> None:
    services.status = BUSY
    async with on_dashboard(services, notifications=True) as pilot:
        await press_try(pilot)
        await shows(pilot, "try mine now")
        await pilot.press("c")
        await shows(pilot, "edit mine", "n-cpu-moe 21 instead of 22")
    assert not services.trials.did


@pytest.mark.parametrize(("key", "left"), [("n", False), ("r", True), ("w", True)])
async def test_quitting_asks(services: TrialServices, key: str, left: bool) -> None:
    async with trying(services) as pilot:
        app = app_of(pilot)
        await shows(pilot, VERDICT)
        await pilot.press("q")
        await shows(pilot, "A trial of mine is under way", "revert it, then quit", "keep it, then quit")
        assert not app._exit
        await pilot.press(key)
        if left:
            await until(pilot, lambda: app._exit)
        else:
            await shows(pilot, "Keep the change")
    assert services.trials.did[3:] == {"n": [], "r": ["revert"], "w": ["keep"]}[key]
    assert moe(services) == (21 if key == "w" else 22)


async def test_the_trial_of_another_gpubox_is_shown(services: TrialServices) -> None:
    services.tried = "theirs"
    async with on_dashboard(services, notifications=True) as pilot:
        await shows(pilot, "◌ trying theirs")
        await pilot.press("t")
        await shows(pilot, "theirs is being tried in another gpubox")
        services.tried = None
        await until(pilot, lambda: not app_of(pilot).dashboard.header.trial)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(pilot.app.screen, EditorScreen))


async def test_a_trial_that_was_left_behind_is_ended_at_the_start(fake: FakeServices) -> None:
    fake.left_behind = "mine"
    async with GpuboxApp(fake).run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "The trial of mine was left behind")
