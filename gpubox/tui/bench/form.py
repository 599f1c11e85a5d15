"""A plan as rows of a form: what was chosen and written -> the words of ``gpubox bench``. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROFILE, SECOND = "profile", "second"
"""Rows whose choices are the owner's profiles."""


@dataclass(frozen=True, slots=True)
class PlanField:
    """One row. With ``choices`` it is turned, else it is written in."""

    name: str
    label: str
    about: str
    option: str = ""
    """The command line's; empty: an argument. ``--over*``: once for each word written."""
    choices: tuple[tuple[str, str], ...] = ()
    """Value and its word; the first is what stands there."""
    empty: str = ""
    """What an empty row means."""


_PROFILE = PlanField(PROFILE, "profile", "what is measured")
_SET = PlanField("set", "--set", "as n-cpu-moe=20 mmap=false", "--set*", empty="as the profile has them")
PLAN_FIELDS: dict[str, tuple[PlanField, ...]] = {
    "speed": (
        _PROFILE,
        PlanField("preset", "protocol", "what is asked, how often", "--preset", (
            ("", "short to long, code, depths"), ("quick", "quick: short and code"),
            ("game", "game: 2,000 tokens, ten times"), ("lengths", "lengths: 128, 512, 2,048"),
            ("chat", "chat: 50 prompts, three seeds"),
        )),
        PlanField("depths", "depths", "tokens before the question", "--depths", empty="0,8192,32768"),
        PlanField("repeats", "repeats", "of each cell", "--repeats", empty="5"),
        PlanField("starts", "starts", "of each server", "--starts", empty="1"),
        PlanField("max-tokens", "max-tokens", "whatever the prompt", "--max-tokens", empty="as the prompt has it"),
        PlanField("llama-bench", "llama-bench", "the engine's own rows", "", (("", "where it is there"),
            ("--no-llama-bench", "left out"))),
    ),
    "ab": (
        PlanField(PROFILE, "A", "the one side"),
        PlanField(SECOND, "B", "none: A with a change"),
        _SET,
        PlanField("vary", "change", "one thing, on and off", "--vary", (
            ("", "none"), ("mtp", "MTP"), ("mmap", "mmap"), ("thinking", "thinking"), ("completion", "/v1/completions"),
        )),
        PlanField("starts", "starts", "of each side at most", "--starts", empty="6"),
        PlanField("prompts", "prompts", "of each domain", "--prompts", empty="4; 10 of one server"),
        PlanField("max-tokens", "max-tokens", "of each answer", "--max-tokens", empty="128"),
    ),
    "sweep": (
        _PROFILE,
        PlanField("over", "--over", "as n-cpu-moe=16..28:2", "--over*", empty="a flag and its values"),
        _SET,
        PlanField("by", "best at", "the number that counts", "--by", (("", "tg"), ("pp", "pp"), ("effective", "effective"))),
        PlanField("starts", "starts", "of each compared cell", "--starts", empty="4"),
        PlanField("finalists", "finalists", "compared after one start", "--finalists", empty="4"),
        PlanField("prompts", "prompts", "of each domain", "--prompts", empty="3"),
        PlanField("max-tokens", "max-tokens", "of each answer", "--max-tokens", empty="64"),
    ),
    "soak": (_PROFILE, PlanField("minutes", "minutes", "of an agent's load", "--minutes", empty="15")),
    "humaneval": (
        _PROFILE,
        PlanField("mode", "mode", "how each problem is asked", "--mode", (
            ("", "vanilla: as lm-eval"), ("chat", "chat: one answer"), ("agentic", "agentic: five rounds"),
            ("all", "all three, compared"),
        )),
        PlanField("limit", "problems", "of 164", "--limit", empty="164"),
        PlanField("parallel", "at a time", "problems in flight", "--parallel", empty="1"),
    ),
    "suite": (
        _PROFILE,
        PlanField("repeat", "repeats", "of each task; their mean", "--repeat", empty="1"),
        PlanField("max-tokens", "max-tokens", "of one answer", "--max-tokens", empty="4096; thinking: 8192"),
        PlanField("compat", "totals", "how they are made", "", (("", "of all tasks"), ("--compat", "as the article's"))),
    ),
}  # fmt: skip
"""By kind."""
KIND_SUMMARIES = {
    "speed": "TTFT, pp, tg, acceptance of the served path",
    "ab": "faster, slower, or indistinguishable",
    "sweep": "the best cell of a grid of flags",
    "soak": "does the speed hold for minutes",
    "humaneval": "pass@1 of 164 problems",
    "suite": "twelve tasks, weighted",
}


URL_KINDS = {"speed", "soak", "humaneval", "suite"}
"""Kinds that take ``--url`` instead of a profile."""


def plannable_kinds(known: Sequence[str], *, url: bool = False) -> list[str]:
    """The kinds that have a form and that this gpubox knows; with ``url`` those that measure any server."""
    return [kind for kind in PLAN_FIELDS if kind in known and (not url or kind in URL_KINDS)]


def words(kind: str, chosen: Mapping[str, str], url: str | None = None) -> list[str]:
    """The words behind ``gpubox bench``. With ``url`` the server there is measured instead of a profile."""
    found = [kind]
    for row in PLAN_FIELDS[kind]:
        value = chosen.get(row.name, "").strip()
        if row.name in (PROFILE, SECOND):
            if url and row.name == PROFILE:
                found += ["--url", url]
            elif value and not url:
                found.append(value)
        elif not value:
            continue
        elif row.option.endswith("*"):
            for part in value.split():
                found += [row.option[:-1], part]
        elif row.option:
            found += [row.option, value]
        else:
            found.append(value)
    return found


def bench_command_line(found: Sequence[str]) -> str:
    """The command line that does the same in a terminal."""
    return shlex.join(["gpubox", "bench", *found])
