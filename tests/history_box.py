"""A box that is used for 90 days, simulated, and what its history must hold. Shares no arithmetic with what it checks.

``check_size`` feeds Snapshots to the writer and compares all sums with its own. ``check_kills`` kills a writing process
at random moments. ``check_planted`` and ``check_noise`` put a box's requests into the file: rhythm of the day and week,
launches with their own luck, bad days, contexts that grow over the weeks, requests at once, draft acceptance. The tests
run short versions, ``tests/perf/history_truth.py`` the long ones.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.paths import Paths
from gpubox.server.status import ServerStatus
from gpubox.telemetry.history import writer as history_writer
from gpubox.telemetry.history.file import REQUEST_COLUMNS, connect_writer, request_row
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.telemetry.history.tables import KnownLaunch
from gpubox.telemetry.history.writer import HistoryWriter
from gpubox.telemetry.snapshot import Offload, Request, Snapshot, Throughput, Totals

DAY = 86400.0
STOPPED = ServerStatus("main", "stopped")
GPU = Gpu(0, vram_used_bytes=20 << 30, temperature_celsius=60)
END = datetime(2026, 11, 20, 18, tzinfo=UTC).timestamp()
PROFILES = {"coder": (48.0, 900.0, 0.55), "chat": (31.0, 600.0, 0.3), "long": (14.0, 350.0, 0.15)}
"""Name -> tg, pp and its share of the requests."""
CAUSES = ("engine", "driver", "flags", "heat", "neighbour")
WORDS_OF_CAUSE = {
    "engine": "engine version b100 -> b101", "driver": "driver 550 -> 560", "flags": "--ubatch-size 512 -> 128",
    "heat": "hotter", "neighbour": "embed runs beside it",
}  # fmt: skip


@dataclass
class Planted:
    """What happens to one profile from a moment on."""

    profile: str
    at: float
    cause: str
    factor: float = 0.85


@dataclass
class SimLaunch:
    profile: str
    begin: float
    end: float
    luck: float
    argv: list[str]
    engine: str = "b100"
    driver: str = "550"


@dataclass
class SimRequest:
    launch: int
    at: float
    prompt: int
    cached: int
    generated: int
    tg: float
    pp: float
    duration: float
    drafted: int | None
    accepted: int | None


@dataclass
class Box:
    """What a box did."""

    launches: list[SimLaunch] = field(default_factory=list)
    requests: list[SimRequest] = field(default_factory=list)
    heat: dict[tuple[int, int], float] = field(default_factory=dict)
    """Degrees Celsius by launch and day since 1970 in UTC."""


def simulate(seed: int, days: int, count: int, planted: Planted | None = None) -> Box:
    """A box that was used for ``days``, about ``count`` requests."""
    rng = random.Random(seed)
    box = Box()
    begin = END - days * DAY
    at, names = begin, list(PROFILES)
    weather = _autocorrelated(rng, days + 2, 0.012, 0.8)
    habits = {name: _autocorrelated(rng, days + 2, 0.5, 0.95) for name in names}
    while at < END:  # a few launches a day, some of which last for days
        profile = rng.choices(names, [PROFILES[name][2] for name in names])[0]
        lasts = rng.lognormvariate(math.log(6 * 3600), 1.0)
        stop = min(END, at + lasts)
        changed = planted is not None and profile == planted.profile and at < planted.at < stop
        if changed and planted and planted.cause in ("engine", "driver", "flags"):
            stop = planted.at  # a new engine needs a new launch
        box.launches.append(_launch(rng, profile, at, stop, planted))
        at = stop + rng.uniform(20, 90)
    if planted and planted.cause == "neighbour":
        box.launches.append(SimLaunch("embed", planted.at, END, 0.0, ["llama-server", "--embeddings"]))
    bad_days = {(launch, day) for launch in range(len(box.launches)) for day in range(days + 2) if rng.random() < 0.04}
    own = [i for i, launch in enumerate(box.launches) if launch.profile in PROFILES]
    total = sum(box.launches[i].end - box.launches[i].begin for i in own)
    for index in own:
        launch = box.launches[index]
        share = count * (launch.end - launch.begin) / total
        _fill(rng, box, index, int(share + rng.random()), begin, weather, habits[launch.profile], bad_days, planted)
    box.requests.sort(key=lambda request: request.at)
    return box


def _launch(rng: random.Random, profile: str, at: float, stop: float, planted: Planted | None) -> SimLaunch:
    launch = SimLaunch(
        profile, at, stop, rng.gauss(0, 0.015), ["llama-server", "-m", f"{profile}.gguf", "--ubatch-size", "512"]
    )
    if planted and at >= planted.at:
        launch.driver = "560" if planted.cause == "driver" else launch.driver
        if profile == planted.profile and planted.cause == "engine":
            launch.engine = "b101"
        if profile == planted.profile and planted.cause == "flags":
            launch.argv[-1] = "128"
    return launch


def _fill(
    rng: random.Random, box: Box, index: int, count: int, begin: float, weather: list[float], habit: list[float],
    bad_days: set[tuple[int, int]], planted: Planted | None,
) -> None:  # fmt: skip
    launch = box.launches[index]
    tg_base, pp_base, _ = PROFILES[launch.profile]
    times: list[float] = []
    while len(times) < count:  # by night and at the weekend less
        at = rng.uniform(launch.begin, launch.end)
        hour, weekday = at / 3600 % 24, int(at // DAY + 4) % 7
        if rng.random() < (0.08 + 0.92 * max(0.0, math.sin((hour - 6) / 16 * math.pi))) * (0.5 if weekday >= 5 else 1):
            times.append(at)
    times.sort()
    until: list[float] = []
    for at in times:
        day = int((at - begin) // DAY)
        until = [end for end in until if end > at]
        at_once = len(until) + 1
        depth = min(120_000, int(rng.lognormvariate(math.log(3000) + habit[day], 1.1)) + 20)
        cached = int(depth * rng.choice([0.0, 0.0, 0.6, 0.9, 0.97]))
        generated = max(1, int(rng.lognormvariate(math.log(180), 1.0)))
        drafted = accepted = None
        speed = weather[day] + launch.luck - depth / 90_000 - 0.55 * math.log(at_once)
        speed -= 0.015 * math.sin((at / 3600 % 24 - 9) / 24 * 2 * math.pi)  # the room is warmer in the afternoon
        if launch.profile == "coder":
            acceptance = rng.betavariate(6, 3)
            drafted = generated * 2
            accepted = int(drafted * acceptance)
            speed += 0.5 * (acceptance - 0.67)
        if (index, day) in bad_days:
            speed -= rng.uniform(0.02, 0.3)  # other programs, for a while
        warm = 66.0 + 40 * weather[day]
        if planted and launch.profile == planted.profile and at >= planted.at:
            speed += math.log(planted.factor)
            warm += 9 if planted.cause == "heat" else 0
        box.heat[index, int(at // DAY)] = warm
        odd = rng.gauss(0, 0.04) if rng.random() < 0.95 else rng.gauss(-0.1, 0.15)
        tg, pp = tg_base * math.exp(speed + odd), pp_base * math.exp(speed + rng.gauss(0, 0.06))
        duration = (depth - cached) / pp + generated / tg
        if at + duration + 60 > launch.end:
            continue
        until.append(at + duration)
        box.requests.append(SimRequest(index, at, depth, cached, generated, tg, pp, duration, drafted, accepted))


def _autocorrelated(rng: random.Random, count: int, spread: float, correlation: float) -> list[float]:
    values = [rng.gauss(0, spread)]
    while len(values) < count:
        values.append(correlation * values[-1] + rng.gauss(0, spread * math.sqrt(1 - correlation**2)))
    return values


# -- slowdowns ------------------------------------------------------------------------------------------


def store(box: Box, path: Path) -> HistoryQueries:
    """Puts the box into a history file, row by row."""
    connection = connect_writer(path)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO launches (id, identity, profile, started, seen, ended, how, engine_path, engine_version, driver,"
        " argv) VALUES (?, ?, ?, ?, ?, ?, 'switch', '/e/llama-server', ?, ?, ?)",
        [
            (
                i + 1, f"b:{i}:1", launch.profile, launch.begin, launch.end, launch.end, launch.engine, launch.driver,
                json.dumps(launch.argv),
            )
            for i, launch in enumerate(box.launches)
        ],
    )  # fmt: skip
    connection.executemany(
        f"INSERT INTO requests (launch, {', '.join(REQUEST_COLUMNS)}) VALUES (?{', ?' * len(REQUEST_COLUMNS)})",
        [(r.launch + 1, *request_row(_request(task, r), r.at)) for task, r in enumerate(box.requests)],
    )
    connection.executemany(
        "INSERT INTO minutes (minute, launch, heat, heat_seconds) VALUES (?, ?, ?, 60)",
        [(day * DAY + 43200, launch + 1, degrees * 60) for (launch, day), degrees in box.heat.items()],
    )
    connection.execute("COMMIT")
    connection.close()
    return HistoryQueries(path)


def check_planted(seed: int, cause: str, folder: Path, days: int = 90, count: int = 20_000) -> str:
    """The empty text, or what is wrong with what is flagged of -15 % with this cause."""
    rng = random.Random(seed * 100 + CAUSES.index(cause))
    profile = rng.choice(["coder", "chat"])
    planted = Planted(profile, END - rng.uniform(0.12, 0.7) * days * DAY, cause)
    path = folder / f"{cause}-{seed}.sqlite"
    box = simulate(seed, days, count, planted)
    flagged = store(box, path).slowdowns(END)
    path.unlink()
    problems = []
    for rate in ("tg", "pp"):
        own = [s for s in flagged if s.profile == profile and s.rate == rate]
        if not own:
            problems.append(f"{rate} of {profile} not flagged")
            continue
        if not own[0].low <= planted.factor - 1 <= own[0].high:
            problems.append(f"{rate}: {own[0].low:+.3f} to {own[0].high:+.3f}")
        if not any(WORDS_OF_CAUSE[cause] in text for text in own[0].changed):
            problems.append(f"{rate}: changed {own[0].changed}")
        own_days = sorted({int(r.at // DAY) for r in box.requests if box.launches[r.launch].profile == profile})
        off = abs(
            sum(day < int(own[0].since // DAY) for day in own_days)
            - sum(day < int(planted.at // DAY) for day in own_days)
        )
        if off > 3:
            problems.append(f"{rate}: since is {off} days of use off")
    problems += [f"{s.profile} {s.rate} flagged too: {s}" for s in flagged if s.profile != profile]
    return "; ".join(problems)


def check_noise(seed: int, folder: Path, days: int = 90, count: int = 20_000) -> str:
    """The empty text, or what was flagged of a box to which nothing happened."""
    path = folder / f"noise-{seed}.sqlite"
    flagged = store(simulate(seed, days, count), path).slowdowns(END)
    path.unlink()
    return "; ".join(map(str, flagged))


# -- size and sums ----------------------------------------------------------------------------------------


def snapshots(box: Box, begin: float, step: float) -> Iterator[Snapshot]:
    """A Snapshot each ``step`` seconds, as a screen takes them that is always open."""
    task, at, launch = 0, begin, 0
    recent: list[Request] = []
    requests = sorted(box.requests, key=lambda r: r.at + r.duration)
    while at < END:
        while launch + 1 < len(box.launches) and box.launches[launch + 1].begin <= at:
            launch, recent = launch + 1, []
        while task < len(requests) and requests[task].at + requests[task].duration <= at:
            r = requests[task]
            if r.launch == launch:
                recent = [_request(task, r), *recent[:199]]
            task += 1
        busy = bool(recent) and task % 2 == 0
        up = box.launches[launch].begin <= at < box.launches[launch].end
        yield Snapshot(
            at=at - begin + 1,
            time=datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
            server=ServerStatus("main", "ready", box.launches[launch].profile, launch + 1) if up else STOPPED,
            driver=DriverReading((replace(GPU, power_watts=300.0 if busy else 25.0),), "550"),
            host=None, process=None, memory=(), offload=Offload(),
            throughput=Throughput(
                "answering" if busy else "idle", tg_tokens_per_second=33.3 if busy else None, context_used_tokens=task
            ),
            slots=(), requests=tuple(recent), totals=Totals(),
        )  # fmt: skip
        at += step


def _request(task: int, r: SimRequest) -> Request:
    first = (r.prompt - r.cached) / r.pp
    return Request(
        number=task, at=datetime.fromtimestamp(r.at, UTC).isoformat(timespec="milliseconds"), slot=task % 4, task=task,
        prompt_tokens=r.prompt, cached_tokens=r.cached, generated_tokens=r.generated, ttft_seconds=first + 0.01,
        pp_tokens_per_second=r.pp, tg_tokens_per_second=r.tg, prompt_seconds=first,
        generation_seconds=r.generated / r.tg,
        duration_seconds=r.duration, draft_tokens=r.drafted, draft_tokens_accepted=r.accepted, queue_seconds=0.01,
        mean_accepted_length=None if r.drafted is None else 2.5, slot_ttft_seconds=first, stop_reason="stop",
        accepted_per_position=() if r.drafted is None else (0.8, 0.6),
        cache_miss=None if r.cached else "prefix changed",
    )  # fmt: skip


def check_size(days: int, count: int, folder: Path, *, timed: bool = True) -> list[str]:
    """What is wrong with size, sums and (``timed``) query times of a history that the writer wrote."""
    history_writer.MAX_GAP_SECONDS = 60.0  # a Snapshot a minute stands for its minute
    paths = Paths(folder / "config", folder / "state", folder / "cache")
    box = simulate(1, days, count)
    begin = END - days * DAY
    at_now = [begin]

    def launch_of(snapshot: Snapshot) -> KnownLaunch:
        number = (snapshot.server.pid or 1) - 1
        launch = box.launches[number]
        return KnownLaunch(f"b:{number}:1", launch.profile, launch.begin, "/e", launch.engine, tuple(launch.argv))

    writer = HistoryWriter(paths, launch_of=launch_of, clock=lambda: at_now[0])
    writer.step()
    worst = steps = spent = 0.0
    for number, snapshot in enumerate(snapshots(box, begin, 60.0)):
        writer.push(snapshot)
        at_now[0] = datetime.fromisoformat(snapshot.time).timestamp()
        if number % 1440 == 0:
            writer._tidy_at = 0.0  # the real clock hardly moves
        if number % 10 == 0:
            started = time.process_time()
            writer.step()
            took = time.process_time() - started
            spent, worst, steps = spent + took, max(worst, took), steps + 1
    for _ in range(days // 2):
        writer._tidy_at = 0.0
        writer.step()
    files = [paths.history.with_name(paths.history.name + suffix) for suffix in ("", "-wal", "-shm")]
    size = sum(file.stat().st_size for file in files if file.exists())
    print(f"{len(box.requests):,} requests, {days} days: {size / 1e6:.1f} MB on disk")
    print(
        f"writer: {spent:.1f} s CPU for {steps:.0f} steps of 10 minutes,"
        f" the longest {worst * 1e3:.0f} ms {writer.problem}"
    )
    problems = [f"{size / 1e6:.1f} MB"] if size > 60e6 * days / 90 + 5e6 * (days < 90) else []
    queries = HistoryQueries(paths.history)
    asked: dict[str, Callable[[], object]] = {
        "sums by profile, all": lambda: queries.sums(begin, END, "profile"),
        "sums by day, all": lambda: queries.sums(begin, END, "day"),
        "sums by profile, 7.3 days": lambda: queries.sums(END - 7.3 * DAY, END, "profile"),
        "last 200 requests": lambda: queries.requests(begin, END, limit=200),
        "last 200 of a profile": lambda: queries.requests(begin, END, profile="long", limit=200),
        "graph of an hour": lambda: queries.buckets(END - 3600, END, 180),
        "graph of a day": lambda: queries.buckets(END - DAY, END, 180),
        "graph of 30 days": lambda: queries.buckets(END - 30 * DAY, END, 180),
        "marks of 30 days": lambda: queries.marks(END - 30 * DAY, END),
        "slowdowns": lambda: queries.slowdowns(END),
    }
    for name, ask in asked.items():
        ask()
        times = []
        for _ in range(7 if timed else 1):
            started = time.process_time()  # other programs may keep the machine busy
            ask()
            times.append(time.process_time() - started)
        print(f"  {name:28} {statistics.median(times) * 1e3:6.1f} ms")
        limit = 0.1 + 0.6 * len(box.requests) / 200_000 if "all" in name else 0.1
        if timed and statistics.median(times) > limit:
            problems.append(f"{name}: {statistics.median(times) * 1e3:.0f} ms")
    problems += _compare(box, queries, begin)
    integrity = sqlite3.connect(paths.history).execute("PRAGMA integrity_check").fetchone()[0]
    writer.close()
    return problems if integrity == "ok" else [*problems, integrity]


def _compare(box: Box, queries: HistoryQueries, begin: float) -> list[str]:
    problems = []
    wanted: dict[str, list[SimRequest]] = defaultdict(list)
    oldest = datetime.fromtimestamp(END).replace(hour=0, minute=0, second=0) - timedelta(days=89)
    for r in box.requests:
        if r.at < oldest.timestamp():  # 90 days are kept, today with them
            continue
        wanted[box.launches[r.launch].profile].append(r)
    for usage in queries.sums(begin - DAY, END, "profile"):
        own = wanted[usage.key]
        if usage.requests != len(own):
            problems.append(f"{usage.key}: {usage.requests} of {len(own)} requests")
        tg = statistics.median(r.tg for r in own)
        if usage.tg_median is None or abs(usage.tg_median / tg - 1) > 1e-4:
            problems.append(f"{usage.key}: median tg {usage.tg_median} instead of {tg}")
        up = sum(launch.end - launch.begin for launch in box.launches if launch.profile == usage.key)
        if usage.up_seconds is None or abs(usage.up_seconds / up - 1) > 0.02:
            problems.append(f"{usage.key}: up {usage.up_seconds} instead of {up}")
    by_day = queries.sums(begin - DAY, END, "day")
    by_profile = queries.sums(begin - DAY, END, "profile")
    for name in ("requests", "generated_tokens", "prompt_tokens", "cached_tokens"):
        if sum(getattr(s, name) for s in by_day) != sum(getattr(s, name) for s in by_profile):
            problems.append(f"{name}: days and profiles do not agree")
    return problems


# -- kills ------------------------------------------------------------------------------------------------


def write_forever(state: str, first_task: int) -> None:
    """The child: pushes a Snapshot with one more request 20 times a second and says so."""
    folder = Path(state)
    paths = Paths(folder / "config", folder / "state", folder / "cache")
    writer = HistoryWriter(paths, launch_of=lambda snapshot: KnownLaunch("b:1:1", "coder", END))
    writer.start()
    recent: list[Request] = []
    task, begin = first_task, time.monotonic()
    while True:
        now = time.time()
        request = SimRequest(0, now, 100, 10, 40, 30.0, 500.0, 1.0, None, None)
        recent = [_request(task, request), *recent[:199]]
        writer.push(
            Snapshot(
                at=time.monotonic() - begin + 1,
                time=datetime.fromtimestamp(now, UTC).isoformat(),
                server=ServerStatus("main", "ready", "coder", 1),
                driver=DriverReading(()),
                host=None,
                process=None,
                memory=(),
                offload=Offload(),
                throughput=Throughput("answering", tg_tokens_per_second=30.0),
                slots=(),
                requests=tuple(recent),
                totals=Totals(),
            )
        )
        print(task, f"{now:.3f}", flush=True)
        task += 1
        time.sleep(0.05)  # the pace of the simulation


def check_kills(kills: int, folder: Path, seed: int = 1, longest: float = 4.0) -> list[str]:
    """What is wrong after each kill: requests that are gone, or a file that is not sound."""
    rng, problems, task = random.Random(seed), [], 0
    history = Paths(folder / "config", folder / "state", folder / "cache").history
    worst = 0.0
    for number in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.history_box", str(folder), str(task)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        pushed: dict[int, float] = {}
        due = 0.0
        for line in child.stdout:
            name, at = line.split()
            pushed[int(name)] = float(at)
            due = due or time.monotonic() + rng.uniform(0.3, longest)
            if time.monotonic() >= due:
                break
        os.kill(child.pid, signal.SIGKILL)
        killed = time.time()
        for line in child.stdout:  # what it had said before it died
            name, _, at = line.rstrip("\n").partition(" ")
            if at and line.endswith("\n"):
                pushed[int(name)] = float(at)
        child.wait()
        task = max(pushed) + 1
        queries = HistoryQueries(history)
        kept = {row.request.task for row in queries.requests(0, 4e9, limit=1_000_000)} if history.exists() else set()
        lost = [killed - at for name, at in pushed.items() if name not in kept]
        worst = max([worst, *lost])
        if any(age > 1.5 for age in lost):
            problems.append(f"kill {number}: lost a request {max(lost):.1f} s old")
        state = sqlite3.connect(history).execute("PRAGMA integrity_check").fetchone()[0] if history.exists() else "ok"
        if state != "ok":
            problems.append(f"kill {number}: {state}")
    print(f"{kills} kills, {task} requests: the oldest that was lost was {worst:.2f} s old")
    return problems


if __name__ == "__main__":
    write_forever(sys.argv[1], int(sys.argv[2]))
