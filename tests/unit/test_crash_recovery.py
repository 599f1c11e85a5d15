"""After a crash: the post-mortem, and when a server is restarted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpubox.clock import utc_now
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server.instance import InstanceView, observe
from gpubox.server.state import InstanceState, Launch, RunningServer, load_state, recent_restarts, save_state
from gpubox.server.watcher_recovery import MAX_RESTARTS, restart_refusal, write_post_mortem

LAUNCH = Launch("coder", ("llama-server", "--model", "/m.gguf", "--port", "1"), "127.0.0.1", 1, restart=True)
DEAD = RunningServer(LAUNCH, "f00dcafe99", "2026-01-01T00:00:00.000Z", ProcessIdentity(2**22 + 9, 1, ""), "t")
NO_GPU = DriverReading((), problem="no NVIDIA driver")
LOG = "0.01.000.000 E srv: something\nCUDA error: an illegal memory access was encountered\n[/bold] last line\n"


@pytest.fixture
def view(paths: Paths) -> InstanceView:
    """The instance of a server that died."""
    save_state(paths.instance_state("main"), InstanceState(DEAD))
    paths.logs.mkdir(parents=True)
    paths.instance_log("main").write_text(LOG)
    return observe(paths, "main")


def test_a_death_is_written_down_once_with_cause_command_and_last_lines(paths: Paths, view: InstanceView) -> None:
    path = write_post_mortem(paths, view, NO_GPU, "its last minute: 70 tok/s")

    assert path is not None
    text = path.read_text()
    for words in ("coder died", "illegal memory access", "--model /m.gguf", "70 tok/s", "[/bold] last line"):
        assert words in text
    path.write_text("kept")
    assert write_post_mortem(paths, view, NO_GPU) == path
    assert path.read_text() == "kept"


def test_a_death_is_written_down_with_the_cards_in_words(paths: Paths, view: InstanceView) -> None:
    card = Gpu(0, name="RTX", vram_total_bytes=16 << 30, vram_used_bytes=3 << 29)
    path = write_post_mortem(paths, view, DriverReading((card, Gpu(1, lost=True))))

    assert path is not None
    assert "GPU 0 RTX: 1.5 GiB of 16.0 GiB in use\nGPU 1: LOST\n" in path.read_text()


def test_nothing_is_written_where_nothing_died(paths: Paths) -> None:
    assert write_post_mortem(paths, observe(paths, "main"), NO_GPU) is None
    assert not paths.crashes.exists()


def test_it_is_started_again_at_most_three_times_in_fifteen_minutes(paths: Paths, view: InstanceView) -> None:
    for count in range(MAX_RESTARTS):
        save_state(paths.instance_state("main"), InstanceState(DEAD, restarts=(utc_now(),) * count))
        assert restart_refusal(paths, observe(paths, "main"), NO_GPU) is None
    save_state(paths.instance_state("main"), InstanceState(DEAD, restarts=(utc_now(),) * MAX_RESTARTS))

    assert "died 3 times" in (restart_refusal(paths, observe(paths, "main"), NO_GPU) or "")
    later = datetime.now(UTC) + timedelta(minutes=16)
    assert restart_refusal(paths, observe(paths, "main"), NO_GPU, later) is None
    assert recent_restarts(load_state(paths.instance_state("main")), later) == ()


def test_it_is_never_started_into_a_lost_gpu(paths: Paths, view: InstanceView) -> None:
    lost = DriverReading((Gpu(0, lost=True),))

    assert "lost" in (restart_refusal(paths, view, lost) or "")


def test_a_profile_that_does_not_ask_for_it_stays_down(paths: Paths) -> None:
    calm = replace(DEAD, launch=replace(LAUNCH, restart=False))
    save_state(paths.instance_state("main"), InstanceState(calm))

    assert restart_refusal(paths, observe(paths, "main"), NO_GPU) == ""


def test_one_that_was_told_to_stop_and_one_that_lost_its_key_stay_down(paths: Paths, view: InstanceView) -> None:
    paths.instance_log("main").write_text("0.01.000.000 I srv  operator(): cleaning up before exit...\n")
    assert "stopped from outside" in (restart_refusal(paths, view, NO_GPU) or "")

    paths.instance_log("main").write_text(LOG)
    for host, refused in (("0.0.0.0", True), ("127.0.0.1", False)):
        open_to = replace(DEAD, has_api_key=True, launch=replace(LAUNCH, host=host))
        save_state(paths.instance_state("main"), InstanceState(open_to))
        reason = restart_refusal(paths, observe(paths, "main"), NO_GPU)
        assert ("API key" in (reason or "")) == refused
