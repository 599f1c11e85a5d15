"""The lines that differ between two contents of a file. Pure, byte for byte, and in bounded time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from gpubox.sequences import shared_length

CONTEXT_LINES = 3
_MAX_GAP_LINES = 2000
_MAX_PAIRS = 100_000
"""If more lines are in a gap, or more pairs of lines equal, all old and new ones differ: difflib would take seconds."""
_BINARY_BYTES = 8192

Block = tuple[int, int, int, int]
"""Old lines ``[0]`` to ``[1]`` become new lines ``[2]`` to ``[3]``, from 0, the ends excluded."""


@dataclass(frozen=True, slots=True)
class LineDiff:
    """What differs, in groups of blocks that are shown together: hunks."""

    old: list[bytes]
    """Lines with their line ends."""
    new: list[bytes]
    hunks: list[list[Block]]

    def header(self, hunk: int) -> str:
        """``@@ -3,7 +3,8 @@``"""
        first, last = self.hunks[hunk][0], self.hunks[hunk][-1]
        before = min(CONTEXT_LINES, first[0])
        after = min(CONTEXT_LINES, len(self.old) - last[1])
        spans = (first[0] - before, last[1] + after), (first[2] - before, last[3] + after)
        return "@@ -{} +{} @@".format(*(f"{start + (end > start)},{end - start}" for start, end in spans))

    def lines(self, hunk: int) -> list[str]:
        """The lines with their sign, to be shown: what is not UTF-8 is replaced, a carriage return is visible."""
        blocks = self.hunks[hunk]
        at, shown = max(0, blocks[0][0] - CONTEXT_LINES), list[str]()
        for old_start, old_end, new_start, new_end in blocks:
            shown += [_shown(" ", line) for line in self.old[at:old_start]]
            shown += [_shown("-", line) for line in self.old[old_start:old_end]]
            shown += [_shown("+", line) for line in self.new[new_start:new_end]]
            at = old_end
        return shown + [_shown(" ", line) for line in self.old[at : at + CONTEXT_LINES]]

    def counts(self) -> tuple[int, int]:
        """Lines added, and removed."""
        blocks = [block for hunk in self.hunks for block in hunk]
        return sum(block[3] - block[2] for block in blocks), sum(block[1] - block[0] for block in blocks)

    def compose(self, chosen: Collection[int]) -> bytes:
        """The old content with the ``chosen`` hunks made."""
        parts, at = list[bytes](), 0
        for number, hunk in enumerate(self.hunks):
            if number in chosen:
                for old_start, old_end, new_start, new_end in hunk:
                    parts += self.old[at:old_start] + self.new[new_start:new_end]
                    at = old_end
        return b"".join(parts + self.old[at:])


def line_diff(before: bytes, after: bytes) -> LineDiff:
    """Compares two contents line by line. Only a line feed ends a line."""
    old, new = _lines(before), _lines(after)
    hunks: list[list[Block]] = []
    for block in _joined(_blocks(old, new)):
        if hunks and block[0] - hunks[-1][-1][1] <= 2 * CONTEXT_LINES:
            hunks[-1].append(block)
        else:
            hunks.append([block])
    return LineDiff(old, new, hunks)


def is_binary(data: bytes) -> bool:
    """Whether it is no text: as git does, a NUL in its beginning says so."""
    return b"\0" in data[:_BINARY_BYTES]


def _lines(data: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _shown(sign: str, line: bytes) -> str:
    text = line.removesuffix(b"\n").decode("utf-8", "replace").replace("\r", "\u240d")
    return f"{sign}{text}" if line.endswith(b"\n") else f"{sign}{text}\n\\ No newline at end of file"


def _blocks(old: list[bytes], new: list[bytes]) -> Iterator[Block]:
    """Lines that are in each content once, and in the same order, are equal; difflib compares what is between them."""
    head = shared_length(old, new)
    tail = shared_length(old[head:][::-1], new[head:][::-1])
    old_end, new_end = len(old) - tail, len(new) - tail
    at_old, at_new = head, head
    for anchor_old, anchor_new in [*_anchors(old, new, head, old_end, new_end), (old_end, new_end)]:
        yield from _gap(old, new, (at_old, anchor_old, at_new, anchor_new))
        at_old, at_new = anchor_old + 1, anchor_new + 1


def _anchors(old: list[bytes], new: list[bytes], start: int, old_end: int, new_end: int) -> list[tuple[int, int]]:
    """The longest run of pairs in order (patience sorting)."""
    in_old, in_new = Counter(old[start:old_end]), Counter(new[start:new_end])
    places = {line: at for at, line in enumerate(new[start:new_end], start) if in_new[line] == 1}
    ends: list[int] = []
    piles: list[tuple[int, int, int]] = []  # old line, new line, the pair before it
    last: list[int] = []
    for at, line in enumerate(old[start:old_end], start):
        if in_old[line] == 1 and (place := places.get(line)) is not None:
            pile = bisect_left(ends, place)
            ends[pile : pile + 1], last[pile : pile + 1] = [place], [len(piles)]
            piles.append((at, place, last[pile - 1] if pile else -1))
    pairs, number = list[tuple[int, int]](), last[-1] if last else -1
    while number >= 0:
        at, place, number = piles[number]
        pairs.append((at, place))
    return pairs[::-1]


def _gap(old: Sequence[bytes], new: Sequence[bytes], gap: Block) -> Iterator[Block]:
    old_start, old_end, new_start, new_end = gap
    left, right = old[old_start:old_end], new[new_start:new_end]
    if not left and not right:
        return
    counts = Counter(right)
    if max(len(left), len(right)) > _MAX_GAP_LINES or sum(counts[line] for line in left) > _MAX_PAIRS:
        yield gap
        return
    for tag, left_start, left_end, right_start, right_end in SequenceMatcher(None, left, right).get_opcodes():
        if tag != "equal":
            yield old_start + left_start, old_start + left_end, new_start + right_start, new_start + right_end


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Blocks that touch as one."""
    last: Block | None = None
    for block in blocks:
        if last and block[0] == last[1] and block[2] == last[3]:
            last = (last[0], block[1], last[2], block[3])
            continue
        if last:
            yield last
        last = block
    if last:
        yield last
