"""Rules that hold for every Snapshot, checked over many states of a server."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import pytest

from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.server.status import ServerStatus
from gpubox.telemetry.device_memory import reconcile_devices
from gpubox.telemetry.offload import ProcessRates, offload
from gpubox.telemetry.snapshot import Offload, Request, SlotReading, Snapshot, Throughput, Totals
from gpubox.telemetry.speeds import throughput
from gpubox.views.figures import FIGURES
from gpubox.views.unknown_reasons import unknown_reasons
from tests.unit.invariants import broken
from tests.unit.test_telemetry_device_memory import HOST_NOW, PROCESS, any_card, any_split
from tests.unit.test_telemetry_speeds import generated, newest_first

STATES = ("down", "loading", "stopping", "sleeping", "stuck", "ready", "idle", "prefill", "answering")


def any_snapshot(rng: random.Random) -> Snapshot:
    """A server in any state, on any cards, with anything hidden."""
    state = rng.choice(STATES)
    cards = tuple(any_card(rng, index) for index in range(rng.randrange(3)))
    split = any_split(rng, len(cards))
    host, process = rng.choice([None, HOST_NOW]), rng.choice([None, PROCESS])
    slots = tuple(any_slot(rng, index) for index in range(rng.choice([0, 0, 1, 4]))) if state != "down" else ()
    done = [generated(60 + rng.random() * 60, 1 + rng.random(), rng.randrange(2, 99)) for _ in range(rng.randrange(4))]
    done = [replace(r, number=len(done) - at) for at, r in enumerate(newest_first(done))]
    driver = DriverReading(cards, problem="" if cards else "no NVIDIA driver")
    return Snapshot(
        at=1.0, time="2026-01-01T00:00:00.000Z",
        server=ServerStatus("main", "ready" if state != "down" else "stopped", rng.choice(["a", None]), 42),
        driver=driver, host=host, process=process,
        memory=reconcile_devices(split, cards, host, process, 42, {}),
        offload=offload(None, None, ProcessRates(rng.choice([None, 1.0])), driver, state, None),
        throughput=throughput(state, slots, done),
        slots=slots, requests=tuple(done),
        totals=Totals(requests=rng.choice([None, len(done)]), prompt_tokens=rng.choice([None, 5])),
    )  # fmt: skip


def any_slot(rng: random.Random, index: int) -> SlotReading:
    state = rng.choice(["idle", "prefill", "answering"])
    tg = rng.choice([None, 20.0]) if state == "answering" else None
    return SlotReading(
        index, state, rng.choice([None, 3]), tg_tokens_per_second=tg, seconds=rng.choice([None, 0.2, 9.0])
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_rules_hold_of_any_snapshot(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        assert broken(any_snapshot(rng)) == []


def test_nothing_known_at_all_is_explained_to_the_last_field() -> None:
    bare = Snapshot(
        1.0, "2026-01-01T00:00:00.000Z", ServerStatus("main", "stopped"), DriverReading((Gpu(0),)), None, None,
        (), Offload(bottleneck_reason="nothing runs"), Throughput("down"), (), (), Totals(),
    )  # fmt: skip

    assert broken(bare) == []


@pytest.mark.parametrize(("kind", "section"), [(Throughput, "throughput"), (Offload, "offload"), (Totals, "totals")])
def test_each_field_has_a_reason_in_each_state(kind: type, section: str) -> None:
    names = [field.name for field in fields(kind) if field.name not in ("state", "accepted_per_position")]
    empty = {name: None for name in names}
    for state, profile in itertools.product(STATES, ("a", None)):
        snapshot = Snapshot(
            1.0, "", ServerStatus("main", "ready", profile), DriverReading(()), None, None, (),
            Offload(bottleneck_reason="idle"), Throughput(state), (), (), Totals(),
        )  # fmt: skip
        explained = unknown_reasons(snapshot, {section: empty})
        assert set(explained) == {f"{section}.{name}" for name in names}
        assert all(reason.strip() for reason in explained.values())


def test_a_rule_that_is_broken_is_found() -> None:
    rng = random.Random(5)
    while not (snapshot := any_snapshot(rng)).memory or snapshot.memory[-1].free_bytes is None:
        pass
    wrong = replace(snapshot.memory[-1], free_bytes=(snapshot.memory[-1].free_bytes or 0) + 1)

    assert broken(replace(snapshot, memory=(*snapshot.memory[:-1], wrong)))
    assert broken(replace(snapshot, offload=Offload()))
    assert broken(replace(snapshot, requests=(Request(1, snapshot.time, 0, 1, ttft_seconds=3.0, queue_seconds=1.0),)))


def test_the_help_screen_defines_every_speed_and_time_that_is_shown() -> None:
    reported = " ".join(f"{name} {figure.meaning}" for name, figure in FIGURES.items())

    for word in ("pp", "tg", "TTFT", "Now", "median", "peak", "A request", "effective", "acceptance", "≥", "~", "—"):
        assert word in reported
    assert "all slots together" in reported
    assert "arrival at the server" in reported


def test_other_programs_of_a_card_come_from_the_driver() -> None:
    gpu: Gpu = Gpu(0, vram_total_bytes=100, vram_used_bytes=60, processes=(GpuProcess(7, "X", 20),))
    (card,) = reconcile_devices(None, (gpu,), None, None, 42, {})

    assert (card.other_processes_bytes, card.unaccounted_bytes, card.free_bytes) == (20, 40, 40)
