"""A dry run proves the formula, or replaces it."""

from __future__ import annotations

from dataclasses import replace

from gpubox.planner.assembly import assemble
from gpubox.planner.compute import ComputeBuffers, MeasuredRun, Measurement, Structure
from gpubox.planner.devices import DeviceMemoryNow
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.verdict import judge
from tests.unit.test_planner_formula import CARD, MIB, flags_of, parts, smollm

GIB = 1 << 30
DEVICES = (
    DeviceMemoryNow("CUDA0", "gpu", "card", 24 * GIB, 20 * GIB),
    DeviceMemoryNow("Host", "host", "RAM", 64 * GIB, 60 * GIB),
)
STRUCTURE = Structure("f", 31, 0, 1, 512, 4096, 30, lawful=True, linear=True)
BUFFERS = ComputeBuffers({"CUDA0": 18 * MIB, "Host": 8 * MIB}, {}, "measured")


def plan(weights: int | None = None, context: int = 90, **flags: object) -> MemoryPlan:
    """A plan; with ``weights`` (MiB) the engine said so much about the card."""
    given = {"ctx_size": 4096, **flags}
    formula = parts(smollm(), CARD, **given)  # type: ignore[arg-type]
    run = None
    if weights is not None:
        host = formula.weights["Host"] // MIB * MIB
        said = Measurement({"CUDA0": weights * MIB, "Host": host}, {"CUDA0": context * MIB}, BUFFERS.main)
        run = MeasuredRun(STRUCTURE, said)
    read = flags_of(**given)  # type: ignore[arg-type]
    return assemble("p", DEVICES, read, formula, BUFFERS, run, keep_free_bytes=0, problem="" if run else "too old")


OURS = parts(smollm(), CARD, ctx_size=4096).weights["CUDA0"]


def test_an_agreement_proves_what_was_doubtful() -> None:
    doubtful = plan(embeddings=True)
    assert (judge(doubtful).fit, doubtful.doubts) == ("unknown", ("embeddings", "too old"))
    proved = plan(OURS // MIB, embeddings=True)
    assert (judge(proved).fit, proved.method, proved.doubts) == ("fits", "formula", ())
    assert proved.devices[0].weights_bytes == OURS  # exact, where the engine's table has whole MiB


def test_a_disagreement_takes_the_engines_numbers() -> None:
    other = plan(OURS // MIB + 100, context=200)
    assert other.method == "dry-run" and "the engine" in other.notes[0]
    assert other.devices[0].weights_bytes == (OURS // MIB + 100) * MIB
    assert other.devices[0].kv_bytes == 200 * MIB


def test_what_no_table_shows_stays_a_doubt() -> None:
    assert judge(plan(OURS // MIB, lora="a.gguf")).fit == "unknown"
    assert judge(plan()).fit == "fits"


def test_what_a_gpu_in_the_processor_takes_of_the_ram_is_not_free_there() -> None:
    formula = parts(smollm(), CARD, ctx_size=4096)
    apu = replace(DEVICES[0], own_free_bytes=10 * MIB)
    made = assemble("p", (apu, DEVICES[1]), flags_of(ctx_size=4096), formula, BUFFERS, None, keep_free_bytes=0)
    taken = made.devices[0].total_bytes - 10 * MIB
    assert taken > 0 and made.devices[1].free_bytes == 60 * GIB - taken


def test_what_is_assumed_for_the_driver_is_said() -> None:
    formula = parts(smollm(), CARD, ctx_size=4096)
    new = replace(DEVICES[0], unaccounted_bytes=500 * MIB, driver_assumed=True)
    made = assemble("p", (new, DEVICES[1]), flags_of(ctx_size=4096), formula, BUFFERS, None, keep_free_bytes=0)
    assert judge(made).remarks == ("500 MiB assumed for the driver until this card has been seen",)
    assert made.devices[0].total_bytes - plan().devices[0].total_bytes == 500 * MIB
