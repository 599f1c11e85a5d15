"""``suite``: 12 tasks in 13 rows and five groups. A task that cannot be graded on this box is n/a (``None``), never 0.

suite.py           the kind: its options, its items, the score of one reply
tasks.py           what is asked, and the answers to what is no program
answers.py         grades the line ANSWER: and JSON
programs.py        finds the programs in an answer and has them run
sandbox_checks.py  runs inside the sandbox: what works of a program
suite_report.py    results -> report and leaderboard
fixtures/          the prompts, the log of 3.1, the small apps of 2.1 and 2.2, and shims of their frameworks
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

Programs run in the sandbox and get points for what works. The other tasks ask for JSON or for a last line
ANSWER:, and only that is graded. A task whose program cannot run here is left out of the total.
"""
KIND = Kind(
    "suite",
    "twelve tasks of coding, reasoning, tool use and speed",
    _HELP,
    "gpubox.bench.kinds.suite.suite:Suite",
    (
        BenchOption("tasks", "Tasks to run, such as 1.1,5.3", "list", "all", "LIST"),
        BenchOption(
            "repeats",
            "Answers per task",
            default="3",
            detail="their mean counts; one answer ranks nothing",
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
