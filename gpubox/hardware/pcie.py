"""What a PCI Express link carries."""

from __future__ import annotations

# Bytes a second of one lane, one way, after line coding and before packet headers (10-20 % more is lost to those):
# transfer rate x coding / 8. PCI Express Base Specification: 1.x 2.5 GT/s and 2.x 5 GT/s at 8b/10b; 3.x 8, 4.0 16 and
# 5.0 32 GT/s at 128b/130b; 6.x 64 and 7.0 128 GT/s in flits of 256 bytes of which 242 are left by CRC and FEC.
_LANE_BYTES_PER_SECOND = {
    1: 2_500_000_000 * 8 / 10 / 8,
    2: 5_000_000_000 * 8 / 10 / 8,
    3: 8_000_000_000 * 128 / 130 / 8,
    4: 16_000_000_000 * 128 / 130 / 8,
    5: 32_000_000_000 * 128 / 130 / 8,
    6: 64_000_000_000 * 242 / 256 / 8,
    7: 128_000_000_000 * 242 / 256 / 8,
}


def link_bytes_per_second(generation: int | None, width: int | None) -> int | None:
    """The most that a link of ``generation`` with ``width`` lanes carries each way; ``None`` where one is unknown."""
    lane = _LANE_BYTES_PER_SECOND.get(generation or 0)
    return round(lane * width) if lane and width else None
