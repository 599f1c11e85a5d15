"""A history that a test controls: a month of one box, with a gap, a crash, an engine update and a slowdown."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpubox.errors import GpuboxError
from gpubox.telemetry.history.values import (
    HistoryBucket,
    Slowdown,
    StoredLaunch,
    StoredMark,
    StoredRequest,
    UsageKey,
    UsageSum,
)
from tests.tui.snapshots import REQUESTS

NOON = datetime(2026, 11, 21, 13, 2, tzinfo=UTC).timestamp()
"""The clock of FakeServices."""
MINUTE, HOUR, DAY = 60, 3600, 86_400


@dataclass
class FakeHistory:
    """Answers from lists, as HistoryQueries does from its file. ``asked`` lists the names of the queries."""

    minutes: dict[int, HistoryBucket] = field(default_factory=dict)
    """By unix minute; a minute that is absent was not observed."""
    stored_marks: list[StoredMark] = field(default_factory=list)
    stored_requests: list[StoredRequest] = field(default_factory=list)
    found_slowdowns: list[Slowdown] = field(default_factory=list)
    problem: GpuboxError | None = None
    asked: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def _called(self, name: str) -> None:
        self.asked.append(name)
        self.threads.add(threading.get_ident())
        if self.problem:
            raise self.problem

    def buckets(self, since: float, until: float, count: int) -> list[HistoryBucket]:
        self._called("buckets")
        width = (until - since) / count
        return [_mean(since + i * width, self._minutes(since + i * width, width)) for i in range(count)]

    def _minutes(self, since: float, seconds: float) -> list[HistoryBucket]:
        every = range(int(since // MINUTE), int((since + seconds) // MINUTE))
        return [self.minutes[minute] for minute in every if minute in self.minutes]

    def marks(self, since: float, until: float) -> list[StoredMark]:
        self._called("marks")
        return [mark for mark in self.stored_marks if since <= mark.at < until]

    def requests(
        self, since: float, until: float, profile: str | None = None, client: str | None = None, limit: int = 500
    ) -> list[StoredRequest]:
        self._called("requests")
        chosen = [
            r
            for r in self.stored_requests
            if since <= r.at < until and profile in (None, r.profile) and client in (None, r.client)
        ]
        return sorted(chosen, key=lambda r: -r.at)[:limit]

    def launches(self, since: float, until: float) -> list[StoredLaunch]:
        self._called("launches")
        return [
            StoredLaunch(number, profile, since, None, until, "", "", "", "", ())
            for number, profile in enumerate(sorted({r.profile for r in self.stored_requests}))
        ]

    def clients(self, since: float, until: float) -> list[str]:
        self._called("clients")
        return sorted({r.client for r in self.stored_requests if r.client and since <= r.at < until})

    def sums(self, since: float, until: float, by: UsageKey) -> list[UsageSum]:
        self._called("sums")
        return [UsageSum("qwen36-mtp-16gb", 212, tg_median=68.0, pp_median=800.0, ttft_median=0.4)]

    def slowdowns(self, now: float) -> list[Slowdown]:
        self._called("slowdowns")
        return self.found_slowdowns


def _mean(at: float, minutes: Iterable[HistoryBucket]) -> HistoryBucket:
    minutes = list(minutes)

    def mean(name: str) -> float | None:
        values = [value for minute in minutes if (value := getattr(minute, name)) is not None]
        return sum(values) / len(values) if values else None

    return HistoryBucket(at, mean("tg"), mean("pp"), mean("busy_share"))


def month() -> FakeHistory:
    """30 days: work by day, idle evenings, the box off at night and from the 8th to the 10th of November."""
    history = FakeHistory()
    last = int(NOON // MINUTE)
    for minute in range(last - 30 * 24 * 60, last):
        at = minute * MINUTE
        moment = datetime.fromtimestamp(at, UTC)
        if moment.hour < 7 or moment.day in (8, 9, 10):
            continue
        works = 9 <= moment.hour < 19 and (minute // 7) % 4 != 0
        if at >= NOON - 4 * HOUR:  # as the list of requests: a few after nine
            works = at <= NOON - 4 * HOUR + 14 * MINUTE or at > NOON - 5 * MINUTE
        slow = 0.85 if at >= NOON - 3 * DAY else 1.0
        tg = slow * (71.5 + 9 * ((minute * 7919) % 13) / 13 + 4 * (moment.day % 3)) if works else None
        pp = 640.0 + 240 * ((minute * 104_729) % 11) / 11 if works and minute % 3 else None
        history.minutes[minute] = HistoryBucket(at, tg, pp, 0.7 if works else 0.0)
    history.stored_marks = [
        StoredMark(NOON - 20 * DAY, "start", "qwen36-mtp-16gb"),
        StoredMark(NOON - 12 * DAY, "switch", "qwen36-256k"),
        StoredMark(NOON - 10 * DAY, "crash", "qwen36-256k"),
        StoredMark(NOON - 9.9 * DAY, "start", "qwen36-mtp-16gb"),
        StoredMark(NOON - 3 * DAY, "engine", "b11434 -> b11500"),
        StoredMark(NOON - 4 * HOUR, "switch", "qwen36-256k"),
        StoredMark(NOON - 3 * HOUR, "switch", "qwen36-mtp-16gb"),
        StoredMark(NOON - 25 * MINUTE, "stop", "qwen36-mtp-16gb"),
        StoredMark(NOON - 22 * MINUTE, "start", "qwen36-mtp-16gb"),
    ]
    history.stored_requests = [
        *launch("qwen36-256k", NOON - 4 * HOUR, 12, client="aider"),
        *launch("qwen36-mtp-16gb", NOON - 27 * HOUR, 9, client="opencode"),
        *launch("qwen36-mtp-16gb", NOON - 3 * DAY, 40, client=None),
    ]
    history.found_slowdowns = [
        Slowdown("qwen36-mtp-16gb", "tg", NOON - 3 * DAY, 80.0, 68.0, -0.18, -0.12, ("engine b11434 -> b11500",))
    ]
    return history


def launch(profile: str, since: float, count: int, *, client: str | None) -> list[StoredRequest]:
    """``count`` requests of one launch that answered from ``since`` on, one each minute."""
    requests = []
    for number in range(1, count + 1):
        at = since + number * MINUTE
        moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        new: dict[str, Any] = {"prompt_tokens": 20_000 + number, "cached_tokens": 18_200 + number}
        request = replace(REQUESTS[0], number=number, task=100 + number, at=moment, **new)
        requests.append(StoredRequest(at, profile, client, request, round(since)))
    return requests
