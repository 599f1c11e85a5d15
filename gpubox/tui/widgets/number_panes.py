"""The panes of numbers. Their lines are made in modules that the first paint, without numbers, does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.tui.widgets.styled_lines import SnapshotPane

if TYPE_CHECKING:
    from gpubox.telemetry.history import History
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.styled_lines import StyledLine


class VramPane(SnapshotPane):
    """The VRAM split: one stacked bar a device that adds up to what the driver says."""

    def title(self, snapshot: Snapshot) -> str:
        from gpubox.tui.memory_view import title

        return title(snapshot)

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        from gpubox.tui.dashboard import vram

        make = vram.small if self.compact else vram.lines
        return make(snapshot, width, self.app.no_color)


class OffloadPane(SnapshotPane):
    """What the CPU carries: layers, RAM, threads, the PCIe link, and the part that the others wait for."""

    def title(self, snapshot: Snapshot) -> str:
        from gpubox.tui.dashboard.offload import title

        return title(snapshot)

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        from gpubox.tui.dashboard import offload

        return [offload.small(snapshot, width)] if self.compact else offload.lines(snapshot, width)


class ThroughputPane(SnapshotPane):
    """How fast, now and over the last minutes; and where a prompt that is being read has come to."""

    own_height = False

    def __init__(self) -> None:
        super().__init__()
        self.history: History | None = None

    def title(self, snapshot: Snapshot) -> str:
        return "Throughput"

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        from gpubox.tui.throughput_lines import lines

        return lines(snapshot, self.history, width, height)
