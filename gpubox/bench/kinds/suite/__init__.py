"""``suite``: the article's comparison of 12 tasks in 13 rows and five groups, without its scoring bugs.

A task that cannot be scored on this box is n/a (``None``), never 0.
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import TEMPERATURE, BenchOption, Kind

_HELP = """\
Run twelve tasks on PROFILES, or on the running server, and rank the profiles.

\b
Groups of tasks, with their share of the total:
  1, 2  code generation, multi-file edits  40 %
  3     reasoning                          20 %
  4     tool use                           20 %
  5     speed                              20 %

Programs run in the sandbox. A task whose program cannot run here shows a keyword score, which counts in no total.
--compat computes the totals as the article "Round 3: twelve tasks, five local models" does.
"""
KIND = Kind(
    "suite",
    "twelve tasks of coding, reasoning, tool use and speed",
    _HELP,
    "gpubox.bench.kinds.suite.suite:Suite",
    (
        BenchOption("tasks", "Tasks to run, such as 1.1,5.3", "list", "all", "LIST"),
        BenchOption("repeats", "Answers per task", default="1", detail="their mean counts", in_form=True),
        BenchOption(
            "compat",
            "Totals as in the article",
            "switch",
            choices=(("", "of all tasks"), ("--compat", "as in the article")),
            in_form=True,
        ),
        BenchOption(
            "ref-tps",
            "tok/s that score 100",
            "number",
            "the fastest of several profiles",
            "RATE",
            minimum=0,
            exclusive=True,
        ),
        BenchOption("max-tokens", "Tokens per answer", default="4096; thinking: 8192", in_form=True),
        BenchOption("speed-tokens", "Tokens of each speed task, for a quick trial", minimum=2),
        replace(TEMPERATURE, help="Temperature of groups 1 to 4", default="the profile's"),
    ),
    takes_url=True,
    counts_tokens=True,
)
