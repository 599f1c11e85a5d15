"""sweep: the grid, the cells that are not tried, what is compared, and what is kept."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from gpubox.bench.kinds.sweep.sweep import OWN, Sweep, grid_targets, model_labels, parse_axis, with_own_flags
from gpubox.bench.model import Doubt, Item, Plan, Result, RunInfo
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Report
from gpubox.bench.saved_profile import default_profile_name, profile_of_target
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.profiles.profile import Profile, ReferenceFigure
from gpubox.server.failure_causes import Cause, FailureKind
from gpubox.server.supervisor import OperationFailed
from tests.bench_course import Scored, follow

NO_VRAM = "out of VRAM: weights on CUDA0 (9,000 MiB)"


def sweep(*overs: str, own: Mapping[str, Any] | None = None, **options: Any) -> Sweep:
    """A sweep of ``moe``, whose own flags are ``own``."""
    axes = [parse_axis(text) for text in overs]
    targets = with_own_flags(grid_targets("moe", axes), "moe", own or {})
    values = {flag: value for flag, value in (own or {}).items() if flag in {axis.flag for axis in axes}}
    options = {"prompts": 2, "own_values": values, **options}
    return Sweep(Plan("sweep", tuple(targets), {"axes": [axis.flag for axis in axes], **options}))


def done(
    kind: Sweep, rates: Mapping[str, float], launch: float = 0.002, most: int | None = None, **values: Any
) -> Scored:
    """Follows the sweep. A cell without a rate is as fast as 30 tok/s; one of 0 cannot load."""
    dice = random.Random(7)
    starts = [math.exp(dice.gauss(0, launch)) for _ in range(500)]

    def answer(item: Item) -> Result:
        rate = rates.get(item.target, 30.0)
        if rate == 0:
            return Result(item.id, error=NO_VRAM, skipped=True)
        tg = rate * (1 + len(question_of(item).text) / 500) * (1 + dice.gauss(0, 0.01)) * starts[item.start]
        return Result(item.id, {"tg": tg, "pp": 9 * tg, "load_seconds": 4.0, **values}, 1.0)

    return follow(kind, answer, most)


def make_report(kind: Sweep, results: Scored) -> Report:
    return kind.summarise(RunInfo("run", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)


def columns(report: Report, name: str) -> list[Any]:
    return [row[report.tables[0].columns.index(name)] for row in report.tables[0].rows]


def labels(report: Report) -> list[Any]:
    return [row[-1] for row in report.tables[0].rows]


@pytest.mark.parametrize(
    ("text", "flag", "values"),
    [
        ("ctx-size=8192,16384", "ctx-size", (8192, 16384)),
        ("--n-cpu-moe=16..28:4", "n-cpu-moe", (16, 20, 24, 28)),
        ("n-cpu-moe=8..5", "n-cpu-moe", (8, 7, 6, 5)),
        ("ubatch-size=0..2,512", "ubatch-size", (0, 1, 2, 512)),
        ("cache-type-k=f16,q8_0", "cache-type-k", ("f16", "q8_0")),
        ("flash-attn=on,off", "flash-attn", ("on", "off")),
        ("mmap=true,false", "mmap", (True, False)),
    ],
)
def test_an_axis_as_it_is_typed(text: str, flag: str, values: tuple[Any, ...]) -> None:
    axis = parse_axis(text)
    assert (axis.flag, axis.values) == (flag, values)


@pytest.mark.parametrize("text", ["ctx-size", "=1", "ctx-size=", "n=1..9:0", "n=1,1", "n=0..99999"])
def test_an_axis_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_axis(text)


def test_a_grid_is_every_combination_and_the_present_flags_are_always_a_cell() -> None:
    kind = sweep("ctx-size=4096,8192", "n-cpu-moe=0..1")
    names = [target.name for target in kind.plan.targets]
    assert names == [
        OWN, "ctx-size=4096 n-cpu-moe=0", "ctx-size=4096 n-cpu-moe=1", "ctx-size=8192 n-cpu-moe=0",
        "ctx-size=8192 n-cpu-moe=1",
    ]  # fmt: skip
    assert columns(make_report(kind, done(kind, {})), "ctx-size")[:2] == ["default", "4096"]
    inside = sweep("n-cpu-moe=4,8,12", own={"n-cpu-moe": 8})
    assert [target.name for target in inside.plan.targets] == ["n-cpu-moe=8", "n-cpu-moe=4", "n-cpu-moe=12"]
    with pytest.raises(UsageError, match="swept"):
        grid_targets("moe", [parse_axis("n-cpu-moe=1,2")], {"n-cpu-moe": 4})
    with pytest.raises(UsageError, match="240 cells"):
        grid_targets("moe", [parse_axis("a=1..20"), parse_axis("b=1..12")])


def test_few_cells_are_compared_at_once_in_blocks() -> None:
    kind = sweep("n-cpu-moe=4,8,12", own={"n-cpu-moe": 8})
    started = [item.target for item, _ in done(kind, {"n-cpu-moe=4": 31.0}, launch=0.05) if item.warmup]
    names = [target.name for target in kind.plan.targets]
    assert all(started[at : at + 6].count(name) == 2 for at in (0, 6) for name in names)


def test_of_many_cells_the_fastest_and_the_present_flags_are_compared_afresh() -> None:
    kind = sweep("n-cpu-moe=0..9", own={"n-cpu-moe": 9})
    results = done(kind, {f"n-cpu-moe={k}": 50.0 - 3 * k for k in range(10)})
    report = make_report(kind, results)

    first = [item.target for item, _ in results if item.warmup][:10]
    assert set(first) == {target.name for target in kind.plan.targets}, "every cell is started once"
    by_name = dict(zip(columns(report, "n-cpu-moe"), labels(report), strict=True))
    assert {by_name[str(k)] for k in (0, 1, 2)} == {"faster"}
    assert by_name["9"] == "now"
    assert by_name["8"] == "left out after 1 start"
    assert report.verdict == "n-cpu-moe=0 is faster than your flags: the best of the 10 compared."
    assert report.notes[0].startswith("n-cpu-moe=0 measured +")
    assert "To keep it: gpubox bench save run" in report.notes
    assert "corrected for all 3 rows" in report.tables[0].note


@pytest.mark.parametrize(
    ("rates", "launch", "verdict", "offered"),
    [
        ({}, 0.002, "The best of the 3 compared and your flags are equally fast, within 2%: keep your flags.", ""),
        ({"ubatch-size=1024": 40.0}, 0.002, "ubatch-size=1024 is faster than your flags: the best of the 3 compared.",
         "ubatch-size=1024"),
        ({"ubatch-size=256": 20.0, "ubatch-size=1024": 20.0}, 0.002,
         "Nothing is faster than your flags, of the 3 compared: keep your flags.", ""),
        ({"ubatch-size=1024": 31.5}, 0.15, "Whether one of the 3 compared is faster than your flags cannot be", ""),
        ({"ubatch-size=512": 0}, 0.002, f"Your flags could not be measured: {NO_VRAM}.", ""),
        ({"ubatch-size=256": 0, "ubatch-size=1024": 0}, 0.002,
         "No other set of flags could be measured: keep your flags.", ""),
    ],
)  # fmt: skip
def test_nothing_is_offered_without_a_verdict(
    rates: dict[str, float], launch: float, verdict: str, offered: str
) -> None:
    kind = sweep("ubatch-size=256,512,1024", own={"ubatch-size": 512})
    results = done(kind, rates, launch=launch)
    best = kind.best(results)
    report = make_report(kind, results)

    assert report.verdict.startswith(verdict), report.verdict
    assert (best.name if best else "") == offered
    assert any("To keep it" in note for note in report.notes) is bool(offered)


def test_what_would_settle_it_is_a_command_for_two() -> None:
    kind = sweep("ubatch-size=256,512", own={"ubatch-size": 512}, starts=2)
    verdict = make_report(kind, done(kind, {})).verdict
    assert "there were too few starts." in verdict
    assert "`gpubox bench ab moe --set ubatch-size=256` would settle it, in about 2 minutes." in verdict


def test_a_cell_that_cannot_load_is_kept_with_its_reason_and_greedier_ones_are_not_tried() -> None:
    kind = sweep("ctx-size=4096,8192", "n-cpu-moe=4,8", own={"ctx-size": 4096, "n-cpu-moe": 8})
    results = done(kind, {"ctx-size=4096 n-cpu-moe=4": 0, "ctx-size=8192 n-cpu-moe=4": 0})
    report = make_report(kind, results)

    rows = dict(zip((target.name for target in kind.plan.targets), labels(report), strict=True))
    assert rows["ctx-size=4096 n-cpu-moe=4"] == NO_VRAM
    assert rows["ctx-size=4096 n-cpu-moe=8"] == "now"  # less on the card
    assert any(note.startswith("Not measured: ctx-size=4096 n-cpu-moe=4") for note in report.notes)
    large = sweep("ctx-size=4096,8192,16384", "n-cpu-moe=4,8", own={"ctx-size": 4096, "n-cpu-moe": 8})
    greedy = [target.name for target in large.plan.targets if "moe=4" in target.name]
    tried = {item.target for item, _ in done(large, dict.fromkeys(greedy, 0))}
    assert "ctx-size=4096 n-cpu-moe=8" in tried
    assert set(greedy) - tried <= {"ctx-size=8192 n-cpu-moe=4", "ctx-size=16384 n-cpu-moe=4"}


def test_what_runs_out_of_ram_is_not_saved_by_moving_more_into_it() -> None:
    needs = sweep("n-cpu-moe=4,8", "cache-type-k=f16,q8_0").rules.needs_no_less
    failed = "n-cpu-moe=4 cache-type-k=f16"

    assert needs("n-cpu-moe=8 cache-type-k=f16", failed, "RAM")
    assert not needs("n-cpu-moe=8 cache-type-k=q8_0", failed, "RAM")  # nobody knows what another type needs
    assert not needs("n-cpu-moe=4 cache-type-k=q8_0", failed, "RAM")
    assert not needs("n-cpu-moe=8 cache-type-k=f16", failed, "VRAM")


def test_no_kv_type_is_recommended_for_its_speed() -> None:
    kind = sweep("cache-type-k=f16,q8_0", own={"cache-type-k": "f16"}, lossy=["cache-type-k=q8_0"])
    results = done(kind, {"cache-type-k=q8_0": 60.0})
    report = make_report(kind, results)

    assert kind.best(results) is None
    assert report.verdict.startswith("cache-type-k=q8_0 is faster than your flags, but it changes the answers")
    assert "cache-type-k changes the answers, not only their speed" in " ".join(report.notes)


def test_after_a_death_in_a_start_its_other_items_are_left() -> None:
    kind = sweep("n-cpu-moe=4,8")
    items = [item for item, _ in done(kind, {}, most=20)]
    first, second = items[:2]
    died = [(first, Result(first.id, doubts=(Doubt("crash", "the server died", first.id),), error="no answer"))]

    assert kind.skip_reason(second, died, None) == f"the server died during {first.id}"
    other = next(item for item in items if item.start != first.start)
    assert kind.skip_reason(other, died, None) == ""


def test_which_failures_are_a_cells_and_which_end_the_run() -> None:
    kind = sweep("n-cpu-moe=4,8")

    def reason(error: GpuboxError) -> str:
        return kind.load_failure_reason(kind.plan.targets[0], error)

    assert reason(OperationFailed("x", "", Cause(FailureKind.OOM, "out of VRAM: KV cache"))) == "out of VRAM: KV cache"
    assert reason(OperationFailed("x", "", Cause(FailureKind.HANG, "it hung"))) == "it hung"
    assert reason(UsageError("the engine refuses: ctx-size.")) == "the engine refuses: ctx-size"
    assert reason(OperationFailed("x", "", Cause(FailureKind.MISSING, "the model file is missing"))) == ""
    assert reason(OperationFailed("x", "", Cause(FailureKind.PORT, "port taken"))) == ""
    assert reason(GpuboxError("Another gpubox is changing this server.", code=ExitCode.FAILED)) == ""


def test_the_table_has_a_row_for_each_cell_and_the_chart_a_line_for_each_combination() -> None:
    kind = sweep("n-cpu-moe=0..3", own={"n-cpu-moe": 0})
    report = make_report(kind, done(kind, {f"n-cpu-moe={k}": 50.0 - 5 * k for k in range(4)}, vram_bytes=3 << 30))

    assert labels(report) == ["now", "slower", "slower", "slower"]
    assert report.tables[0].columns == (
        "n-cpu-moe", "tg", "pp", "VRAM", "load", "starts", "vs your flags", "95 % CI", "",
    )  # fmt: skip
    assert report.tables[0].rows[2][3:6] == ("3.0 GiB", "4.0 s", 4)
    lines = {series.chart: series for series in report.series}
    assert [x for x, _ in lines["tg over n-cpu-moe"].points] == [0, 1, 2, 3]
    assert lines["tg over n-cpu-moe"].x_label == "n-cpu-moe"
    assert len({(m.target, m.group, m.name) for m in report.metrics}) == len(report.metrics)
    words = sweep("cache-type-k=f16,q8_0", "parallel=1,2", own={"cache-type-k": "f16", "parallel": 1})
    lines_of = [
        series for series in make_report(words, done(words, {})).series if series.chart == "tg over cache-type-k"
    ]
    assert [line.name for line in lines_of] == ["parallel=1", "parallel=2"]
    assert (lines_of[0].x_label, lines_of[0].x_names) == ("cache-type-k", ("f16", "q8_0"))


def test_a_sweep_half_done_reports_what_there_is() -> None:
    kind = sweep("n-cpu-moe=0..2", own={"n-cpu-moe": 0})
    results = done(kind, {}, most=8)
    report = make_report(kind, results)

    assert report.verdict == "Not finished: 1 starts are done (gpubox bench resume run)."
    assert labels(report)[0] == "now"
    assert "fastest so far " in kind.headline(results)
    assert kind.headline([]) == ""
    assert kind.best(results) is None


def models(*names: str, profiles: tuple[str, ...] = ("moe",), **options: Any) -> Sweep:
    axes = [parse_axis(f"model={','.join(names)}")]
    labels = model_labels([str(value) for value in axes[0].values])
    targets = grid_targets(profiles, axes, labels=labels)
    named = ["profile", "model"] if len(profiles) > 1 else ["model"]
    return Sweep(Plan("sweep", tuple(targets), {"axes": named, "labels": labels, "prompts": 2, **options}))


def test_models_are_a_table_of_quants() -> None:
    kind = models("/m/Qwen-Q5_K_M.gguf", "/m/Qwen-Q4_K_M.gguf", lossy=["Qwen-Q4_K_M"])
    results = done(kind, {"Qwen-Q4_K_M": 60.0, "Qwen-Q5_K_M": 40.0}, vram_bytes=9 << 30, model_bytes=21_110_000_000,
                   quant="Q4_K_M", context_tokens=131072, effective=30.0, parameters=34_700_000_000,
                   active_parameters=3_400_000_000)  # fmt: skip
    report = make_report(kind, results)

    assert report.title == "moe over model"
    assert report.tables[0].columns == (
        "model", "quant", "size", "parameters", "context", "tg", "pp", "effective", "VRAM", "load", "starts",
        "vs your flags", "95 % CI", "",
    )  # fmt: skip
    row = report.tables[0].rows[1]
    assert row[:5] == ("Qwen-Q4_K_M", "Q4_K_M", "21.1 GB", "34.7 B, ~3.4 B active", "131,072")
    assert row[8:10] == ("9.0 GiB", "4.0 s")
    assert "model changes the answers" in " ".join(report.notes)
    assert kind.best(results) is None
    profile, fast = (
        Profile("moe", "/m/Qwen-Q5_K_M.gguf", references=(ReferenceFigure("tg", 1, "", "", ""),)),
        kind.plan.targets[1],
    )
    new, header = profile_of_target(profile, fast, default_profile_name(profile, fast), "run-1")
    assert (new.name, new.model, dict(new.flags)) == ("moe-Qwen-Q4_K_M", "/m/Qwen-Q4_K_M.gguf", {})
    assert (new.references, "run-1" in header) == ((), True)


def test_what_the_driver_and_the_file_do_not_say_is_a_dash_not_a_zero() -> None:
    kind = models("/m/a.gguf", "/m/b.gguf")
    report = make_report(kind, done(kind, {"a": 60.0, "b": 40.0}))

    assert columns(report, "quant") == [None, None]
    assert (columns(report, "size")[0], columns(report, "context")[0]) == ("—", None)


def test_a_sweep_over_profiles_and_models_has_a_cell_of_each() -> None:
    kind = models("/m/a.gguf", "/m/b.gguf", profiles=("moe", "dense"))

    assert [target.name for target in kind.plan.targets] == ["moe a", "moe b", "dense a", "dense b"]
    results = done(kind, {target.name: 50.0 + 5 * n for n, target in enumerate(kind.plan.targets)})
    report = make_report(kind, results)
    assert report.title == "moe, dense over model"
    assert report.verdict == "dense b is faster than moe a: the best of the 4 compared."
    assert columns(report, "profile") == ["moe", "moe", "dense", "dense"]
    assert kind.best(results) is None, "what else profiles differ in is the owner's business"
    only = grid_targets(("moe", "dense"), [])
    assert [target.name for target in only] == ["moe", "dense"]
    with pytest.raises(UsageError, match="--over"):
        grid_targets("moe", [])


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (["/m/a-Q4.gguf", "/m/a-Q5.gguf"], ["a-Q4", "a-Q5"]),
        (["/m/x/q4.gguf", "/m/y/q4.gguf", "/m/z.gguf"], ["x q4", "y q4", "z"]),
        (["hf:user/repo:Q4_K_M", "/m/repo.gguf"], ["hf:user/repo:Q4_K_M", "repo"]),
        (["/q4.gguf", "/m/q4.gguf"], ["q4", "m q4"]),
    ],
)
def test_models_have_short_names_of_their_own(files: list[str], labels: list[str]) -> None:
    assert list(model_labels(files).values()) == labels
