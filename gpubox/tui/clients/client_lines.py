"""The lines of the Clients screen: the gateway, its clients, and their last requests. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpubox import units
from gpubox.address import listening_url
from gpubox.gateway.gateway_status import (
    FinishedRequest,
    GatewayStatus,
    GatewaySwitch,
    LiveRequest,
    ProfileStatus,
)
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    StyledText,
    cell_width,
    first_that_fits,
    fit_by_priority,
    join_lines,
    pad_line,
    sanitize_to_width,
    styled_line,
    wrap,
    wrap_parts,
)
from gpubox.tui.widgets.header import exposed_style
from gpubox.views import clients as views

SPEED_SECONDS = 3.0
"""The tok/s of a running request are those of its last seconds."""
MIN_SPEED_SECONDS = 0.5
"""A shorter stretch gives no speed."""
GAP = "  "
RIGHT = {"reqs", "read", "reused", "out", "queue", "switch", "reading", "gen", "TTFT", "tg", "took"}
CLIENT_COLUMNS = (
    ("client", 14, 0), ("profile", 16, 4), ("state", 24, 0), ("reqs", 5, 7), ("read", 6, 3), ("reused", 6, 2),
    ("out", 6, 1), ("TTFT", 6, 5), ("tg", 5, 6),
)  # fmt: skip
"""Name, least width, and drop order on a narrow terminal: the highest number goes first, 0 never."""
REQUEST_COLUMNS = (
    ("time", 8, 0), ("client", 14, 0), ("profile", 16, 5), ("read", 5, 0), ("reused", 6, 0), ("out", 5, 0),
    ("queue", 6, 6), ("switch", 6, 7), ("reading", 7, 8), ("gen", 6, 9), ("TTFT", 6, 2), ("tg", 5, 3), ("took", 6, 4),
    ("end", 12, 0),
)  # fmt: skip
GROWS = {"state": 64, "end": 200}
"""The columns that get the room that is left, and how wide they become at most."""
STATE_MARKS = {
    "waiting": ("◌", "$accent"),
    "reading": ("●", "$accent"),
    "generating": ("●", "$primary"),
}
PROFILE_MARKS = {
    "up": ("●", "$success"), "starting": ("◌", "$accent"), "broken": ("✗", "$error"), "upstream": ("→", "$primary"),
    "down": ("○", QUIET),
}  # fmt: skip
END_STYLES = {"done": QUIET, "left": "$warning", "cancelled": "$warning", "failed": "$error", "refused": "$error"}


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client now."""

    usage: views.ClientUsage
    last: FinishedRequest | None
    """Its last request that is over, if it is among the last ones."""
    tokens_per_second: float | None = None
    """Of its running requests together."""

    @property
    def name(self) -> str:
        return self.usage.name

    @property
    def live(self) -> tuple[LiveRequest, ...]:
        return self.usage.live


class LiveSpeeds:
    """The tok/s of running requests, from what the gateway said of them in the last seconds."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        """By request: (seconds since it began, tokens)."""

    def feed(self, requests: Iterable[LiveRequest]) -> dict[int, float]:
        """The speed of each request that generates. A request that is over is forgotten."""
        samples, speeds = {}, {}
        for request in requests:
            if request.state != "generating" or request.generated_tokens is None:
                continue
            known = self._samples.get(request.id, deque())
            samples[request.id] = known
            if not known or known[-1][0] < request.seconds:
                known.append((request.seconds, request.generated_tokens))
            while len(known) > 2 and request.seconds - known[1][0] >= SPEED_SECONDS:
                known.popleft()
            if (speed := _speed(request, known)) is not None:
                speeds[request.id] = speed
        self._samples = samples
        return speeds


def _speed(request: LiveRequest, samples: deque[tuple[float, int]]) -> float | None:
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    if last_at - first_at >= MIN_SPEED_SECONDS:
        return (last - first) / (last_at - first_at)
    if request.ttft_seconds is None or last_at - request.ttft_seconds < MIN_SPEED_SECONDS:
        return None
    return (last - 1) / (last_at - request.ttft_seconds)


class ClientOrder:
    """The clients in an order that does not change while it is looked at: busy ones, then the last used; later ones
    below."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def forget(self) -> None:
        """Orders the clients anew at the next call."""
        self._names = []

    def rows(self, status: GatewayStatus, speeds: dict[int, float]) -> tuple[ClientRow, ...]:
        """A row for each client."""
        usages = {usage.name: usage for usage in views.collect_clients(status.clients, status.requests)}
        self._names = [name for name in self._names if name in usages]
        self._names += [name for name in usages if name not in self._names]
        last = {finished.client: finished for finished in reversed(status.finished)}
        rows = []
        for name in self._names:
            rates = [speeds[request.id] for request in usages[name].live if request.id in speeds]
            speed = sum(rates) if rates else None
            rows.append(ClientRow(usages[name], last.get(name), speed))
        return tuple(rows)


# -- the clients -----------------------------------------------------------------------------------------


def client_row(row: ClientRow, width: int) -> StyledLine:
    """One client in a line."""
    today = row.usage.sums
    profile = next((r.profile for r in row.live if r.profile), row.last.profile if row.last else "")
    texts: dict[str, tuple[str, str]] = {
        "client": (row.name, "bold" if row.live else ""),
        "profile": (profile or units.UNKNOWN, "" if row.live else QUIET),
        "reqs": (f"{today.requests:,}", "" if today.requests else QUIET),
        "read": (units.tokens(today.read_tokens), "" if today.read_tokens else QUIET),
        "reused": (units.tokens(today.cached_tokens), "" if today.cached_tokens else QUIET),
        "out": (units.tokens(today.generated_tokens), "" if today.generated_tokens else QUIET),
        "TTFT": (units.duration(today.ttft_seconds_median), ""),
        "tg": (units.rate(today.tg_tokens_per_second_median), "$primary"),
    }

    def cell(name: str, size: int) -> StyledLine:
        return client_state(row, size) if name == "state" else _text_cell(texts[name], name, size)

    return _row(_columns(CLIENT_COLUMNS, width), cell)


def client_state(row: ClientRow, width: int) -> StyledLine:
    """What the client does now: its requests, or how the last one ended."""
    errors, last_at = row.usage.sums.errors, row.usage.sums.last_at
    count = styled_line((f"{errors:,} error{'s' if errors != 1 else ''}", "$error")) if errors else ()
    if row.live:
        phrases = first_that_fits([_live_phrases(row), _live_phrases(row, short=True)], width)
        return fit_by_priority([(9, phrases), (1, count)], width, GAP)
    last = row.last
    if last is not None and last.outcome in ("failed", "refused"):
        return _end(last, width)
    idle = styled_line(("· idle", QUIET), (f", last {units.time_of_day(last_at)}" if last_at else "", QUIET))
    if not row.usage.sums.requests:
        idle = styled_line(("· no request yet", QUIET))
    return fit_by_priority([(1, idle), (9, count)], width, GAP)


def _live_phrases(row: ClientRow, *, short: bool = False) -> StyledLine:
    """``● generating 61.0 tok/s``; with several requests each state once, with its count. ``short``: no reasons."""
    parts = []
    for state in views.LIVE_STATES:
        requests = [request for request in row.live if request.state == state]
        if not requests:
            continue
        glyph, colour = STATE_MARKS[state]
        many = f"{len(requests)} " if len(row.live) > 1 else ""
        words = state if short and many else _live_words(row, requests, short=short)
        parts.append(styled_line((f"{glyph} ", colour), (f"{many}{words}", colour)))
    return join_lines(parts, GAP)


def _live_words(row: ClientRow, requests: list[LiveRequest], *, short: bool) -> str:
    oldest = max(requests, key=lambda request: request.seconds)
    tokens = [request.generated_tokens for request in requests if request.generated_tokens is not None]
    oldest = replace(oldest, generated_tokens=sum(tokens) if tokens else None)
    if short or len(requests) < len(row.live):  # several states share the cell: the shortest words
        held = oldest.waits_for is not None and oldest.waits_for.kind == "hold"
        oldest = replace(oldest, generated_tokens=None, waits_for=oldest.waits_for if held else None, profile="")
    return views.live_words(oldest, row.tokens_per_second)


# -- the requests ----------------------------------------------------------------------------------------


def request_line(request: FinishedRequest, width: int) -> StyledLine:
    """One finished request in a line."""
    texts: dict[str, tuple[str, str]] = {
        "time": (units.time_of_day(request.began_at), QUIET),
        "client": (request.client, ""),
        "profile": (request.profile or units.UNKNOWN, QUIET),
        "read": (units.tokens(request.read_tokens), ""),
        "reused": (units.tokens(request.cached_tokens), ""),
        "out": (units.tokens(request.generated_tokens), ""),
        **{head.lower(): (text, "") for head, text in zip(views.STAGE_HEADS, views.stage_texts(request), strict=True)},
        "TTFT": (units.duration(request.ttft_seconds), ""),
        "tg": (units.rate(request.tg_tokens_per_second), "$primary"),
        "took": (units.duration(request.seconds), ""),
    }
    no_tokens = request.prompt_tokens is None and request.generated_tokens is None
    is_error = request.outcome in ("failed", "refused") and no_tokens
    columns = _columns_with_words(width) if is_error else _columns(REQUEST_COLUMNS, width)

    def cell(name: str, size: int) -> StyledLine:
        return _end(request, size) if name in ("end", "words") else _text_cell(texts[name], name, size)

    return _row(columns, cell)


def live_line(request: LiveRequest, tokens_per_second: float | None, width: int) -> StyledLine:
    """One request that is not over in a line, with its number in the place of a time."""
    glyph, colour = STATE_MARKS[request.state]
    texts = {
        "time": (f"#{request.id}", QUIET),
        "client": (request.client, "bold"),
        "profile": (request.profile or units.UNKNOWN, ""),
    }
    short = request.waits_for and replace(request.waits_for, behind=())
    words = (views.live_words(each, tokens_per_second) for each in (request, replace(request, waits_for=short)))
    says = [((f"{glyph} {text}", colour),) for text in words]
    return _row(
        _columns_with_words(width),
        lambda name, size: first_that_fits(says, size) if name == "words" else _text_cell(texts[name], name, size),
    )


def _columns_with_words(width: int) -> list[tuple[str, int]]:
    """The first columns of a request; the rest of the line is one text."""
    columns = [column for column in _columns(REQUEST_COLUMNS, width) if column[0] in ("time", "client", "profile")]
    return [*columns, ("words", width - sum(size + len(_gap(name)) for name, size in columns) - 1)]


def _end(request: FinishedRequest, width: int) -> StyledLine:
    """How a request ended; an error has a mark, a word and its status."""
    style = END_STYLES.get(request.outcome, "$error")
    if request.outcome == "done":
        return styled_line((views.end_words(request), style))
    words = views.end_words(request)
    text = f"{'✗ ' if style == '$error' else ''}{words}"
    texts = [f"{text}: {sanitize_line(request.error)}", f"{text}, ⏎ why"] if request.error else []
    return first_that_fits([((each, style),) for each in (*texts, text)], width)


def request_fields(request: FinishedRequest | LiveRequest) -> list[tuple[str, str]]:
    """Everything known of a request: (name, value)."""
    begin = [
        ("client", sanitize_to_width(request.client, 60)),
        ("profile", sanitize_to_width(request.profile, 60) or "none"),
        ("path", sanitize_to_width(request.path, 60)),
    ]
    times = [
        *zip(map(str.lower, views.STAGE_HEADS), views.stage_texts(request), strict=True),
        ("TTFT", f"{units.duration(request.ttft_seconds)} as the client saw it"),
        ("took", units.duration(request.seconds)),
    ]
    if isinstance(request, LiveRequest):
        return [("number", str(request.id)), *begin, ("now", sanitize_line(views.live_words(request))), *times]
    return [
        ("started", units.time_of_day(request.began_at)),
        *begin,
        ("status", f"{request.status}" if request.status else "none: the client left before"),
        ("end", f"{views.end_words(request)}{', streamed' if request.stream else ''}"),
        ("prompt", f"{_count(request.prompt_tokens)} tokens"),
        ("reused", f"{_count(request.cached_tokens)} tokens"),
        ("read", f"{_count(request.read_tokens)} tokens"),
        ("generated", f"{_count(request.generated_tokens)} tokens"),
        *times,
        ("tg", f"{units.rate(request.tg_tokens_per_second)} tok/s, by the server"),
        ("error", sanitize_line(request.error) or "none"),
    ]


def _count(value: int | None) -> str:
    return units.UNKNOWN if value is None else f"{value:,}"


# -- the gateway -----------------------------------------------------------------------------------------


def gateway_lines(status: GatewayStatus, width: int) -> list[StyledLine]:
    """The gateway: its address and state, a problem, its profiles, and what it did lately."""
    problem = sanitize_line(f"✗ {' '.join(status.problems)}") if status.problems else ""
    lately = sanitize_line(next(iter(status.kept_kv), ""))
    return [
        _address_line(status, width),
        *(wrap(((problem, "$error"),), width) if problem else ()),
        *_profiles_lines(status, width),
        *(wrap(((lately, QUIET),), width) if lately else ()),
    ]


def _address_line(status: GatewayStatus, width: int) -> StyledLine:
    live, waiting = len(status.requests), sum(request.state == "waiting" for request in status.requests)
    requests = f"{live} request{'s' if live != 1 else ''} now" + (f", {waiting} waiting" if waiting else "")
    reach = styled_line(("this machine only", QUIET), (", keys" if status.has_keys else ", no keys", QUIET))
    if status.exposed:
        colour = exposed_style(has_key=status.has_keys)
        reach = styled_line(("▲ ", colour), (sanitize_line(status.exposed), f"bold {colour}"))
    paused = styled_line((" ▐▐ PAUSED ", "bold reverse $warning"), (" the menu (x) resumes it", "$warning"))
    return fit_by_priority(
        [
            (9, styled_line((sanitize_line(listening_url(status.base_url, status.exposed)), "bold"))),
            (10, paused if status.paused else ()),
            (8, reach),
            (7, styled_line((requests, "" if live else QUIET))),
        ],
        width,
    )


def _profiles_lines(status: GatewayStatus, width: int) -> list[StyledLine]:
    """The profiles that are loaded, being loaded or broken; the others only by number."""
    order = {"starting": 0, "up": 1, "broken": 2, "upstream": 3}
    shown = sorted((p for p in status.profiles if p.state in order), key=lambda p: order[p.state])
    operations = {operation.profile: operation for operation in status.operations}
    parts = [_profile_part(profile, operations) for profile in shown]
    starting = {profile.name for profile in shown if profile.state == "starting"}
    others = [operation for operation in status.operations if operation.profile not in starting]
    parts[:0] = [styled_line(("◌ ", "$accent"), (operation_text(each), "$accent")) for each in others]
    rest = len(status.profiles) - len(shown)
    text = f"{rest} profile{'s' * (rest != 1)} not loaded"
    text = text if shown else "no profile is loaded; the first request loads one"
    return wrap_parts([*parts, styled_line((text if rest or not shown else "", QUIET))], width)


def _profile_part(profile: ProfileStatus, operations: Mapping[str, GatewaySwitch]) -> StyledLine:
    glyph, colour = PROFILE_MARKS[profile.state]
    words = {"up": "", "upstream": "elsewhere"}.get(profile.state, profile.state)
    counts = [
        f"{profile.running} running" if profile.running else "",
        f"{profile.waiting} waiting" if profile.waiting else "",
    ]
    details = [words, *counts, "pinned" if profile.pinned else ""]
    if profile.state == "starting" and profile.name in operations:
        operation = operations[profile.name]
        details = [f"{step_text(operation)}{_asked(operation)}", *counts]
    elif profile.state == "broken" and profile.message:
        details = [f"broken: {sanitize_line(profile.message)}"]
    elif profile.unload_seconds is not None and not profile.running:
        details.append(f"unloads in {units.rough_duration(profile.unload_seconds)}")
    style = "$error" if profile.state == "broken" else QUIET
    return styled_line((f"{glyph} ", colour), (sanitize_to_width(profile.name, 24), "bold"),
                       (f" {', '.join(filter(None, details))}".rstrip(), style))  # fmt: skip


def operation_text(operation: GatewaySwitch) -> str:
    """``switch to b, asked by opencode``."""
    kind = "switch to" if operation.displaces else operation.kind
    return f"{kind} {sanitize_to_width(operation.profile, 24)}{_asked(operation)}"


def _asked(operation: GatewaySwitch) -> str:
    return f", asked by {sanitize_to_width(operation.asked_by, 24)}" if operation.asked_by else ""


def operation_step(operation: GatewaySwitch) -> str:
    """The step under way in a word or two."""
    return {"": "plan", "begin": "plan", "wait": "waits"}.get(operation.step) or sanitize_line(operation.step)


def step_text(operation: GatewaySwitch) -> str:
    """``load, 3 s so far``."""
    return f"{operation_step(operation)}, {units.rough_duration(operation.seconds)} so far"


# -- columns ---------------------------------------------------------------------------------------------


def column_line(columns: Sequence[tuple[str, int, int]], width: int) -> StyledLine:
    """The line above the rows."""
    return _row(_columns(columns, width), lambda name, size: _text_cell((name, QUIET), name, size))


def _columns(columns: Sequence[tuple[str, int, int]], width: int) -> list[tuple[str, int]]:
    """The columns that fit into ``width``: (name, width)."""
    kept = list(columns)
    while sum(size + len(_gap(name)) for name, size, _ in kept) > width and max(order for _, _, order in kept) > 0:
        del kept[max(range(len(kept)), key=lambda index: kept[index][2])]
    spare = width - sum(size + len(_gap(name)) for name, size, _ in kept)
    return [(name, max(1, min(GROWS[name], size + spare)) if name in GROWS else size) for name, size, _ in kept]


def _gap(name: str) -> str:
    return "" if name in ("time",) else GAP if name in RIGHT or name in GROWS else " "


def _text_cell(text: tuple[str, str], name: str, size: int) -> StyledLine:
    shown = sanitize_to_width(text[0], size)
    if name in RIGHT:
        shown = " " * (size - cell_width(((shown, ""),))) + shown
    return pad_line(styled_line((shown, text[1])), size)


def _row(columns: Sequence[tuple[str, int]], cell: Callable[[str, int], StyledLine]) -> StyledLine:
    texts: list[StyledText] = []
    for at, (name, size) in enumerate(columns):
        texts += [(_gap(name) if at else "", ""), *pad_line(cell(name, size), size)]
    return styled_line(*texts)
