"""``ab``: which of two is faster, and whether the difference is significant.

ab.py  the benchmark
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import ANSWER_TOKENS, CONTEXT, DOMAINS, PROMPTS, SET, STARTS, BenchOption, Kind, KindArgument

USUAL_STARTS, USUAL_PROMPTS, USUAL_TOKENS = 6, 4, 128
"""Without options: the most starts of each side, prompts of each domain, tokens of each answer."""
_HELP = """\
Compare A with B, or with A after one change (--set, --vary).

A and B are profiles, or http:// addresses of running servers. Both sides get the same prompts, in random order.
Speed differs from one server start to the next, so each side is started at least four times; a clear verdict ends
the run. --vary thinking and --vary completion alternate between both settings on one server. gpubox cannot restart
a server given by its address; the report then says what it could not rule out.
"""
KIND = Kind(
    "ab",
    "two profiles, or one profile with and without a change",
    _HELP,
    "gpubox.bench.kinds.ab.ab:Ab",
    (
        SET,
        BenchOption(
            "vary",
            "Change one setting of A",
            "choice",
            metavar="SETTING",
            choices=(
                ("", "none"),
                ("mtp", "MTP"),
                ("mmap", "mmap"),
                ("thinking", "thinking"),
                ("completion", "/v1/completions"),
            ),
            in_form=True,
        ),
        replace(STARTS, help="At most N starts per side", default="6", detail="a clear verdict ends the run earlier"),
        replace(PROMPTS, default="4; 10 with one server"),
        DOMAINS,
        replace(ANSWER_TOKENS, default="128"),
        replace(CONTEXT, default="0"),
    ),
    arguments=(
        KindArgument("first", "A", required=True, rows=(("A", "First side"),)),
        KindArgument("second", "[B]", rows=(("B", "empty: A, changed as below"),)),
    ),
    explained=True,
    counts_tokens=True,
)
