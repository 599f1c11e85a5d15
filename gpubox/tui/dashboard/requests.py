"""The requests pane: finished requests of all launches, newest first, one line each; and every field of one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import on
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    cell_width,
    join_lines,
    pad_line,
    sanitize_to_width,
    styled_line,
)
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.form import FilterLine
from gpubox.tui.widgets.lines import SingleLine
from gpubox.views.requests import end_words, miss_words, request_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpubox.gateway.gateway_status import FinishedRequest
    from gpubox.gateway.request_clients import RequestClients, RequestKey
    from gpubox.telemetry.history.values import StoredRequest
    from gpubox.telemetry.snapshot import Request
    from gpubox.tui.dashboard.request_history import LaunchLine, ListedRequest, RequestFilter

COLUMNS = (
    ("time", 8, 0), ("client", 9, 0), ("slot", 4, 6), ("read", 7, 0), ("reused", 6, 0), ("out", 5, 0), ("TTFT", 6, 3),
    ("pp", 5, 7),
    ("tg", 5, 1), ("draft", 5, 2), ("took", 6, 5), ("end", 9, 4),
)  # fmt: skip
"""Name, width, and drop order on a narrow terminal: the highest number goes first, 0 never."""
RIGHT_ALIGNED = {"read", "reused", "out", "TTFT", "pp", "tg", "draft", "took"}
GAP = "  "
MIN_END_CELLS = 21
"""Width of the end column that the pp column must leave free, for the reason of a cache miss."""
TITLE, NO_MATCH = "Requests", "No request matches. esc shows all."
UNREADABLE = "the earlier requests cannot be read; [ in the menu (x) says why"
FILTER_HINT = "profile:x client:y day:today or 2026-11-20, and any text"


class RequestRows(CursorRows["Request | LaunchLine"]):
    """The lines; Enter opens one."""

    EMPTY_TEXT = "No requests yet. o connects a client, c opens the chat."
    KEY = "key"
    CURSOR_RETURNS_TO_TOP = True

    clients: Mapping[RequestKey, str] | None = None
    """Who sent a request, as far as that is certain; ``None``: nobody knows, and there is no such column."""

    def make_row(self, value: Request | LaunchLine, width: int) -> StyledLine:
        from gpubox.tui.dashboard.request_history import LaunchLine  # late, as everywhere here: not for the first paint

        if isinstance(value, LaunchLine):
            return launch_row(value, width)
        return request_row(value, width, self.clients)

    def action_open(self) -> None:
        from gpubox.tui.dashboard.request_history import LaunchLine

        if not isinstance(self.value, LaunchLine):
            super().action_open()


class RequestsPane(Vertical):
    """The rows under their column names, and the line that filters them."""

    DEFAULT_CSS = """
    RequestsPane #column-names { padding: 0; }
    #request-filter { background: $panel; height: 1; }
    """

    class FilterChanged(Message):
        """Another filter: the history has to be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.column_names, self.rows = SingleLine("column-names"), RequestRows()
        self.filter = FilterLine("request-filter", FILTER_HINT, self.rows)
        self.clock: Callable[[], datetime] = datetime.now
        """The time of the owner's zone."""
        self.problem = ""
        """Why the history cannot be read."""
        self._matches: RequestClients | None = None
        self._profile = ""
        self._live: tuple[Request, ...] = ()
        self._total: int | None = None
        self._launch, self._launch_key = 0, ""
        """Of the live requests: 0, and one less with each new launch; and what tells that launch from others."""
        self._ended: list[ListedRequest] = []
        """Of launches that ended while this screen was open: they may not be stored yet."""
        self._stored: list[ListedRequest] = []
        self._searched = 0
        self._shown_of: tuple[object, ...] = ()
        self._listed: dict[RequestKey, ListedRequest] = {}
        self._count = 0
        """Requests in the list, without the lines between them."""
        self._counts = (TITLE, "")

    def mount_content(self) -> None:
        """Mounts the content; called after the first paint."""
        self.mount(self.filter, self.column_names, self.rows)

    def show_clients(self, finished: tuple[FinishedRequest, ...]) -> None:
        """Names the clients of the requests after what the gateway has finished."""
        if self._matches is None:
            from gpubox.gateway.request_clients import RequestClients

            self._matches = RequestClients()
        self._matches.add(finished)
        self._show()

    def client(self, request: Request) -> str:
        """Who sent it; empty if that is not certain."""
        return (self.rows.clients or {}).get(request.key, "")

    def profile(self, request: Request) -> str:
        """The profile whose server answered it."""
        listed = self._listed.get(request.key)
        return listed.profile if listed else self._profile

    def show_requests(self, requests: tuple[Request, ...], total: int | None, profile: str, launch: str) -> None:
        """Shows ``requests`` of the server of ``profile``; ``total`` counts all since the server started.

        ``launch`` tells its launch from all others.
        """
        if not self.rows.is_attached:
            return
        if self._live and launch != self._launch_key:
            from gpubox.tui.dashboard.request_history import MAX_LISTED, listed_live, merge

            ended = listed_live(self._live, self._profile, self.client, self._launch)
            self._launch -= 1
            self._ended = merge(ended, self._ended)[:MAX_LISTED]
        self._live, self._total, self._profile, self._launch_key = requests, total, profile, launch
        self._show()

    def show_stored(self, answer: tuple[Sequence[StoredRequest], int]) -> None:
        """Shows what the history has for the filter, and how many it searched if that were not all; 0: all."""
        from gpubox.tui.dashboard.request_history import listed_stored

        requests, self._searched = answer
        self._stored, self._shown_of = listed_stored(requests), ()
        self._show()

    def show_problem(self, problem: str) -> None:
        """Shows that the history cannot be read; what was read before stays."""
        if problem != self.problem:
            self.problem = problem
            self._show()

    # -- the filter ---------------------------------------------------------------------------------

    @property
    def wanted(self) -> RequestFilter:
        """The filter that was typed; without the day if that is none."""
        return self._parsed()[0]

    def _parsed(self) -> tuple[RequestFilter, str]:
        """The filter, and what is wrong with it."""
        from gpubox.tui.dashboard.request_history import parse_filter

        text, today = self.filter.value, self._today()
        try:
            return parse_filter(text, today), ""
        except GpuboxError as error:
            words = [word for word in text.split() if not word.lower().startswith("day:")]
            return parse_filter(" ".join(words), today), str(error)

    def _today(self) -> date:
        return self.clock().date()

    @on(Input.Changed, "#request-filter")
    def _filter_changed(self) -> None:
        self._show()
        self.post_message(self.FilterChanged())

    # -- the rows -----------------------------------------------------------------------------------

    def _show(self) -> None:
        """Brings rows, clients, column names and subtitle up to date; cheap if nothing has changed."""
        if not self.rows.is_attached:
            return
        names = self._matches.names(self._live, self._profile) if self._matches else None
        shown_of = (self._live, names, self._profile, self.filter.value, self._today(), self.problem)
        if self._shown_of and all(a is b or a == b for a, b in zip(shown_of, self._shown_of, strict=True)):
            self._show_counts()
            return
        self._shown_of = shown_of
        from gpubox.tui.dashboard import request_history as history

        (wanted, _), live_names = self._parsed(), names or {}
        live = history.listed_live(self._live, self._profile, lambda r: live_names.get(r.key, ""), self._launch)
        listed = history.merge([*live, *self._ended], self._stored)
        if wanted:
            listed = [entry for entry in listed if wanted.matches(entry)]
        running = self._profile if self._live else ""
        shown = listed[: history.MAX_LISTED]
        values, self._count = history.with_launch_lines(shown, running, self._today()), len(shown)
        if self.problem:
            values = (*values, history.LaunchLine(UNREADABLE, -1.0))
        self._listed = {entry.request.key: entry for entry in listed}
        self._name_clients(names)
        empty = NO_MATCH if wanted else ""
        if empty != self.rows.empty_text:
            self.rows.empty_text = empty
            self.rows.redraw()
        self.rows.show_values(values)
        self._show_column_names()
        self._show_counts()

    def _name_clients(self, live: Mapping[RequestKey, str] | None) -> None:
        """The clients of the live requests, and those that the history knows."""
        stored = {key: entry.client for key, entry in self._listed.items() if entry.client}
        names = {**stored, **(live or {})} if stored or live is not None else None
        if names != self.rows.clients:
            self.rows.clients = names
            self.rows.redraw()

    def _show_counts(self) -> None:
        """How many match stands in the title, which a narrow terminal has, too; all others at the foot."""
        from gpubox.tui.dashboard.request_history import MAX_LISTED

        wanted, mistake = self._parsed()
        title, subtitle, more = TITLE, "", "+" if self._count >= MAX_LISTED else ""
        if mistake:
            title = f"{TITLE}: {sanitize_to_width(mistake, max(10, self.size.width - len(TITLE) - 8))}"
        elif wanted:
            of = f" of the last {self._searched:,}" if self._searched else ""
            title = f"{TITLE}, {self._count:,}{more}{of} {'matches' if self._count == 1 else 'match'}"
        else:
            earlier = self._count - len(self._live)
            live = f"{len(self._live) if self._total is None else self._total:,}" if self._live else ""
            subtitle = ", ".join(filter(None, (live, f"{earlier:,}{more} earlier" if earlier > 0 else "")))
        if (title, subtitle) != self._counts:
            self._counts = title, subtitle
            self.border_title, self.border_subtitle = Content(title), subtitle

    @on(RequestRows.Resized)
    def _show_column_names(self) -> None:
        names = column_names(self.rows.size.width, with_client=self.rows.clients is not None)
        self.column_names.show([names] if self._listed else [])


# -- lines ----------------------------------------------------------------------------------------------


def _columns(width: int, with_client: bool) -> list[tuple[str, int]]:
    """The columns that fit into ``width``: (name, width)."""
    kept = [column for column in COLUMNS if with_client or column[0] != "client"]
    while len(kept) > 5 + with_client:
        needed = sum(size + len(_gap_before(name)) for name, size, _ in kept)
        if any(name == "pp" for name, _, _ in kept):
            needed += MIN_END_CELLS - COLUMNS[-1][1]
        if needed <= width:
            break
        del kept[max(range(len(kept)), key=lambda i: kept[i][2])]
    return [(name, size) for name, size, _ in kept]


def _gap_before(name: str) -> str:
    """One cell where two neighbouring columns cannot be read as one."""
    return "" if name == "time" else GAP if name in RIGHT_ALIGNED - {"read", "reused", "out", "TTFT"} else " "


def _with_gaps(cells: list[tuple[str, StyledLine]]) -> StyledLine:
    return styled_line(*(text for name, cell in cells for text in ((_gap_before(name), ""), *cell)))


def _cell(text: str, style: str, name: str, size: int) -> StyledLine:
    return pad_line(styled_line((text.rjust(size) if name in RIGHT_ALIGNED else text, style)), size)


def column_names(width: int, *, with_client: bool = False) -> StyledLine:
    """The line above the rows."""
    return _with_gaps([(name, _cell(name, QUIET, name, size)) for name, size in _columns(width, with_client)])


def launch_row(line: LaunchLine, width: int) -> StyledLine:
    """``── qwen36-256k · yesterday ─────``: the requests below are of another launch or day."""
    text = f"── {sanitize_to_width(line.text, max(0, width - 6))} "
    return styled_line((text, QUIET), ("─" * (width - cell_width(((text, ""),))), "$line"))


def request_row(request: Request, width: int, clients: Mapping[RequestKey, str] | None = None) -> StyledLine:
    """One request. ``↻`` marks a prompt that was read again although the cache should have held it."""
    columns, words = _columns(width, clients is not None), request_words(request)
    reread = "↻ " if request.cache_miss and request.read_tokens is not None else ""
    values = {
        "time": (units.time_of_day(request.at), QUIET),
        "client": (sanitize_to_width((clients or {}).get(request.key), 9), "$secondary"),
        "slot": (str(request.slot), QUIET),
        **{name: (text, "$primary" if name == "tg" else "") for name, text in words.items()},
        "read": (f"{reread}{words['read']}", "$warning" if request.cache_miss else ""),
    }
    cells = [(name, _cell(*values[name], name, size)) for name, size in columns if name != "end"]
    if len(cells) < len(columns):
        taken = sum(size + len(_gap_before(name)) for name, size in columns if name != "end")
        cells.append(("end", _end(request, width - taken - len(_gap_before("end")))))
    return _with_gaps(cells)


def _end(request: Request, room: int) -> StyledLine:
    """The stop reason, then the cause of a cache miss; a kept KV cache that was reused hides an ordinary stop."""
    misses = [f"↻ {cause}" for cause in miss_words(sanitize_line(request.cache_miss))] if request.cache_miss else []
    if request.restored_tokens and request.stop_reason in (None, "stop"):
        return styled_line(("kept KV", "$success"))
    style = "$warning" if request.stop_reason in ("context full", "cancelled", "length", "error") else QUIET
    end = styled_line((_fitting([sanitize_line(words) for words in end_words(request)], room), style))
    return join_lines([end, styled_line((_fitting(misses, room - cell_width(end) - len(GAP)), "$warning"))], GAP)


def _fitting(texts: Iterable[str], room: int) -> str:
    """The first text that fits whole; empty if none does."""
    return next((text for text in texts if cell_len(text) <= room), "")


def request_fields(request: Request, client: str = "", profile: str = "") -> list[tuple[str, str]]:
    """Everything known of a request: (name, value). ``client``: who sent it through the gateway."""
    acceptance = units.UNKNOWN
    if request.draft_acceptance is not None:
        acceptance = f"{request.draft_acceptance:.1%} ({request.draft_tokens_accepted:,} of {request.draft_tokens:,})"
    queued = f"{units.UNKNOWN} (the log does not show its arrival)"
    if request.queue_seconds is not None:
        queued = f"{units.duration(request.queue_seconds)} for slot {request.slot}"
    ttft = units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds)
    length = request.mean_accepted_length
    positions = "  ".join(f"{at}: {share:.0%}" for at, share in enumerate(request.accepted_per_position, 1))
    pp, tg = units.rate(request.pp_tokens_per_second), units.rate(request.tg_tokens_per_second)
    stop_reason = request.stop_reason
    return [
        *([("profile", sanitize_to_width(profile, 60))] if profile else []),
        *([("client", sanitize_to_width(client, 60))] if client else []),
        ("started", units.local_time(request.at, "%a %d %b %Y, %H:%M:%S")),
        ("slot, task", f"{request.slot}, {request.task}"),
        ("prompt", f"{_count(request.prompt_tokens)} tokens"),
        ("reused", f"{_count(request.cached_tokens)} tokens"),
        ("read", f"{_count(request.read_tokens)} tokens"),
        *([("kept KV", f"{request.restored_tokens:,} tokens put back, reused")] if request.restored_tokens else []),
        ("reread", sanitize_line(request.cache_miss) if request.cache_miss else "no"),
        ("generated", f"{_count(request.generated_tokens)} tokens"),
        ("waited", queued),
        ("TTFT", f"{ttft} from its arrival at the server"),
        ("pp", f"{pp} tok/s over {units.duration(request.prompt_seconds)}"),
        ("tg", f"{tg} tok/s over {units.duration(request.generation_seconds)}"),
        ("draft accepted", acceptance),
        ("tokens per step", f"{length:.2f}" if length is not None else units.UNKNOWN),
        ("per draft position", positions or units.UNKNOWN),
        (
            "ended",
            sanitize_line(end_words(request)[0]) if stop_reason else f"{units.UNKNOWN} (the log does not show it)",
        ),
        ("took", units.duration(request.duration_seconds)),
    ]


def _count(value: int | None) -> str:
    return units.UNKNOWN if value is None else f"{value:,}"
