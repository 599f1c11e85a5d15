"""A tune as lines: intervals on one scale, the state as a word and a mark, the reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubox.bench.kinds.tune.progress import CandidateState, TuneCandidate, TuneProgress
from gpubox.tui.bench.tune_lines import tune_item_words, tune_lines
from gpubox.tui.styled_lines import StyledLine, cell_width, styled_line


def candidate(
    moe: int, threads: int, rate: float | None = None, half: float = 1.0, starts: int = 1,
    state: CandidateState = "waiting", reason: str = "",
) -> TuneCandidate:  # fmt: skip
    flags = {"n-cpu-moe": moe, "threads": threads, "ubatch-size": 512, "spec-draft-n-max": 3}
    name = " ".join(f"{flag}={value}" for flag, value in flags.items())
    low, high = (rate - half, rate + half) if rate else (None, None)
    return TuneCandidate(name, flags, starts, rate, low, high, state, reason)


OWN = TuneCandidate("own flags", {}, 4, 66.0, 65.0, 67.0, state="finalist")
BEST = candidate(18, 8, 72.0, starts=4, state="finalist")
CANDIDATES = (
    OWN, BEST, candidate(20, 8, 70.0, 2.0, starts=2, state="measuring"), candidate(22, 8, 64.0, 3.0),
    *(candidate(24 + n, 6, starts=0) for n in range(9)),
    candidate(34, 4, 31.0, starts=1, state="out", reason="slower"),
    candidate(16, 8, starts=0, state="out", reason="out of VRAM"),
)  # fmt: skip
PRUNED = (("would leave less than 1.0 GiB free", 12),)
TUNE = TuneProgress("tg", "tok/s", CANDIDATES, 14, 40, 751.0, "searching", "", PRUNED)
NOW = styled_line("014/code-1", "   answering, tg 68.0 tok/s")
WIDTHS = (56, 76, 118)


def text(lines: list[StyledLine]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


def bar_of(rows: list[str], mark: str) -> str:
    return next(row for row in rows if row.startswith(mark))


@pytest.mark.parametrize("width", [30, *WIDTHS, 200])
def test_no_line_is_wider_than_the_pane(width: int) -> None:
    assert max(map(cell_width, tune_lines(TUNE, "qwen36", NOW, width))) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_all_intervals_are_drawn_on_one_scale(width: int) -> None:
    rows = text(tune_lines(TUNE, "qwen36", NOW, width))
    best, own, measuring, slow = (bar_of(rows, mark) for mark in ("◆ n", "◆ own", "▶", "✗"))
    at = {rate: row.index("●") for rate, row in ((31, slow), (66, own), (70, measuring), (72, best))}
    assert at[31] < at[66] < at[70] < at[72]
    per_unit = (at[72] - at[66]) / 6
    assert at[70] - at[66] == pytest.approx(4 * per_unit, abs=1)  # the slow one, far behind, does not squeeze it
    for row, half in ((own, 1), (best, 1), (measuring, 2)):
        assert row.index("●") - row.index("─") == pytest.approx(half * per_unit, abs=1) if "─" in row else per_unit < 1


def test_every_state_has_a_mark_and_a_word_and_the_profile_comes_first() -> None:
    rows = text(tune_lines(TUNE, "qwen36", NOW, 118))
    header = next(at for at, row in enumerate(rows) if row.endswith("starts"))
    table = rows[header + 1 :]
    assert table[0].startswith("◆ own flags")
    assert [row[0] for row in table[:4]] == ["◆", "◆", "▶", "·"]
    assert table[2].endswith("measuring")
    assert bar_of(table, "✗").endswith("slower")
    assert "  9 more; not all will start" in table
    assert "left out  1 × slower   1 × out of VRAM" in table
    assert any(row.startswith("not tried 12 × would leave less than 1.0 GiB free") for row in table)


def test_the_profile_is_never_out() -> None:
    rows = text(tune_lines(replace(TUNE, candidates=(replace(OWN, state="out"), *CANDIDATES[1:])), "qwen36", NOW, 118))
    assert bar_of(rows, "= own flags")
    assert not [row for row in rows if row.startswith("left out") and "cannot" in row]


def test_the_best_so_far_stands_against_the_profile() -> None:
    rows = text(tune_lines(TUNE, "qwen36", NOW, 118))
    assert rows[1].endswith("14 of at most 40 starts   at most 13 minutes left")
    (best,) = [row for row in rows if row.startswith("best")]
    assert "72.0 tok/s   +9.1 % against the profile's flags (66.0)" in best
    before = replace(TUNE, candidates=(replace(OWN, rate=None, low=None, high=None, starts=0),), seconds_left=None)
    rows = text(tune_lines(before, "qwen36", NOW, 76))
    assert "best      —" in rows
    assert any("no estimate yet" in row for row in rows)


def test_an_item_is_named_without_its_number() -> None:
    assert tune_item_words("015/n-cpu-moe=18 threads=8/warm-up") == "n-cpu-moe=18 threads=8, warm-up"
    assert tune_item_words("") == ""


def test_hostile_names_and_reasons_stay_on_their_line() -> None:
    evil = replace(BEST, name="\x1b[31m[red]x\n", flags={"a\x1b[2J": "\nb"}, reason="\x1b[2J\n" * 3, state="out")
    tune = replace(TUNE, candidates=(OWN, evil), pruned=(("\x1b\n", 3),))
    for width in (30, 76, 118):
        rows = text(tune_lines(tune, "\x1b[1m\n", NOW, width))
        assert not [row for row in rows if "\x1b" in row or "\n" in row]
