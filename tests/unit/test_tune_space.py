"""Which sets of flags a tune considers: one axis for each flag that matters, nothing that changes the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpubox.bench.kinds.sweep.sweep import parse_axis
from gpubox.bench.kinds.tune.protocol import OWN
from gpubox.bench.kinds.tune.space import (
    MAX_CELLS,
    TuneAxis,
    TuneCell,
    TuneFacts,
    given_axis,
    kv_axis,
    lossy_cells,
    make_axes,
    make_cells,
    thinned,
)
from gpubox.bench.model import Target
from gpubox.bench.overrides import apply_overrides
from gpubox.engines.capabilities import Capabilities, EngineOption
from gpubox.errors import UsageError
from gpubox.planner.launch_flags import read_launch_flags
from gpubox.profiles.profile import FlagValue, Profile

ENGINE = Capabilities.of("b11434", (
    EngineOption(("flash-attn",), value="[on|off|auto]", allowed=("on", "off", "auto"), long="flash-attn"),
    EngineOption(("spec-type",), value="T", allowed=("none", "draft-mtp"), long="spec-type"),
))  # fmt: skip
MOE: Mapping[str, FlagValue] = {"n-gpu-layers": 99, "n-cpu-moe": 20, "ctx-size": 32768, "parallel": 1}


def facts(flags: Mapping[str, FlagValue] = MOE, **changes: Any) -> TuneFacts:
    values: dict[str, Any] = {
        "layers": 40, "experts": True, "draft_head": True, "devices": 1, "physical_cores": 8, "logical_cores": 16,
        "smallest_on_cpu": 16,
    }  # fmt: skip
    return TuneFacts(flags, read_launch_flags(flags, {}), **{**values, **changes})


def axes_of(own: TuneFacts, goal: Any = "tg") -> dict[str, TuneAxis]:
    return {axis.flag: axis for axis in make_axes(own, goal, ENGINE, str, 3)}


def labels(axis: TuneAxis) -> list[str]:
    return [level.label for level in axis.levels]


def test_a_moe_profile_is_tuned_around_the_most_that_fits_on_the_card() -> None:
    axes = axes_of(facts())

    assert labels(axes["n-cpu-moe"]) == ["16", "17", "18", "20", "23"]
    assert labels(axes["threads"]) == ["4", "7", "8", "16"]
    assert labels(axes["spec-draft-n-max"]) == ["0", "1", "2", "3", "4", "6"]
    assert labels(axes["ubatch-size"]) == ["256", "512", "1024"]
    assert set(labels(axes["flash-attn"])) == {"auto", "off"}
    assert "parallel" not in axes
    assert all(sum(level.own for level in axis.levels) == 1 for axis in axes.values())


def test_a_dense_model_that_is_whole_on_the_card_has_no_placement_and_no_threads() -> None:
    flags: Mapping[str, FlagValue] = {"n-gpu-layers": 99}
    axes = axes_of(facts(flags, experts=False, draft_head=False, smallest_on_cpu=None, most_on_card=41))

    assert set(axes) == {"ubatch-size", "flash-attn"}


def test_a_dense_model_that_does_not_fit_is_tuned_over_its_layers() -> None:
    axes = axes_of(facts({"n-gpu-layers": 20}, experts=False, smallest_on_cpu=None, most_on_card=30))

    assert labels(axes["n-gpu-layers"]) == ["20", "26", "28", "29", "30"]
    assert axes["n-gpu-layers"].record.more_vram == 1


def test_without_a_card_only_the_cpu_is_tuned() -> None:
    axes = axes_of(facts({}, devices=0, draft_head=False, smallest_on_cpu=None))

    assert set(axes) == {"threads", "ubatch-size", "flash-attn"}


def test_slots_keep_the_context_of_each_unless_the_cache_is_unified() -> None:
    axis = axes_of(facts(), "agent")["parallel"]

    assert [dict(level.overrides) for level in axis.levels] == [
        {}, {"parallel": 2, "ctx-size": 65536}, {"parallel": 3, "ctx-size": 98304},
    ]  # fmt: skip
    unified = axes_of(facts({**MOE, "kv-unified": True}), "agent")["parallel"]
    assert dict(unified.levels[1].overrides) == {"parallel": 2}


def test_flash_attention_stays_on_for_a_quantised_v_cache() -> None:
    assert "flash-attn" not in axes_of(facts({**MOE, "cache-type-k": "q8_0", "cache-type-v": "q8_0"}))


def test_a_draft_is_switched_off_with_everything_that_needs_it() -> None:
    flags: Mapping[str, FlagValue] = {**MOE, "spec-type": "draft-mtp", "spec-draft-n-max": 2, "spec-synth-len": 1.5}
    axis = axes_of(facts(flags))["spec-draft-n-max"]
    off = next(level for level in axis.levels if level.label == "0")
    profile = apply_overrides(Profile("p", "m.gguf", flags=flags), Target("x", "p", off.overrides))

    assert dict(profile.flags) == {**MOE, "spec-type": "none"}
    assert next(level for level in axis.levels if level.own).label == "2"


def test_drafts_from_the_text_are_left_alone() -> None:
    assert "spec-draft-n-max" not in axes_of(facts({**MOE, "spec-type": "ngram-mod"}))


def test_own_flags_come_first_and_every_cell_is_its_difference_from_them() -> None:
    axes = make_axes(facts(), "tg", ENGINE, str, 3)
    cells = make_cells(thinned(axes))

    assert (cells[0].name, dict(cells[0].overrides)) == (OWN, {})
    assert len({cell.name for cell in cells}) == len(cells) <= MAX_CELLS
    assert len({cell.place for cell in cells}) == len(cells)
    assert all(cell.overrides for cell in cells[1:])
    assert "threads=4" in {cell.name for cell in cells}


def cells_over(own: FlagValue | None, *texts: str) -> list[TuneCell]:
    return make_cells([given_axis(parse_axis(text), own) for text in texts])


def test_given_values_are_exactly_the_cells_and_own_flags_beside_them() -> None:
    inside = cells_over(4, "threads=2,4,8")
    outside = cells_over(6, "threads=8,4")
    unset = cells_over(None, "threads=2,4")

    assert [(cell.name, cell.place) for cell in inside] == [(OWN, (1,)), ("threads=2", (0,)), ("threads=8", (2,))]
    assert [(cell.name, cell.place) for cell in outside] == [(OWN, (1,)), ("threads=4", (0,)), ("threads=8", (2,))]
    assert [(cell.name, cell.place) for cell in unset] == [(OWN, (0,)), ("threads=2", (1,)), ("threads=4", (2,))]
    assert len(cells_over(None, "threads=2,4", "ubatch-size=128,256")) == 5


@pytest.mark.parametrize(
    ("text", "own", "more_vram"),
    [
        ("ctx-size=4096,8192", 2048, 1),
        ("ctx-size=4096,8192", None, 0),  # the engine's own: the model's whole context
        ("ctx-size=0,4096", 8192, 0),
        ("n-gpu-layers=-1,10", 20, 0),
        ("n-cpu-moe=0,4", 8, -1),
    ],
)
def test_which_value_needs_more_memory_is_known_only_of_numbers(text: str, own: int | None, more_vram: int) -> None:
    """Otherwise own flags that run out of VRAM with the largest context would rule out every smaller one."""
    assert given_axis(parse_axis(text), own).record.more_vram == more_vram


def test_kv_types_change_the_answers() -> None:
    axis = kv_axis(("f16", "q8_0"), facts(), str)
    cells = make_cells([axis])

    assert labels(axis) == ["f16/f16", "q8_0"]
    assert lossy_cells(cells, MOE) == ["cache-type-k=q8_0"]
    with pytest.raises(UsageError):
        kv_axis((), facts(), str)


def test_thinning_keeps_the_ends_and_the_own_value() -> None:
    axes = [given_axis(parse_axis(f"{flag}=1..20"), 7) for flag in ("a", "b", "c")]
    thin = thinned(axes)

    assert 100 < len(make_cells(thin)) <= MAX_CELLS
    for axis in thin:
        assert {"1", "7", "20"} <= set(labels(axis))
