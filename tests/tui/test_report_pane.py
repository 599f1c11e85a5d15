"""The report pane: its scroll bar always matches its lines."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import App, ComposeResult

from gpubox.tui import theme
from gpubox.tui.styled_lines import StyledLine, styled_line
from gpubox.tui.widgets.lines import TitledPane


class OnePane(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.pane = TitledPane()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.variables(dark=True)

    def compose(self) -> ComposeResult:
        yield self.pane


def rows(count: int) -> Callable[[int], list[StyledLine]]:
    return lambda width: [styled_line(f"row {number}") for number in range(count)]


async def test_the_scroll_bar_has_the_size_of_the_new_lines_at_once() -> None:
    app = OnePane()
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause(0)
        for count in (65, 0, 200):
            app.pane.put(f"{count}", rows(count))
            assert app.pane.vertical_scrollbar.window_virtual_size == count
            await pilot.pause(0)
            assert app.pane.vertical_scrollbar.window_virtual_size == count
