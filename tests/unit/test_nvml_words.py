"""Throttle reasons, and the bandwidth of a PCI Express link."""

from __future__ import annotations

import pytest

from gpubox.hardware.nvml_card import link_bytes_per_second, throttle_reasons


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power cap",)),
        (0x8 | 0x40, ("hw thermal", "hw slowdown")),
        (0x20 | 0x1, ("thermal",)),
        (0x80 | 0x100 | 0x2, ("power brake", "application clocks", "display clocks")),
        (0x4000, ("reason 0x4000",)),
    ],
)
def test_throttle_bits_are_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_reasons(bits) == words


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"),
    [(1, 16, 4.0), (2, 8, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 8, 31.508), (5, 16, 63.015), (6, 16, 121.0)],
)
def test_a_link_carries_what_the_specification_says(generation: int, width: int, gigabytes: float) -> None:
    assert link_bytes_per_second(generation, width) == pytest.approx(gigabytes * 1e9, rel=1e-4)


@pytest.mark.parametrize(("generation", "width"), [(None, 8), (4, None), (0, 0), (9, 16)])
def test_an_unknown_link_carries_nobody_knows_what(generation: int | None, width: int | None) -> None:
    assert link_bytes_per_second(generation, width) is None
