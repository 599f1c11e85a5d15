"""``soak``: minutes of an agent-like load. Does the speed hold, does memory grow, does tg go in cycles?

soak.py         the kind: its options, its load, its windows, their numbers
trends.py       whether the speed held, memory growth, cycles (pure)
soak_report.py  results -> report
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import ANSWER_TOKENS, BenchOption, Kind

_HELP = """\
Run an agent's load on PROFILES, or on the running server, for many minutes.

Each conversation gets tool results until it reaches --context tokens; then a new one begins. The report shows
speed, TTFT, acceptance, memory, temperature, clocks and power over time. It names falling speed, growing memory
and cycles of fast and slow answers.
"""
KIND = Kind(
    "soak",
    "minutes of an agent's load: slowdowns and growing memory",
    _HELP,
    "gpubox.bench.kinds.soak.soak:Soak",
    (
        BenchOption("minutes", "Duration in minutes", "number", "15", minimum=0, exclusive=True, in_form=True),
        replace(ANSWER_TOKENS, default="128", in_form=False),
        BenchOption("context", "Longest conversation in tokens", default="16384", minimum=512, key="context_tokens"),
        BenchOption(
            "window",
            "Seconds per row of the report",
            "number",
            "20",
            "S",
            minimum=0,
            exclusive=True,
            key="window_seconds",
        ),
    ),
    takes_url=True,
    explained=True,
)
