"""Numbers as the owner reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpubox import units

MIB, GIB = 1024**2, 1024**3


@pytest.mark.parametrize("text", [units.memory, units.file_size, units.rate, units.duration, units.tokens])
def test_unknown_is_a_dash_and_zero_is_not(text: Callable[[float | None], str]) -> None:
    assert text(None) == "—"
    assert text(0).startswith("0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 MiB"),
        (MIB, "1 MiB"),
        (1023 * MIB, "1023 MiB"),
        (GIB, "1.0 GiB"),
        (12.3 * GIB, "12.3 GiB"),
        (-2 * GIB, "-2.0 GiB"),
        (-141 * MIB, "-141 MiB"),
    ],
)
def test_memory_counts_in_1024_and_may_be_negative(value: float, text: str) -> None:
    assert units.memory(value) == text


@pytest.mark.parametrize(("value", "text"), [(98_300_000, "98 MB"), (999_000_000, "999 MB"), (1e9, "1.0 GB")])
def test_file_size_counts_in_1000(value: float, text: str) -> None:
    assert units.file_size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0"), (9.96, "10.0"), (99.94, "99.9"), (99.96, "100"), (1851.2, "1851")]
)
def test_rate(value: float, text: str) -> None:
    assert units.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.34, "340 ms"),
        (1, "1.0 s"),
        (3.14, "3.1 s"),
        (62, "1:02"),
        (3599, "59:59"),
        (3600, "1 h 00"),
        (7380, "2 h 03"),
        (48 * 3600, "2 d 0 h"),
        (100 * 3600 + 59, "4 d 4 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert units.duration(value) == text


@pytest.mark.parametrize("value", [0.9996, 59.96, 59.999])
def test_a_duration_just_below_a_border_is_not_written_as_the_border_in_the_smaller_unit(value: float) -> None:
    assert units.duration(value) not in ("1000 ms", "60.0 s")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999, "999"),
        (1000, "1.0k"),
        (4096, "4.1k"),
        (8192, "8K"),
        (131072, "128K"),
        (41200, "41.2k"),
        (131000, "131k"),
        (262144, "256K"),
    ],
)
def test_tokens(value: int, text: str) -> None:
    assert units.tokens(value) == text


def test_tokens_just_below_the_border() -> None:
    assert units.tokens(99_999) == "100k"


def test_memory_just_below_a_gib_is_a_gib() -> None:
    assert units.memory(GIB - 1) == "1.0 GiB"
    assert units.file_size(999_999_999) == "1.0 GB"


@pytest.mark.parametrize("iso", ["", "yesterday", "0001-01-01T00:00:00+14:00"])
def test_a_moment_that_is_none_is_a_dash(iso: str) -> None:
    assert units.time_of_day(iso) == "—"
