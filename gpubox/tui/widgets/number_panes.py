"""The panes of numbers. Their lines are made in modules that the first paint, without numbers, does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.tui.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from gpubox.telemetry.history import History
    from gpubox.telemetry.model import Snapshot
    from gpubox.tui.cells import Line


class VramPane(LinePane):
    """The VRAM split: one stacked bar a device that adds up to what the driver says."""

    def title(self, snapshot: Snapshot) -> str:
        from gpubox.tui.memory_view import title

        return title(snapshot)

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        from gpubox.tui import vram_view

        make = vram_view.small if self.compact else vram_view.lines
        return make(snapshot, width, self.app.no_color)


class OffloadPane(LinePane):
    """What the CPU carries: layers, RAM, threads, the PCIe link, and the part that the others wait for."""

    def title(self, snapshot: Snapshot) -> str:
        from gpubox.tui.offload_view import title

        return title(snapshot)

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        from gpubox.tui import offload_view

        return [offload_view.small(snapshot, width)] if self.compact else offload_view.lines(snapshot, width)


class ThroughputPane(LinePane):
    """How fast, now and over the last minutes; and where a prompt that is being read has come to."""

    own_height = False

    def __init__(self) -> None:
        super().__init__()
        self.history: History | None = None

    def title(self, snapshot: Snapshot) -> str:
        return "Throughput"

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        from gpubox.tui.throughput_lines import lines

        return lines(snapshot, self.history, width, height)
