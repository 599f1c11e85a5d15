"""The part of a test run's output that says what failed. Pure.

It knows the failures of pytest and unittest, cargo, go, node, jest and vitest, compilers and make by the lines that
begin them; all else is shown by its end, where each of them has its summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FAILURE = re.compile(
    r"_{3,} .+ _{3,}$"  # pytest
    r"|E  +\S|(?:FAIL|ERROR): \w|Traceback \(most recent"  # pytest, unittest
    r"|---- .+ stdout ----$|thread '.+' panicked|error(?:\[E\d+\])?: "  # cargo
    r"|\s*--- FAIL: |panic: |FAIL\t"  # go
    r"|\s*not ok \d|\s*[✖✕●×] \S|\s*FAIL  ?\S|\s*AssertionError"  # node, jest, vitest
    r"|.+:\d+(?::\d+)?: (?:fatal )?error\b|make(?:\[\d+\])?: \*\*\*"  # compilers, make
)
_LAST_LINES, _BLOCK_LINES, _BEFORE = 20, 40, 1


def around_failures(text: str, limit: int) -> str:
    """``text``, in at most about ``limit`` characters: the blocks of its failures and its end, with the gaps named."""
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if _FAILURE.match(line)]
    kept = set(range(max(0, len(lines) - _LAST_LINES), len(lines)))
    size = sum(len(lines[at][:limit]) + 1 for at in kept)
    while size > limit // 2 and len(kept) > 1:
        size -= len(lines[first := min(kept)]) + 1
        kept.remove(first)
    for span in (4, _BLOCK_LINES):  # first a little of each failure, then more of the first ones
        for start, following in zip(starts, [*starts[1:], len(lines)], strict=True):
            for at in range(max(0, start - _BEFORE), min(start + span, max(following, start + 1))):
                if at not in kept and size + len(lines[at]) + 1 < limit - 200:
                    kept.add(at)
                    size += len(lines[at]) + 1
    return "\n".join(_with_gaps(lines, sorted(kept), limit))


def _with_gaps(lines: list[str], kept: list[int], limit: int) -> Iterable[str]:
    following = 0
    for at in kept:
        if at > following:
            yield f"[... {at - following} lines]"
        yield lines[at][:limit]
        following = at + 1
