"""Draws a screen for less: Textual asks every widget near a change for all its rows, also those that others cover."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip

Chops = list[dict[int, Any]]
"""For each line: the first cell of a piece between two edges of widgets -> the strip that is drawn there."""


class ThriftyCompositor(Compositor):
    """Asks a widget only for the rows of which a piece is drawn that no widget in front of it covers."""

    def render_partial_update(self) -> ChopsUpdate | None:
        dirty = self._dirty_regions.copy()
        self._dirty_regions.clear()
        if not dirty:
            return None
        spans = list(self._regions_to_spans(dirty))
        return ChopsUpdate(self._fill(spans), spans, [cut_set[1:] for cut_set in self.cuts])

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        return self._fill((y, crop.x, crop.right) for y in crop.line_range if is_rendered_line(y))

    def _fill(self, spans: Iterable[tuple[int, int, int]]) -> Chops:
        """``spans``: line, first cell and the cell after the last one of what is drawn."""
        cuts = self.cuts
        chops: Chops = [dict.fromkeys(edges[:-1]) for edges in cuts]
        missing: dict[int, set[int]] = {}
        for y, begin, end in spans:
            if y < len(cuts):
                pieces = {first for first, after in pairwise(cuts[y]) if first < end and begin < after}
                missing.setdefault(y, set()).update(pieces)
        for widget, (region, clip) in self.visible_widgets.items():  # the front one comes first
            shown = region.intersection(clip)
            first, last = shown.column_span
            lines = {y: asked for y in shown.line_range if y in missing and (asked := _within(missing[y], first, last))}
            if not lines:
                continue
            top, bottom = min(lines), max(lines) + 1
            rows = Region(shown.x - region.x, top - region.y, shown.width, bottom - top)
            strips = widget.render_lines(rows)
            for y, asked in lines.items():
                edges = [edge for edge in cuts[y] if first <= edge <= last]
                parts = strips[y - top].divide([edge - first for edge in edges[1:]])
                chops[y].update((edge, part) for edge, part in zip(edges, parts, strict=False) if edge in asked)
                missing[y] -= asked
                if not missing[y]:
                    del missing[y]
            if not missing:
                break
        return chops


def _within(edges: set[int], first: int, last: int) -> set[int]:
    return {edge for edge in edges if first <= edge < last}
