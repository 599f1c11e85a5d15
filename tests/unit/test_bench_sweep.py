"""sweep: the grid, the cells that are not tried, and the cells within noise of the best."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from gpubox.bench.kinds.sweep.grid import grid_targets, model_labels, parse_axis
from gpubox.bench.kinds.sweep.ranking import rank_cells
from gpubox.bench.kinds.sweep.sweep import Sweep
from gpubox.bench.model import Flag, Item, Plan, Result, RunInfo
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Report
from gpubox.bench.saved_profile import default_profile_name, profile_of_target
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.profiles.profile import Profile, ReferenceFigure
from gpubox.server.failure_causes import Cause, FailureKind
from gpubox.server.supervisor import OperationFailed

Scored = list[tuple[Item, Result]]


def sweep(*overs: str, **options: Any) -> Sweep:
    axes = [parse_axis(text) for text in overs]
    targets = grid_targets("moe", axes)
    return Sweep(Plan("sweep", tuple(targets), {"axes": [axis.flag for axis in axes], **options}))


def done(kind: Sweep, rates: dict[str, float], noise: float = 0.01, launch: float = 0.002, **values: Any) -> Scored:
    """Every item of the cells that ``rates`` has, in the order of the plan; a rate of 0 cannot load."""
    dice = random.Random(7)
    results: Scored = []
    of_start = [math.exp(dice.gauss(0, launch)) for _ in range(300)]
    for item in kind.items():
        if why := kind.unneeded_reason(item, results):
            results.append((item, Result(item.id, error=why, skipped=True, unneeded=True)))
            continue
        rate = rates.get(kind.target_of(item, results))
        if rate == 0:
            results.append((item, Result(item.id, error="out of VRAM: weights on CUDA0 (9,000 MiB)", skipped=True)))
        elif rate:
            prompt = 1 + len(question_of(item).text) / 500
            tg = rate * prompt * (1 + dice.gauss(0, noise)) * of_start[item.start]
            results.append((item, Result(item.id, {"tg": tg, "pp": 9 * tg, "load_seconds": 4.0, **values})))
    return results


def make_report(kind: Sweep, results: Scored) -> Report:
    return kind.summarise(RunInfo("run", kind.plan, "2026-01-01T00:00:00Z", len(kind.items())), results)


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


def test_a_small_grid_is_every_combination_with_four_starts_of_each_in_a_drawn_order() -> None:
    kind = sweep("ctx-size=4096,8192", "n-cpu-moe=0..1", prompts=2)

    names = [target.name for target in kind.plan.targets]
    assert names == [
        "ctx-size=4096 n-cpu-moe=0", "ctx-size=4096 n-cpu-moe=1", "ctx-size=8192 n-cpu-moe=0",
        "ctx-size=8192 n-cpu-moe=1",
    ]  # fmt: skip
    items = kind.items()
    assert len(items) == 4 * 4 * (1 + 2 * 3) == len({item.id for item in items})
    started = [item.target for item in items if item.warmup]
    assert all(started.count(name) == 4 for name in names)
    assert all(started[:8].count(name) == 2 for name in names)
    with pytest.raises(UsageError, match="swept"):
        grid_targets("moe", [parse_axis("n-cpu-moe=1,2")], {"n-cpu-moe": 4})
    with pytest.raises(UsageError, match="240 cells"):
        grid_targets("moe", [parse_axis("a=1..20"), parse_axis("b=1..12")])


def test_of_a_large_grid_the_fastest_and_the_profiles_own_are_compared_afresh() -> None:
    kind = sweep("n-cpu-moe=0..9", prompts=2, profile_values={"n-cpu-moe": 9})
    rates = {f"n-cpu-moe={k}": 50.0 - 3 * k for k in range(10)}

    results = done(kind, rates)
    report = make_report(kind, results)

    assert len([item for item in kind.items() if item.warmup]) == 10 + 5 * 4
    assert labels(report)[:4] == ["best", "slower", "slower", "slower"]
    assert labels(report)[4:9] == ["left out after one start"] * 5
    assert labels(report)[9] == "slower"  # the profile's own is always among them
    assert columns(report, "starts") == [4, 4, 4, 4, 1, 1, 1, 1, 1, 4]
    assert "the 4 others compared are slower; 5 left out after one start each" in report.notes[0]
    assert "corrected for all 10 pairs" in report.tables[0].note
    assert any("5 cells had one start each" in note and "cannot detect" in note for note in report.notes)


def test_only_fresh_starts_of_a_finalist_count_and_picking_the_best_of_equals_adds_nothing() -> None:
    kind = sweep("ubatch-size=1..16", prompts=3)
    shown, raw = [], []
    for seed in range(12):
        dice = random.Random(seed)
        results: Scored = []
        of_start = [math.exp(dice.gauss(0, 0.02)) for _ in range(100)]
        for item in kind.items():
            results.append((item, Result(item.id, {"tg": 50 * of_start[item.start], "pp": 1.0})))
        kind._finalists = None
        ranking = rank_cells(kind.grid, results)
        assert ranking.best
        raw.append(best_of_first_round(kind, results) / 50 - 1)
        shown.append(ranking.best_rate / 50 - 1)
    assert sum(raw) / 12 > 0.025  # what the first round alone would have claimed
    assert sum(shown) / 12 < 0.01


def best_of_first_round(kind: Sweep, results: Scored) -> float:
    return max(float(r.values["tg"]) for i, r in results if not i.target.startswith("finalist"))


def test_a_cell_that_cannot_load_is_kept_with_its_reason_and_greedier_ones_are_not_tried() -> None:
    kind = sweep("ctx-size=4096,8192", "n-cpu-moe=4,8", prompts=2)
    results = done(kind, {"ctx-size=4096 n-cpu-moe=4": 0})
    open_items = {item.target: item for item in kind.items()}

    def reason(cell: str) -> str:
        return kind.skip_reason(open_items[cell], results, None)

    assert reason("ctx-size=4096 n-cpu-moe=8") == ""  # less on the card: worth a try
    assert (
        reason("ctx-size=8192 n-cpu-moe=4")
        == "not tried: it needs at least as much VRAM as ctx-size=4096 n-cpu-moe=4, which ran out of it"
    )
    assert reason("ctx-size=8192 n-cpu-moe=8") == ""
    report = make_report(
        kind, [*results, *done(kind, {"ctx-size=4096 n-cpu-moe=8": 30.0, "ctx-size=8192 n-cpu-moe=8": 20.0})]
    )
    assert labels(report)[0] == "out of VRAM: weights on CUDA0 (9,000 MiB)"
    assert labels(report)[1:] == ["best", "not done yet", "slower"]
    assert any(note.startswith("Not measured: ctx-size=4096 n-cpu-moe=4: out of VRAM") for note in report.notes)
    assert "the other compared cell is slower; 1 could not be measured" in report.notes[0]
    assert "every" not in report.notes[0]


def test_no_kv_type_is_recommended_for_its_speed_and_the_own_value_stays_where_cells_are_level() -> None:
    lossy = sweep("cache-type-k=f16,q8_0", prompts=2)
    results = done(lossy, {"cache-type-k=f16": 40.0, "cache-type-k=q8_0": 60.0})
    kept = lossy.best(results)
    assert kept and kept.name == "cache-type-k=f16"
    notes = " ".join(make_report(lossy, results).notes)
    assert "Best at tg: cache-type-k=q8_0" in notes
    assert "cache-type-k changes the answers, not only their speed: no value is recommended for being faster" in notes

    usual = sweep("cache-type-k=f16,q8_0", prompts=2, profile_values={"cache-type-k": "q8_0"})
    kept = usual.best(done(usual, {"cache-type-k=f16": 60.0, "cache-type-k=q8_0": 40.0}))
    assert kept and kept.name == "cache-type-k=q8_0"  # more KV than the owner chose is no question of speed either

    level = sweep("ubatch-size=256,512,1024", prompts=2, profile_values={"ubatch-size": 512})
    results = done(level, {"ubatch-size=256": 50.0, "ubatch-size=512": 50.0, "ubatch-size=1024": 50.1}, launch=0.01)
    kept = level.best(results)
    assert kept and kept.name == "ubatch-size=512"
    assert any("Keep the profile's own ubatch-size=512" in note for note in make_report(level, results).notes)
    better = level.best(done(level, {"ubatch-size=256": 50.0, "ubatch-size=512": 50.0, "ubatch-size=1024": 60.0}))
    assert better and better.name == "ubatch-size=1024"


def test_what_runs_out_of_ram_is_not_saved_by_moving_more_into_it() -> None:
    kind = sweep("n-cpu-moe=4,8", "cache-type-k=f16,q8_0", prompts=2)
    first = next(item for item in kind.items() if item.target == "n-cpu-moe=4 cache-type-k=f16")
    failed = [(first, Result(first.id, error="out of RAM: weights (9 MiB)", skipped=True))]
    skipped = {item.target: kind.skip_reason(item, failed, None) for item in kind.items()}

    assert skipped["n-cpu-moe=8 cache-type-k=f16"].startswith("not tried")
    assert skipped["n-cpu-moe=8 cache-type-k=q8_0"] == ""  # nobody knows what another type needs
    assert skipped["n-cpu-moe=4 cache-type-k=q8_0"] == ""


def test_after_a_death_in_a_cell_its_other_items_are_left() -> None:
    kind = sweep("n-cpu-moe=4,8", prompts=2)
    first, second = kind.items()[:2]
    died = [(first, Result(first.id, flags=(Flag("crash", "the server died", first.id),), error="no answer"))]

    assert kind.skip_reason(second, died, None) == f"the server died during {first.id}"
    other = next(item for item in kind.items() if item.target != first.target)
    assert kind.skip_reason(other, died, None) == ""


def test_which_failures_are_a_cells_and_which_end_the_run() -> None:
    kind = sweep("n-cpu-moe=4,8")
    target = kind.plan.targets[0]

    def reason(error: GpuboxError) -> str:
        return kind.load_failure_reason(target, error)

    assert reason(OperationFailed("x", "", Cause(FailureKind.OOM, "out of VRAM: KV cache"))) == "out of VRAM: KV cache"
    assert reason(OperationFailed("x", "", Cause(FailureKind.HANG, "it hung"))) == "it hung"
    assert reason(UsageError("the engine refuses: ctx-size.")) == "the engine refuses: ctx-size"
    assert reason(OperationFailed("x", "", Cause(FailureKind.MISSING, "the model file is missing"))) == ""
    assert reason(OperationFailed("x", "", Cause(FailureKind.PORT, "port taken"))) == ""
    assert reason(GpuboxError("Another gpubox is changing this server.", code=ExitCode.FAILED)) == ""


def test_cells_within_noise_of_the_best_are_told_from_slower_ones() -> None:
    kind = sweep("n-cpu-moe=0..3", prompts=5)
    rates = {"n-cpu-moe=0": 50.0, "n-cpu-moe=1": 49.9, "n-cpu-moe=2": 45.0, "n-cpu-moe=3": 20.0}

    report = make_report(kind, done(kind, rates, vram_bytes=3 << 30))

    levels = {"best", "within noise of the best"}
    assert set(labels(report)[:2]) == levels
    assert labels(report)[2:] == ["slower", "slower"]
    assert report.tables[0].columns == (
        "n-cpu-moe", "tg", "pp", "VRAM", "load", "starts", "vs best", "95 % CI", "",
    )  # fmt: skip
    assert report.tables[0].rows[2][3:6] == ("3.0 GiB", "4.0 s", 4)
    lines = {series.chart: series for series in report.series}
    assert [x for x, _ in lines["tg over n-cpu-moe"].points] == [0, 1, 2, 3]
    assert lines["tg over n-cpu-moe"].x_label == "n-cpu-moe"
    assert len({(m.target, m.group, m.name) for m in report.metrics}) == len(report.metrics)
    slow = make_report(kind, done(kind, dict.fromkeys(rates, 30.0), noise=0.15, launch=0.03))
    assert "slower" not in labels(slow)  # 15 % of noise, 3 % from start to start, and no difference


def test_of_draft_windows_the_smallest_as_fast_as_the_best_is_kept() -> None:
    kind = sweep("spec-draft-n-max=1..5", prompts=5, context_tokens=0)
    rates = {1: 30.0, 2: 41.0, 3: 49.7, 4: 50.0, 5: 49.8}
    results = done(
        kind, {f"spec-draft-n-max={k}": v for k, v in rates.items()}, draft_tokens=90, draft_tokens_accepted=60
    )

    report = make_report(kind, results)

    assert [label in ("best", "within noise of the best") for label in labels(report)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    kept = kind.best(results)
    assert kept and kept.name == "spec-draft-n-max=3"
    assert "the smallest window as fast as the best" in " ".join(report.notes)
    assert "acceptance over spec-draft-n-max" in {series.chart for series in report.series}
    profile = Profile("moe", "/m", flags={"ctx-size": 512}, references=(ReferenceFigure("tg", 1, "", "", ""),))
    new, header = profile_of_target(profile, kept, default_profile_name(profile, kept), "run-1")
    assert (new.name, dict(new.flags)) == ("moe-spec-draft-n-max-3", {"ctx-size": 512, "spec-draft-n-max": 3})
    assert new.references == ()
    assert "run-1" in header


def test_two_axes_are_lines_and_words_stand_at_numbers() -> None:
    kind = sweep("cache-type-k=f16,q8_0", "parallel=1,2", prompts=2)
    report = make_report(kind, done(kind, {target.name: 10.0 for target in kind.plan.targets}))

    lines = [series for series in report.series if series.chart == "tg over cache-type-k"]
    assert [series.name for series in lines] == ["parallel=1", "parallel=2"]
    assert [x for x, _ in lines[0].points] == [1.0, 2.0]
    assert (lines[0].x_label, lines[0].x_names) == ("cache-type-k", ("f16", "q8_0"))


def test_a_sweep_half_done_reports_what_there_is() -> None:
    kind = sweep("n-cpu-moe=0..2", prompts=2)
    results = done(kind, {"n-cpu-moe=0": 50.0})

    report = make_report(kind, results)

    assert labels(report) == ["best", "not done yet", "not done yet"]
    assert "best so far n-cpu-moe=0" in kind.headline(results)
    assert make_report(kind, []).tables[0].rows[0][-1] == "not done yet"
    assert kind.headline([]) == ""
    assert kind.best([]) is None


def models(*names: str, profiles: tuple[str, ...] = ("moe",), **options: Any) -> Sweep:
    axes = [parse_axis(f"model={','.join(names)}")]
    labels = model_labels([str(value) for value in axes[0].values])
    targets = grid_targets(profiles, axes, labels=labels)
    named = ["profile", "model"] if len(profiles) > 1 else ["model"]
    return Sweep(Plan("sweep", tuple(targets), {"axes": named, "labels": labels, "prompts": 2, **options}))


def test_models_are_a_table_of_quants_and_none_is_recommended_for_its_speed() -> None:
    kind = models("/m/Qwen-Q4_K_M.gguf", "/m/Qwen-Q5_K_M.gguf", profile_values={"model": "/m/Qwen-Q5_K_M.gguf"})
    results = done(kind, {"Qwen-Q4_K_M": 60.0, "Qwen-Q5_K_M": 40.0}, vram_bytes=9 << 30, model_bytes=21_110_000_000,
                   quant="Q4_K_M", context_tokens=131072, effective=30.0, parameters=34_700_000_000,
                   active_parameters=3_400_000_000)  # fmt: skip

    report = make_report(kind, results)

    assert report.title == "moe over model"
    assert report.tables[0].columns == (
        "model", "quant", "size", "parameters", "context", "tg", "pp", "effective", "VRAM", "load", "starts",
        "vs best", "95 % CI", "",
    )  # fmt: skip
    row = report.tables[0].rows[0]
    assert row[:5] == ("Qwen-Q4_K_M", "Q4_K_M", "21.1 GB", "34.7 B, ~3.4 B active", "131,072")
    assert row[8:10] == ("9.0 GiB", "4.0 s")
    assert "model changes the answers" in " ".join(report.notes)
    kept = kind.best(results)
    assert kept and kept.name == "Qwen-Q5_K_M"  # the profile's own
    profile = Profile("moe", "/m/Qwen-Q5_K_M.gguf")
    fast = kind.plan.targets[0]
    new, _ = profile_of_target(profile, fast, default_profile_name(profile, fast), "run-1")
    assert (new.name, new.model, dict(new.flags)) == ("moe-Qwen-Q4_K_M", "/m/Qwen-Q4_K_M.gguf", {})


def test_what_the_driver_and_the_file_do_not_say_is_a_dash_not_a_zero() -> None:
    kind = models("/m/a.gguf", "/m/b.gguf")
    row = make_report(kind, done(kind, {"a": 60.0, "b": 40.0})).tables[0].rows[0]
    columns = make_report(kind, []).tables[0].columns

    assert row[columns.index("quant")] is None
    assert (row[columns.index("size")], row[columns.index("context")]) == ("—", None)


def test_a_sweep_over_profiles_and_models_has_a_cell_of_each() -> None:
    kind = models("/m/a.gguf", "/m/b.gguf", profiles=("moe", "dense"))

    assert [target.name for target in kind.plan.targets] == ["moe a", "moe b", "dense a", "dense b"]
    assert [target.profile for target in kind.plan.targets] == ["moe", "moe", "dense", "dense"]
    results = done(kind, {target.name: 50.0 - n for n, target in enumerate(kind.plan.targets)})
    report = make_report(kind, results)
    assert report.title == "moe, dense over model"
    assert columns(report, "profile") == ["moe", "moe", "dense", "dense"]
    assert kind.best(results) is None
    assert any("Profiles may differ in their answers" in note for note in report.notes)
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
