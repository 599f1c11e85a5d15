"""The first row of every screen: what runs, its state, where it answers, who can reach it, and the GPU's readings."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from gpubox.address import listening_url
from gpubox.engines.capabilities import engine_label
from gpubox.sanitize import sanitize_line
from gpubox.tui.messages import GatewaySummary, ServerOverview
from gpubox.tui.styled_lines import shorten
from gpubox.views.marks import STATE_WORDS

if TYPE_CHECKING:
    from gpubox.server.status import ServerStatus

SERVER_STATES = {
    "ready": ("●", "$success", "answers, and is not known to be busy"),
    "idle": ("●", "$success", "waits for a request"),
    "prefill": ("●", "$accent", "reads a prompt"),
    "answering": ("●", "$primary", "generates the answer"),
    "loading": ("◌", "$accent", "a model is being loaded"),
    "stopping": ("◌", "$accent", "is shutting down"),
    "sleeping": ("○", "$secondary", "released its memory; the next request wakes it"),
    "stopped": ("○", "$quiet", "nothing runs"),
    "down": ("○", "$quiet", "nothing answers"),
    "stuck": ("✗", "$error", "runs, but makes no progress"),
    "lost": ("✗", "$error", "runs, but the driver has lost a card that it uses"),
    "crashed": ("✗", "$error", "ended without a stop command"),
    "unreachable": ("✗", "$error", "its process runs, but its port does not answer"),
    "error": ("✗", "$error", "answers with an error"),
}
"""State of a server, or what it does (Throughput.state) -> glyph, colour and meaning."""
GAP = "   "
GPU_NAME, GPU_READINGS, GPU_LOST = 15, 45, 97
GPU_PRIORITIES = (GPU_NAME, GPU_READINGS, GPU_LOST)
"""Priorities of the parts at the right, beside the clock."""
ALWAYS_SHOWN = 90
"""Parts from this priority on are never dropped."""
NAME_CELLS = (30, 18, 12, 6, 0)
"""Widths of the profile's name, tried in this order on a narrow terminal."""
SPECIFIC_ACTIVITIES = {"prefill", "sleeping", "stuck", "lost"}
"""Activities that are shown instead of the states ``ready`` and ``answering``."""


def shown_state(status: ServerStatus, activity: str) -> str:
    """A key of SERVER_STATES. ``activity``: Throughput.state."""
    return activity if status.up and activity in SPECIFIC_ACTIVITIES else status.state


class StatusHeader(Widget):
    """One row. On a narrow terminal parts of low priority are dropped; the exposure to the network never is."""

    DEFAULT_CSS = "StatusHeader { height: 1; }"

    overview: reactive[ServerOverview | None] = reactive(None)
    clock: reactive[str] = reactive("")
    note: reactive[str] = reactive("")
    """``watching this server`` or ``recording``, if gpubox does not own what it shows."""
    bench: reactive[str] = reactive("")
    """The benchmark run under way: it causes traffic of its own."""
    trial: reactive[str] = reactive("")
    """The profile that is being tried, here or in another gpubox."""
    gateway: reactive[GatewaySummary | None] = reactive(None)
    """The gateway that runs: clients use its address, not the server's."""
    activity: reactive[str] = reactive("")
    """Throughput.state."""
    gpu_readings: reactive[tuple[tuple[str, str], ...]] = reactive(())
    """Name and readings of the cards: text and style."""
    stale: reactive[bool] = reactive(False)
    last: reactive[tuple[str, str, str]] = reactive(("", "", ""))
    """Profile, state and age of what the screen showed last, until something is known."""

    def copy_values(self, header: StatusHeader) -> None:
        """Shows what ``header`` shows."""
        self.overview, self.clock, self.stale, self.bench = header.overview, header.clock, header.stale, header.bench
        self.trial, self.gateway = header.trial, header.gateway
        self.gpu_readings, self.activity = header.gpu_readings, header.activity

    def render(self) -> RenderResult:
        width = self.size.width
        layouts = (self._parts(cells) for cells in NAME_CELLS)
        parts = next((parts for parts in layouts if _length(_essential(parts)) <= width), None)
        parts = parts or _essential(self._parts(None))
        while len(parts) > 1 and _length(parts) + len(self.clock) + len(GAP) > width:
            weakest = min(range(len(parts)), key=lambda i: parts[i][0])
            if parts[weakest][0] >= ALWAYS_SHOWN:
                break
            del parts[weakest]
        gpu = [content for priority, content in parts if priority in GPU_PRIORITIES]
        left = Content(GAP).join([content for priority, content in parts if priority not in GPU_PRIORITIES])
        right = Content(GAP).join([*gpu, Content.styled(self.clock, "$quiet")])
        if left.cell_length + right.cell_length + 1 > width:
            return Content(GAP).join([left, *gpu]).truncate(width, ellipsis=True)
        return left.pad_right(width - left.cell_length - right.cell_length) + right

    def _parts(self, name_cells: int | None) -> list[tuple[int, Content]]:
        """(priority, text) of every part. ``name_cells`` limits the profile's name; ``None`` drops name and state."""
        parts = [(20, Content.styled("gpubox", "bold $primary"))]
        if self.overview is None:
            name, state, age = self.last
            if not age:
                return [*parts, (90, Content.styled("· looking for the server", "$quiet"))]
            old = f"… {shorten(name, name_cells)} " if name and name_cells else "… "
            return [
                *parts,
                (99, Content.styled(f"{old}was {STATE_WORDS.get(state, state)}", "$quiet dim")),
                (98, Content.styled(age, "$quiet")),
            ]
        status = self.overview.status
        model = PurePath(status.model_path or "").name
        name = status.profile or (model if self.note else "")
        state = shown_state(status, self.activity)
        glyph, colour, _ = SERVER_STATES.get(state, ("?", "$warning", ""))
        what_runs: list[Any] = [(glyph, colour)]
        if name and name_cells:
            what_runs += [" ", (shorten(sanitize_line(name), name_cells), "bold")]
        if name_cells is not None:
            what_runs += [" ", (sanitize_line(STATE_WORDS.get(state, state)), colour)]
        parts.append((99, Content.assemble(*what_runs)))
        if self.note:
            parts.append((95, Content.styled(self.note, "$accent")))
        if self.trial:
            parts.append((94, Content.styled(f"◌ trying {sanitize_line(self.trial)}", "$accent")))
        if self.bench:
            parts.append((92, Content.styled(f"▶ {sanitize_line(self.bench)}", "$accent")))
        if status.profile and model:
            parts.append((10, Content.styled(shorten(sanitize_line(model), 36), "$quiet")))
        if status.engine_version:
            label = engine_label(status.engine_path, status.engine_version)
            parts.append((30, Content.styled(sanitize_line(label), "$quiet")))
        if status.base_url:
            address = sanitize_line(listening_url(status.base_url, status.exposed).removeprefix("http://"))
            parts.append((12, Content.styled(address, "$quiet")) if self.gateway else (60, Content(address)))
        if self.gateway:
            parts += _gateway_parts(self.gateway)
        if status.exposed:
            colour = exposed_style(has_key=status.has_api_key)
            parts.append((98, Content.assemble(("▲ ", colour), (status.exposed, f"bold {colour}"))))
        if self.overview.companions:
            companions = sanitize_line(", ".join(self.overview.companions))
            parts.append((40, Content.styled(f"+ {companions}", "$success")))
        if self.gpu_readings:
            dim = " dim" if self.stale else ""
            card, *readings = [(text, f"{style}{dim}".strip()) for text, style in self.gpu_readings]
            parts.append((GPU_NAME, Content.assemble(card)))
            if readings:
                priority = GPU_LOST if any("LOST" in text for text, _ in readings) else GPU_READINGS
                parts.append((priority, Content("  ").join([Content.assemble(reading) for reading in readings])))
        return parts


def exposed_style(*, has_key: bool) -> str:
    """The colour of what others can reach: ``has_key`` if it asks them for a key."""
    return "$warning" if has_key else "$error"


def _gateway_parts(gateway: GatewaySummary) -> list[tuple[int, Content]]:
    """The gateway's address, and loudly that it is paused, open to others, or does not answer."""
    address = sanitize_line(listening_url(gateway.base_url, gateway.exposed).removeprefix("http://"))
    parts = [(93, Content.assemble(("gateway ", "$quiet"), address))]
    if gateway.problem:
        parts.append((96, Content.styled(f"✗ {sanitize_line(gateway.problem)}", "$error")))
    if gateway.paused:
        parts.append((97, Content.styled(" ▐▐ PAUSED ", "bold reverse $warning")))
    if gateway.exposed:
        colour = exposed_style(has_key=gateway.has_keys)
        parts.append(
            (98, Content.assemble(("▲ ", colour), (f"gateway {sanitize_line(gateway.exposed)}", f"bold {colour}")))
        )
    return parts


def _essential(parts: list[tuple[int, Content]]) -> list[tuple[int, Content]]:
    return [part for part in parts if part[0] >= ALWAYS_SHOWN]


def _length(parts: list[tuple[int, Content]]) -> int:
    return sum(content.cell_length for _, content in parts) + len(GAP) * (len(parts) - 1)
