"""``tune``: finds the fastest flags of a profile that fit, in the time that it is given.

space.py        which sets of flags there are
protocol.py     what a start is asked, fitted to the time; the load of the goal ``agent``
tune.py         the benchmark, and its plan: what fits, as far as is known before a start
progress.py     the live picture as values
live.py         makes it from the results
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import ANSWER_TOKENS, CONTEXT, PROMPTS, BenchOption, Kind, KindArgument

_HELP = """\
Find the fastest flags of PROFILE that fit.

gpubox chooses values of n-cpu-moe or n-gpu-layers, threads, batch sizes, flash-attn, draft window and, with --goal
agent, slots; what would not fit is left out. Up to 24 sets of flags are all started once. If there are more, gpubox
first starts those that change a single flag, and then sets that combine the best of these. At the end the best sets
are compared with the profile's own flags on new starts, in random order. The length of each measurement follows from
--minutes and from the first answer. --over names the flags and values instead. `gpubox bench save` writes what is
faster as a profile.
"""
KIND = Kind(
    "tune",
    "the fastest flags of a profile that fit",
    _HELP,
    "gpubox.bench.kinds.tune.tune:Tune",
    (
        BenchOption(
            "goal",
            "What is to be fast",
            "choice",
            "tg",
            "GOAL",
            choices=(("", "tg: generation"), ("pp", "pp: prompts"), ("agent", "agent: turns of agents")),
            detail="agent is a few agents at once with a shared prefix",
            in_form=True,
        ),
        BenchOption("keep-free", "Free memory on each card", "text", "1GiB", "SIZE", in_form=True),
        BenchOption("minutes", "Time in minutes", "number", "30", minimum=0, exclusive=True, in_form=True),
        BenchOption(
            "over",
            "Flag and its values",
            "text",
            metavar="FLAG=VALUES",
            repeated=True,
            example="threads=4,8",
            detail="instead of those that gpubox chooses",
            in_form=True,
        ),
        BenchOption(
            "kv-types",
            "KV cache types to try",
            "list",
            metavar="LIST",
            example="f16,q8_0",
            detail="they change the answers: compare their quality as well",
            in_form=True,
        ),
        replace(PROMPTS, default="as the time allows", in_form=False),
        replace(ANSWER_TOKENS, default="as the time allows", in_form=False),
        replace(
            CONTEXT,
            help="Context tokens, or the agents' shared prefix",
            default="as the time allows",
        ),
        BenchOption("streams", "Agents at once", default="3", maximum=64),
        BenchOption("turns", "Turns of each agent", default="3", maximum=64),
    ),
    arguments=(KindArgument("profile", required=True),),
    explained=True,
)
