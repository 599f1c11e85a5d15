"""The list of the models screen: models on this machine, then repositories of Hugging Face with their quants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpubox import units
from gpubox.planner.verdict import judge
from gpubox.tui.styled_lines import StyledLine, marked, pad_line, sanitize_to_width, styled_line
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.views.marks import MEMORY
from gpubox.views.memory import short_words

if TYPE_CHECKING:
    from gpubox.models.hub_search import HubQuant, HubRepository
    from gpubox.models.local_models import LocalModel
    from gpubox.planner.plan import MemoryPlan

_NAME_CELLS, _SIZE_CELLS, _PLACE_CELLS, _WORDS_CELLS = 34, 8, 12, 24


@dataclass(frozen=True, slots=True)
class FinderRow:
    """One line of the list."""

    kind: Literal["heading", "local", "repository", "quant"]
    key: str
    title: str
    local: LocalModel | None = None
    repository: HubRepository | None = None
    quant: HubQuant | None = None
    plan: MemoryPlan | None = None
    planning: bool = False
    """Whether its plan is still to come."""
    on_disk: bool = False


class FinderRows(CursorRows[FinderRow]):
    """The rows. Enter downloads a quant, or makes a profile of what is here."""

    DEFAULT_CSS = "FinderRows { overflow-y: auto; scrollbar-size-vertical: 1; }"
    EMPTY_TEXT = "No models yet. / searches this machine and Hugging Face."
    CURSOR_RETURNS_TO_TOP = False
    CURSOR_STYLES = ("on $cursor", "on $line")

    def key(self, value: FinderRow) -> Hashable:
        return value.key

    def make_row(self, value: FinderRow, width: int) -> StyledLine:
        if value.kind == "heading":
            return styled_line((sanitize_to_width(value.title, width), "bold $secondary"))
        if value.kind == "repository" and value.repository:
            repository = value.repository
            facts = [repository.updated, "gated" if repository.gated else ""]
            if repository.downloads is not None:
                facts.insert(0, f"{repository.downloads:,} downloads")
            shown = "  ".join(filter(None, facts))
            return styled_line((sanitize_to_width(repository.name, width - 2), "bold"), "  ", (shown, "$quiet"))
        return _model_row(value, width)


def _model_row(row: FinderRow, width: int) -> StyledLine:
    mark, colour = ("◌", "$quiet") if row.planning else ("·", "$quiet")
    words, words_style = ("reading the header …", "$quiet") if row.planning else ("", "")
    if row.plan:
        mark, colour = marked(MEMORY[judge(row.plan).fit])
        words = short_words(row.plan)
    size = row.local.size_bytes if row.local else row.quant.size_bytes if row.quant else None
    place = row.local.place if row.local else "on disk" if row.on_disk else _shards(row.quant)
    place_cells = _PLACE_CELLS if width >= 72 else 0
    if row.on_disk and not place_cells:
        words = f"on disk, {words}"
    beside = 6 + _SIZE_CELLS + (place_cells + 2 if place_cells else 0)
    name_cells = max(12, min(_NAME_CELLS, width - beside - _WORDS_CELLS))
    name = pad_line(styled_line(sanitize_to_width(row.title, name_cells)), name_cells)
    placed = pad_line(styled_line((sanitize_to_width(place, place_cells), "$secondary")), place_cells)
    left = (*styled_line("  ", (mark, colour), " "), *name, (f"{units.file_size(size):>{_SIZE_CELLS}}  ", ""))
    middle = (*placed, ("  ", "")) if place_cells else ()
    return (*left, *middle, (sanitize_to_width(words, max(0, width - beside - name_cells)), words_style))


def _shards(quant: HubQuant | None) -> str:
    return f"{len(quant.files)} shards" if quant and len(quant.files) > 1 else ""
