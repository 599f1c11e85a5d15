"""``speed``: TTFT, pp, tg and draft acceptance as a client of the server gets them.

speed.py            the kind: its items, its requests, their numbers
workloads.py        its options and presets, and the requests they amount to
speed_report.py     results -> report, lines over the depth, and where tg has halved
streams.py          --streams: several requests at once, their report, and the number of streams that pays
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import STARTS, THINKING, BenchOption, Kind

_HELP = """\
How fast do PROFILES, or the running server, read and write?

Answers have a fixed length, temperature 0 and no thinking. Each prompt is asked once to warm up and then several times:
alone, after more and more tokens of context (--depths), with and without the prompt cache (--prefix). The report shows
TTFT, pp, tg and draft acceptance, and where tg has halved. 95 % intervals need --starts 2 or more, or --preset chat.

With an NVIDIA card it shows the energy per generated and per read token: the power of the cards that the server
uses, idle power included, times the seconds of generating or reading.

\b
Presets:
  quick    what this box does, in a minute: short answers, answers behind 8,192 tokens, two requests at once
  game     one HTML game of 2,000 tokens, ten times
  lengths  128, 512 and 2,048 tokens, three times each
  chat     50 prompts from code, math and general, three seeds
"""
KIND = Kind(
    "speed",
    "prompt and generation speed, TTFT and draft acceptance",
    _HELP,
    "gpubox.bench.kinds.speed.speed:Speed",
    (
        BenchOption(
            "preset",
            "What to measure",
            "choice",
            metavar="NAME",
            choices=(
                ("", "short to long, code, depths"),
                ("quick", "quick: about a minute"),
                ("game", "game: 2,000 tokens, ten times"),
                ("lengths", "lengths: 128, 512, 2,048"),
                ("chat", "chat: 50 prompts, three seeds"),
            ),
            in_form=True,
        ),
        BenchOption("prompts", "Any of short, medium, long, code", "list", "all", "LIST"),
        BenchOption("depths", "Context before the prompt", "integers", "0,8192,32768", "LIST", in_form=True),
        BenchOption(
            "streams",
            "Requests at once",
            "integers",
            metavar="LIST",
            example="1,2,4,8",
            in_form=True,
            detail="the report gives tg of all together and of each, and the knee: the smallest number of streams at "
            "which no larger one makes all together 5 % faster; needs as many slots (flag parallel)",
        ),
        BenchOption(
            "prefix",
            "Prompt cache",
            "choice",
            "both",
            "STATE",
            choices=(("", "cached and not"), ("cold", "not cached"), ("warm", "cached")),
            key="prefixes",
            detail="warm: the prompt is in the cache",
        ),
        BenchOption("repeats", "Repeats of each prompt", default="5", in_form=True),
        replace(STARTS, default="1"),
        BenchOption("max-tokens", "Tokens per answer", default="set by the prompt", in_form=True),
        THINKING,
    ),
    takes_url=True,
    counts_tokens=True,
)
