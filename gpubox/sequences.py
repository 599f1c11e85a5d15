"""What two sequences have in common."""

from __future__ import annotations

from collections.abc import Sequence


def shared_length(first: Sequence[object], second: Sequence[object]) -> int:
    """With how many equal items, or characters, both begin."""
    # os.path.commonprefix counts them too, but Python 3.15 warns of it and 3.17 has none
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(first), len(second)))
