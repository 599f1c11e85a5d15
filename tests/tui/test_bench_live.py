"""The real service of the Bench screen: a run in a process of its own, followed from its folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpubox.bench.report.run_summaries import RunProgress
from gpubox.bench.run_store import find_run
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.tui.bench.bench_runs import BenchRuns
from tests.bench_server import BenchServer
from tests.tui.fake_bench import sweep_run

SMALL = ("--prompts", "short", "--depths", "0", "--max-tokens", "8")


@asynccontextmanager
async def begun(bench: BenchRuns, *words: str) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(bench.run(words, now=False))
    try:
        yield task
    finally:
        if not task.done():
            with contextlib.suppress(GpuboxError):  # it may have just ended
                if live := await bench.active():
                    await bench.stop(live)
            with contextlib.suppress(GpuboxError):
                await task


async def at_work(bench: BenchRuns, task: asyncio.Task[None], done: int) -> RunProgress:
    async with asyncio.timeout(60):
        while True:
            live = await bench.active()
            if live and live.done >= done:
                return live
            assert not task.done(), task.exception()
            await asyncio.sleep(0.02)


async def test_a_run_is_planned_followed_stopped_and_resumed(own_home: Path) -> None:
    bench = BenchRuns(Paths.default(), Config())
    with BenchServer() as server:
        words = ("speed", "--url", server.url, *SMALL, "--repeats", "2000")
        planned = await bench.outline(words)
        assert (planned.items, planned.starts, planned.restored_profile) == (4002, (), None)
        assert planned.tokens and not planned.always_restarts

        async with begun(bench, *words) as task:
            live = await at_work(bench, task, 3)
            assert (live.info.state, live.value_name, live.headline) == ("running", "tg, tok/s", "writes 50.0 tok/s")
            assert live.seconds_left is not None
            assert live.now
            await bench.stop(live)
            with pytest.raises(GpuboxError, match="r resumes it"):
                await task
        head = (await bench.summaries())[0]
        assert (head.state, head.id) == ("interrupted", live.info.id)
        assert head.done >= live.done
        assert await bench.active() is None

        async with begun(bench, "resume", head.id) as task:
            live = await at_work(bench, task, head.done + 2)
            await bench.stop(live)
            with pytest.raises(GpuboxError, match="was stopped"):  # a second signal would cut the clean-up short
                await task
        assert len(find_run(bench.paths, head.id).results()) >= head.done + 2


async def test_a_run_that_cannot_start_reports_why(own_home: Path) -> None:
    bench = BenchRuns(Paths.default(), Config())
    with pytest.raises(GpuboxError, match="no-such-profile"):
        await bench.run(("speed", "no-such-profile"), now=False)


async def test_the_best_cell_is_saved_as_a_profile(own_home: Path) -> None:
    paths = Paths.default()
    bench, run = BenchRuns(paths, Config()), sweep_run(paths)
    assert await bench.best_cell(run.id) == ("n-cpu-moe=4", "qwen36-mtp-16gb-n-cpu-moe-4")
    await bench.save_as_profile(run.id, "mine")
    assert load_catalog(paths).get("mine").flags["n-cpu-moe"] == 4
    with pytest.raises(UsageError, match="already"):
        await bench.save_as_profile(run.id, "mine")
    with pytest.raises(GpuboxError, match="No interrupted run"):
        await bench.restore()
