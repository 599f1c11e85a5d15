"""The requests of all launches as one list: stored ones below live ones, lines between launches, the filter. Pure.

``profile:x client:y day:today text``: words before a colon choose a field, all others must occur in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError

if TYPE_CHECKING:
    from gpubox.telemetry.history.values import StoredRequest
    from gpubox.telemetry.snapshot import Request

MAX_LISTED = 500
"""Requests in the list; a day or a profile in the filter reaches the older ones."""
SAME_SECONDS = 5.0
"""A live and a stored request of the same number and task that began within this time are one request."""
FIELDS = ("profile", "client", "day")


@dataclass(frozen=True, slots=True)
class ListedRequest:
    """A request of any launch. ``at``: when a slot began with it, unix seconds; ``client`` is empty if not known."""

    at: float
    profile: str
    client: str
    request: Request
    launch: int = 0
    """The id of its launch in the history; 0 or less: a launch that the history has not shown yet."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The line above the requests of an earlier launch or day. ``key``: the newest request below it."""

    text: str
    key: float


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """What a request must have to be listed. Empty: anything."""

    profile: str = ""
    client: str = ""
    day: date | None = None
    words: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != RequestFilter()

    @property
    def day_seconds(self) -> tuple[float, float] | None:
        """Start and end of the day in unix seconds; a day of a clock change has not 24 hours."""
        if self.day is None:
            return None
        start = datetime(self.day.year, self.day.month, self.day.day)
        return start.timestamp(), (start + timedelta(days=1)).timestamp()

    def matches(self, listed: ListedRequest) -> bool:
        """Whether the request has all of it, in any case."""
        if self.profile not in listed.profile.lower() or self.client not in listed.client.lower():
            return False
        if (day := self.day_seconds) and not day[0] <= listed.at < day[1]:
            return False
        request = listed.request
        texts = (listed.profile, listed.client, request.stop_reason, request.cache_miss)
        text = " ".join(filter(None, texts)).lower()
        return all(word in text for word in self.words)


def parse_filter(text: str, today: date) -> RequestFilter:
    """The filter that was typed. Raises GpuboxError for a day that is none."""
    fields: dict[str, str] = {}
    words: list[str] = []
    for word in text.lower().split():
        name, colon, value = word.partition(":")
        if colon and name in FIELDS:
            fields[name] = value
        else:
            words.append(word)
    day = _parse_day(fields["day"], today) if fields.get("day") else None
    return RequestFilter(fields.get("profile", ""), fields.get("client", ""), day, tuple(words))


def _parse_day(text: str, today: date) -> date:
    if text in ("today", "yesterday"):
        return today - timedelta(days=text == "yesterday")
    try:
        return date.fromisoformat(text)
    except ValueError:
        hint = "day:today, day:yesterday or day:2026-11-20"
        raise GpuboxError(f"{text} is no day: {hint}", hint) from None


def listed_live(
    requests: Iterable[Request], profile: str, client: Callable[[Request], str], launch: int
) -> list[ListedRequest]:
    """The requests of the server that runs; one without a time is left out."""
    listed = []
    for request in requests:
        try:
            at = datetime.fromisoformat(request.at).timestamp()
        except ValueError:
            continue
        listed.append(ListedRequest(at, profile, client(request), request, launch))
    return listed


def listed_stored(requests: Iterable[StoredRequest]) -> list[ListedRequest]:
    """The requests of the history."""
    return [ListedRequest(r.at, r.profile, r.client or "", r.request, r.launch) for r in requests]


def merge(live: Sequence[ListedRequest], stored: Iterable[ListedRequest]) -> list[ListedRequest]:
    """Both, the newest first, each request once: the live one, with the client and the end that the history knows.

    A moment is compared with a tolerance: of a log without times, each reader has its own. A log that was read after
    the fact does not show why an answer ended.
    """
    by_number: dict[tuple[int, int, int], list[int]] = {}
    merged: list[ListedRequest] = []
    launches: dict[int, int] = {}
    for listed in (*live, *stored):
        request = listed.request
        places = by_number.setdefault((request.number, request.task, request.slot), [])
        place = next((at for at in places if abs(merged[at].at - listed.at) <= SAME_SECONDS), None)
        if place is None:
            places.append(len(merged))
            merged.append(listed)
        else:
            if listed.launch > 0:
                launches[merged[place].launch] = listed.launch
            kept = merged[place]
            ended = replace(kept.request, stop_reason=kept.request.stop_reason or request.stop_reason)
            merged[place] = replace(kept, client=kept.client or listed.client, request=ended)
    merged = [replace(entry, launch=launches.get(entry.launch, entry.launch)) for entry in merged]
    merged.sort(key=lambda listed: listed.at, reverse=True)
    return merged


def with_launch_lines(listed: Sequence[ListedRequest], running: str, today: date) -> tuple[Request | LaunchLine, ...]:
    """The rows, with a line where another launch or another day begins. Launches that ran at once stand one by one.

    ``running``: the profile whose launch needs no line at the top.
    """
    order = {launch: place for place, launch in enumerate(dict.fromkeys(entry.launch for entry in listed))}
    listed = sorted(listed, key=lambda entry: order[entry.launch])
    rows: list[Request | LaunchLine] = []
    newer: ListedRequest | None = None
    for entry in listed:
        day = datetime.fromtimestamp(entry.at).date()
        if newer is None:
            begins = (entry.profile, day) != (running, today)
        else:
            begins = entry.launch != newer.launch or day != datetime.fromtimestamp(newer.at).date()
        if begins:
            rows.append(LaunchLine(f"{entry.profile or 'a server'} · {day_name(day, today)}", entry.at))
        rows.append(entry.request)
        newer = entry
    return tuple(rows)


def day_name(day: date, today: date) -> str:
    """``today``, ``yesterday``, ``Fri 20 Nov``; with its year if that is another one."""
    if day == today:
        return "today"
    if day == today - timedelta(days=1):
        return "yesterday"
    return f"{day:%a %d %b}" if day.year == today.year else f"{day:%d %b %Y}"
