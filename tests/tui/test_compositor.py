"""The compositor draws the same as Textual's, and asks for less."""

from __future__ import annotations

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip

from gpubox.tui.compositor import ThriftyCompositor
from tests.tui.conftest import on_dashboard, opened, settled, shows
from tests.tui.fake import FakeServices

CHANGES = (
    [Region(0, 0, 120, 1)],
    [Region(3, 2, 1, 1), Region(118, 35, 2, 1)],
    [Region(40, 1, 30, 34)],
    [Region(60, 20, 10, 1), Region(2, 20, 5, 1), Region(64, 4, 40, 2)],
    [Region(0, 0, 120, 36)],
)


def drawn(compositor: Compositor, kind: type[Compositor], regions: list[Region]) -> list[Strip]:
    """What ``kind`` draws in each span of ``regions``."""
    compositor.__class__ = kind
    compositor._dirty_regions.update(regions)
    update = compositor.render_partial_update()
    compositor.__class__ = ThriftyCompositor
    assert isinstance(update, ChopsUpdate)
    shown = []
    for y, begin, end in update.spans:
        line = update.chops[y].items()
        pieces = [(x, strip) for x, strip in line if strip and x < end and begin < x + strip.cell_length]
        first = pieces[0][0]
        shown.append(Strip.join([strip for _, strip in pieces]).crop(begin - first, end - first).simplify())
    return shown


async def test_draws_what_textual_draws(fake: FakeServices) -> None:
    async with on_dashboard(fake, size=(120, 36)) as pilot:
        await shows(pilot, "41°C")
        await settled(pilot)
        for key in ("", "question_mark"):  # the dashboard, then a dialog over it
            if key:
                await pilot.press(key)
                await opened(pilot)
            compositor = pilot.app.screen._compositor
            for regions in CHANGES:
                assert drawn(compositor, ThriftyCompositor, regions) == drawn(compositor, Compositor, regions)
