"""Log line -> event: recorded logs, older wordings, and damaged or foreign lines."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from gpubox.server import log_parsing
from gpubox.server.log_events import (
    BetterPromptFound,
    BreakdownRow,
    CachedTokens,
    ContextCheckpoint,
    DeviceBuffer,
    DraftAcceptance,
    DraftAcceptancePerPosition,
    FullReprocessing,
    GenerationProgressLine,
    KvCache,
    LogDevice,
    LogEvent,
    LogSection,
    NewPrompt,
    OffloadedLayers,
    PromptCacheSize,
    PromptCleared,
    PromptProgressLine,
    PromptSaved,
    SleepState,
    SlotPurged,
    SlotReleased,
    SlotSelected,
    TaskCancelled,
    TaskFailed,
    TaskLaunched,
    ThreadCount,
    TimingHeader,
    TimingLine,
)
from gpubox.server.log_parsing import parse_event
from gpubox.units import MIB

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
RECORDED = LOGS / "b11434-moe-mtp-rpc.log"
RPC = "RPC0[127.0.0.1:50152]"


def events(name: str) -> list[LogEvent]:
    parsed = (parse_event(line)[1] for line in (LOGS / name).read_text(encoding="utf-8").splitlines())
    return [event for event in parsed if event is not None]


def same(event: LogEvent, expected: LogEvent) -> bool:
    """Equal, except for the last bits of a number."""
    return type(event) is type(expected) and all(
        a == pytest.approx(b) if isinstance(b, float) else a == b for a, b in zip(event, expected, strict=True)
    )


def mib(size: float) -> int:
    return round(size * MIB)


# -- a recorded run: a MoE with an MTP head, half of it on an RPC device, two requests ---------------


@pytest.mark.parametrize(
    "expected",
    [
        LogDevice("RPC0", "127.0.0.1:50152", "", 24105 * MIB, 24105 * MIB),
        LogDevice("RPC0", "127.0.0.1:50152", "unknown id", None, 24105 * MIB),
        LogSection("model"),
        LogSection("measure-main"),
        BreakdownRow("RPC0 (127.0.0.1:50152)", 32 * MIB, 4 * MIB, 12 * MIB),
        BreakdownRow("Host", 25 * MIB, 0, 9 * MIB),
        LogSection("measure-extra"),
        LogSection("table"),
        BreakdownRow("RPC0 (127.0.0.1:50152)", 32 * MIB, 2 * MIB, 9 * MIB),
        LogSection("load"),
        OffloadedLayers(10, 10),
        DeviceBuffer("CPU_Mapped", "model", mib(26.87)),
        DeviceBuffer(RPC, "model", mib(32.45)),
        LogSection("context"),
        DeviceBuffer("CPU", "output", mib(0.38)),
        DeviceBuffer(RPC, "kv", mib(4.0)),
        KvCache(mib(4.0), 2048, 2),
        DeviceBuffer(RPC, "recurrent", mib(0.89)),
        DeviceBuffer(RPC, "compute", mib(12.0)),
        DeviceBuffer("CPU", "compute", mib(9.05)),
        ThreadCount(2),
        LogSection("draft"),
        LogSection("listening"),
        PromptCacheSize(0, 8192 * MIB),
        SlotSelected(1, "lru", fresh=True),
        TaskLaunched(1, 0),
        NewPrompt(1, 0, 2048, 32),
        CachedTokens(1, 0, 0),
        ContextCheckpoint(1, mib(0.126), False, 1, 28),
        TimingLine(1, 0, "prompt", 0.05707, 32, 560.74),
        TimingLine(1, 0, "generation", 0.78334, 150, 190.21),
        TimingLine(1, 0, "total", 0.84041, 182, None),
        DraftAcceptance(1, 0, 110, 117, 3.82),
        DraftAcceptancePerPosition(1, 0, (1.0, 0.949, 0.872)),
        SlotReleased(1, 0, 181, False),
        PromptSaved(181),
        PromptCacheSize(mib(0.511), 8192 * MIB),
        CachedTokens(0, 42, 1497),
        ContextCheckpoint(0, mib(0.877), False, 2, 1497),
        LogSection("exit"),
    ],
    ids=str,
)
def test_a_recorded_run_tells(expected: LogEvent) -> None:
    assert any(same(event, expected) for event in events(RECORDED.name))


def test_a_recorded_run_tells_nothing_twice_and_nothing_else() -> None:
    kinds = Counter(type(event).__name__ for event in events(RECORDED.name))

    assert kinds == {
        "LogSection": 12, "DeviceBuffer": 13, "BreakdownRow": 6, "TimingLine": 6, "CachedTokens": 5, "LogDevice": 3,
        "PromptCacheSize": 3, "ContextCheckpoint": 3, "KvCache": 2, "TaskLaunched": 2, "NewPrompt": 2,
        "DraftAcceptance": 2, "DraftAcceptancePerPosition": 2, "SlotReleased": 2, "OffloadedLayers": 1,
        "ThreadCount": 1, "SlotSelected": 2, "PromptSaved": 1, "AllSlotsIdle": 5, "RequestArrived": 2,
    }  # fmt: skip


def test_the_times_of_a_recorded_run_go_up() -> None:
    parsed = [parse_event(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    times = [at for at, event in parsed if event is not None]

    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert times[-1] == pytest.approx(3.453804)


def test_the_documented_lines() -> None:
    assert events("b11434-lines.log") == [
        LogDevice("CPU", "AMD EPYC", "", 24105 * MIB, 24105 * MIB),
        LogSection("model"),
        OffloadedLayers(20, 31),
        DeviceBuffer("CPU_Mapped", "model", mib(92.10)),
        DeviceBuffer("RPC0[127.0.0.1:50911]", "model", mib(68.85)),
        DeviceBuffer("CPU", "output", mib(0.75)),
        DeviceBuffer("CPU", "kv", mib(90)),
        KvCache(mib(90), 4096, 1),
        KvCache(mib(47.81), 2048, 2),
        DeviceBuffer("CPU", "recurrent", mib(1.78)),
        DeviceBuffer("CPU", "compute", mib(46.39)),
        LogDevice("RPC0", "127.0.0.1:50911", "unknown id", None, 24105 * MIB),
        BreakdownRow("RPC0 (127.0.0.1:50911)", 68 * MIB, 57 * MIB, 15 * MIB),
        ThreadCount(2),
        LogSection("listening"),
        SlotSelected(3, "lru", fresh=True),
        TaskLaunched(3, 0),
        PromptProgressLine(3, 0, 256, 0.28, 29.45),
        GenerationProgressLine(3, 0, 112, 36.77, 37.10),
        TimingLine(3, 0, "prompt", 1.85124, 124, 66.98),
        TimingLine(3, 0, "generation", 2.59299, 85, 32.40),
        TimingLine(3, 0, "total", 4444.23 / 1e3, 209, None),
        DraftAcceptance(3, 0, 68, 169, 14.60),
        SlotReleased(3, 0, 208, False),
        TaskCancelled(7),
        SleepState(True),
        SleepState(True),
        SleepState(False),
    ]


def test_the_lines_of_a_cuda_build() -> None:
    assert events("b11434-cuda-from-source.log") == [
        LogDevice("CUDA0", "NVIDIA GeForce RTX 4090", "0000:01:00.0", None, 23132 * MIB),
        LogSection("measure-main"),
        LogSection("table"),
        BreakdownRow("CUDA0 (RTX 4090)", 17904 * MIB, 384 * MIB, 898 * MIB),
        BreakdownRow("Host", 58259 * MIB, 0, 12 * MIB),
        LogSection("load"),
        OffloadedLayers(49, 49),
        DeviceBuffer("CPU_Mapped", "model", mib(60123.45)),
        DeviceBuffer("CUDA0", "model", mib(17904.12)),
        LogSection("context"),
        DeviceBuffer("CUDA_Host", "output", mib(2.32)),
        DeviceBuffer("CUDA0", "kv", mib(384)),
        DeviceBuffer("CUDA0", "compute", mib(898.02)),
        DeviceBuffer("CUDA_Host", "compute", mib(12.01)),
    ]


def test_older_builds_said_it_in_other_words() -> None:
    older = events("older-builds.log")
    reprocessing = older[2]
    assert isinstance(reprocessing, FullReprocessing)

    assert older == [
        TaskLaunched(0, 533),
        NewPrompt(0, 533, 65024, 3000),
        FullReprocessing(0, 533, reprocessing.reason),
        CachedTokens(0, 533, 0),
        PromptProgressLine(0, 533, 2048, 0.682667, None),
        CachedTokens(0, 533, 2048),
        PromptProgressLine(0, 533, 3000, 1.0, None),
        GenerationProgressLine(0, 533, 102, 11.77, None),
        TimingHeader(0, 533),
        TimingLine(-1, -1, "prompt", 3.0, 3000, 1000.0),
        TimingLine(-1, -1, "generation", 10.0, 200, 20.0),
        TimingLine(-1, -1, "total", 13.0, 3200, None),
        DraftAcceptance(-1, -1, 171, 297, 2.40),
        SlotReleased(0, 533, 3199, False, early=True),
    ]


def test_a_router_puts_the_port_before_each_line() -> None:
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        assert parse_event(f"[53409] {line}") == parse_event(line)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("erasing old context checkpoint (pos_min = 1, pos_max = 2, n_tokens = 3, size = 0.126 MiB)",
         ContextCheckpoint(0, mib(0.126), True, 0, 3)),
        ("erased invalidated context checkpoint (pos_min = 1, pos_max = 2, n_tokens = 3, n_swa = 0, pos_next = 0, "
         "size = 0.126 MiB)", ContextCheckpoint(0, mib(0.126), True, 0, 3)),
        ("erasing context checkpoint too close to an earlier one (pos_min = 1, n_tokens = 3, size = 0.126 MiB)",
         ContextCheckpoint(0, mib(0.126), True, 0, 3)),
        ("created context checkpoint 2 of 3 (pos_min = 1, pos_max = 2, size = 0.126 MiB)",
         ContextCheckpoint(0, mib(0.126), False, 2, 2)),
        ("stop processing: n_tokens = 4096, truncated = 1", SlotReleased(0, 9, 4096, True)),
        ("acc per pos = ()", DraftAcceptancePerPosition(0, 9, ())),
        ("draft acceptance = 0.40237 (   68 accepted /   169 generated)", DraftAcceptance(0, 9, 68, 169, None)),
    ],
)  # fmt: skip
def test_lines_of_a_slot(text: str, event: LogEvent) -> None:
    assert parse_event(f"1.00.000.000 I slot print_timing: id  0 | task 9 | {text}") == (60.0, event)


# -- invalid numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["inf", "nan", "-nan", "-inf", "0.00"])
def test_a_speed_that_was_not_timed_is_unknown(number: str) -> None:
    line = f"slot print_timing: id  0 | task 1 | eval time =  0.00 ms /  1 tokens ({number} ms per token, {number:>8} "

    assert parse_event(f"{line}tokens per second)")[1] == TimingLine(0, 1, "generation", 0.0, 1, None)


@pytest.mark.parametrize(
    "line",
    [
        "I CUDA0 model buffer size = nan MiB",
        "I CUDA0 model buffer size = inf MiB",
        "I CUDA0 model buffer size = 1.2.3 MiB",
        f"I CUDA0 model buffer size = {'9' * 400}.00 MiB",
        f"I load_tensors: offloaded {'9' * 5000}/31 layers to GPU",
        f"I load_tensors: offloaded {'9' * 60}/31 layers to GPU",
        f"I   - RPC0 : x ({'9' * 60} MiB, 1 MiB free)",
        "slot x: id  0 | task 1 | acc per pos = (nan, 0.5)",
        "slot x: id  0 | task 1 | acc per pos = (a, b)",
        "slot x: id  0 | task 1 | eval time = nan ms / 1 tokens (1 ms per token, 2 tokens per second)",
        "slot x: id  0 | task 1 | eval time = 1e999 ms / 1 tokens (1 ms per token, 2 tokens per second)",
        f"{'9' * 400}.00.000.000 I srv  llama_server: listening on http://x",
        f"{'9' * 5000}.00.000.000 I srv  llama_server: listening on http://x",
    ],
)
def test_numbers_that_nothing_can_have_are_no_event(line: str) -> None:
    assert parse_event(line)[1] in (None, LogSection("listening"))


def test_a_time_beyond_all_days_is_no_time() -> None:
    assert parse_event(f"{'9' * 30}.00.000.000 I srv  llama_server: listening on http://x") == (
        None,
        LogSection("listening"),
    )


@pytest.mark.parametrize("progress", ["nan", "inf", "7.00", "-nan"])
def test_a_progress_that_is_no_share_is_unknown(progress: str) -> None:
    line = (
        f"id  3 | task 0 | prompt processing, n_tokens = 256, progress = {progress}, t = 8.69 s / inf tokens per second"
    )

    assert parse_event(line)[1] == PromptProgressLine(3, 0, 256, None, None)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "0.00.389.635 I slot get_availabl: id  1 | task -1 | selected slot by LCP similarity, f_sim_best = 0.506 "
            "(> 0.100 thold), f_keep = 0.357",
            SlotSelected(1, "lcp", 0.506),
        ),
        (
            "slot get_availabl: id  1 | task -1 | selected slot by lcp similarity, sim_best = 0.750 (> 0.500 thold)",
            SlotSelected(1, "lcp", 0.75),
        ),
        (
            "slot get_availabl: id  1 | task -1 | selected slot by LRU, t_last = 669932189",
            SlotSelected(1, "lru"),
        ),
        ("0.00.618.029 I slot get_availabl: id  1 | task -1 | selected slot by id (1)", SlotSelected(1, "id")),
        (
            "srv          load:  - found better prompt with f_keep = 0.850, f_sim = 1.000",
            BetterPromptFound(1.0),
        ),
        ("0.03.740.479 W srv  try_clear_id: purging slot 2 with 304 tokens", SlotPurged(2, 304)),
        ("0.03.740.487 I slot prompt_clear: id  2 | task -1 | clearing prompt with 304 tokens", PromptCleared(2, 304)),
        ("0.09.083.348 E srv    send_error: task id = 36, error: Context size has been exceeded.", TaskFailed(36)),
    ],
)
def test_what_becomes_of_prompts(line: str, event: LogEvent) -> None:
    assert parse_event(line)[1] == event


# -- damaged or foreign lines ------------------------------------------------------------------------

NEEDLES = [needle for needle, _, _ in log_parsing._TABLE]
HOSTILE = [
    "", "\0", "\x1b[2J", "\r\r\r", "[" * 100, "[0] ", "[99999999] ", "\ud800", "٣.٠٠.٠٠٠.٠٠٠ I x", "🦙" * 50,
    "0.00.000.000 I ", "0.00.000.000 X ", "id | task | ", "id  0 | task -1 | ", "\N{RIGHT-TO-LEFT OVERRIDE}",
]  # fmt: skip


@pytest.mark.parametrize("needle", NEEDLES)
def test_a_line_that_only_looks_like_one_is_no_error(needle: str) -> None:
    for around in HOSTILE:
        for line in (f"{around}{needle}", f"{needle}{around}", f"{around}{needle}{around}"):
            at, _ = parse_event(line)
            assert at is None or math.isfinite(at)


def test_binary_is_no_error() -> None:
    noise = bytes(range(256)) * 40
    for line in noise.decode("utf-8", errors="replace").split("\n"):
        assert parse_event(line) == (None, None)


def test_what_stands_in_a_prompt_far_into_a_line_says_nothing() -> None:
    assert parse_event("x" * 5000 + " CUDA0 model buffer size = 1.00 MiB") == (None, None)


FILLERS = (
    " ", "x", "1", "(", "x (", "| ", "|   - ", "= 1 + ", "n_tokens = 1, ", "MiB (", "id", "id 1 | task 1 | ",
    "CUDA0 (x) model buffer size", "progress = 1, ",
)  # fmt: skip


@pytest.mark.parametrize("needle", NEEDLES)
def test_a_megabyte_in_one_line_is_no_more_work_than_a_line(needle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting:
        def __init__(self, pattern: str) -> None:
            self.pattern = pattern

        def search(self, text: str) -> None:
            seen.append(len(text))

    monkeypatch.setattr(log_parsing, "_compiled", Counting)
    for filler in FILLERS:
        parse_event(needle + filler * (2**20 // len(filler)))

    assert seen
    assert max(seen) <= 2048


@pytest.mark.parametrize("needle", NEEDLES)
def test_no_pattern_runs_away(needle: str) -> None:
    """The longest line that is parsed, with text that makes a pattern backtrack.

    No clock: a pattern that runs away needs minutes for this, and holds the whole run up; none does.
    """
    for filler in FILLERS:
        for line in (needle + filler * 2048, "id 1 | task 1 | " + needle + filler * 2048, filler * 2048 + needle):
            parse_event(line)
            parse_event("id 1 | task 1 | " + (filler * 2048)[:1900] + needle)
