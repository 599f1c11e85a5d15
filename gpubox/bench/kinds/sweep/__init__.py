"""``sweep``: one profile over a grid of flags. Which cells load, and which is faster than the present flags.

sweep.py  its axes, its cells, and which cells need not be tried
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import ANSWER_TOKENS, CONTEXT, DOMAINS, PROMPTS, SET, STARTS, BenchOption, Kind, KindArgument

_HELP = """\
Find the fastest cell of a grid of flags, models and PROFILES.

Each cell, one combination of values, is started once, the better half again. Then the fastest cells and the
unchanged profile are compared on new starts, in random order. A cell that does not load stays in the report, with
its reason; cells that need at least as much memory as a cell that failed are skipped. `gpubox bench save` writes a
cell that is faster than the unchanged profile.

Over models or several profiles, the table shows quant, file size, context and VRAM of each cell as well.

\b
gpubox bench sweep PROFILE --over n-cpu-moe=16..28:2
gpubox bench sweep PROFILE --over model=Q4_K_M.gguf,Q5_K_M.gguf --over ctx-size=8192,131072
gpubox bench sweep PROFILE OTHER THIRD
"""
KIND = Kind(
    "sweep",
    "a grid of flag values: which one is fastest",
    _HELP,
    "gpubox.bench.kinds.sweep.sweep:Sweep",
    (
        BenchOption(
            "over",
            "Flag and its values",
            "text",
            metavar="FLAG=VALUES",
            repeated=True,
            example="n-cpu-moe=16..28:2",
            in_form=True,
            detail="a range with its step, or a list (16,20); model=A.gguf,B.gguf compares files; required "
            "with a single profile",
        ),
        replace(SET, help="Changed flag of every cell", detail=""),
        BenchOption(
            "by",
            "Speed to compare",
            "choice",
            "tg",
            "SPEED",
            choices=(("", "tg"), ("pp", "pp"), ("effective", "effective")),
            detail="effective counts the prompt's time, too",
            in_form=True,
        ),
        replace(STARTS, help="At most N of each finalist", default="6"),
        BenchOption("finalists", "Cells compared at the end", default="3", in_form=True),
        replace(PROMPTS, default="3"),
        DOMAINS,
        replace(ANSWER_TOKENS, default="64"),
        replace(CONTEXT, default="512; 0 for draft windows"),
    ),
    arguments=(KindArgument(many=True, required=True),),
    explained=True,
)
