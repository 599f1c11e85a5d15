"""What would tell which of two is better where nothing can be told yet: the whole command, and its time. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from gpubox.bench.kinds.ab import USUAL_PROMPTS, USUAL_STARTS, USUAL_TOKENS
from gpubox.bench.model import RunInfo, Target
from gpubox.bench.overrides import format_flag_value
from gpubox.bench.provenance import comparable_argv
from gpubox.bench.questions import DOMAINS
from gpubox.bench.report.model import SPEED_UNITS, Metric
from gpubox.profiles.profile import Profile

LOAD_SECONDS = 20
"""Assumed for the load of a model that no run has started yet."""
_MORE = 3
"""So many times more answers."""
_PROBLEMS = 164
"""Of HumanEval."""


def ab_command(first: Target, second: Target, starts: int = USUAL_STARTS) -> str:
    """The command line that compares two targets."""
    names = [target.url or target.profile for target in (first, second)]
    words = ["gpubox", "bench", "ab", *dict.fromkeys(names)]
    for flag, value in second.overrides.items():
        words += ["--set", f"{flag}={format_flag_value(value)}" if value != "" else f"{flag}="]
    return shlex.join([*words, *(["--starts", str(starts)] if starts != USUAL_STARTS else [])])


def ab_tells(first: Target, second: Target, slower_rate: float | None) -> str:
    """That ``ab`` tells which is faster, and in what time. ``slower_rate``: tg of the slower one, tok/s."""
    takes = ""
    if slower_rate:
        seconds = 2 * USUAL_STARTS * (LOAD_SECONDS + (1 + USUAL_PROMPTS * len(DOMAINS)) * USUAL_TOKENS / slower_rate)
        takes = f" in at most {about_time(seconds)}"
    return f"`{ab_command(first, second)}` tells it{takes}."


def change_tells(before: Profile, after: Profile, slower_rate: float | None) -> str:
    """The same for a profile and its changed form, which is not written."""
    old, new = ({**profile.flags, "model": profile.model} for profile in (before, after))
    changed = {name: new.get(name, "") for name in (*old, *new) if old.get(name) != new.get(name)}
    target = Target(before.name, before.name)
    if not changed:
        other = Target("changed", f"{before.name}-changed")
        return f"Copy the profile, change the copy, then {ab_tells(target, other, slower_rate)}"
    return ab_tells(target, Target("changed", before.name, changed), slower_rate)


def runs_tell(first: tuple[RunInfo, Metric], second: tuple[RunInfo, Metric], looks: int) -> str:
    """The same for two stored runs and the row that they are compared for. ``looks``: needed at each side."""
    (info, metric), (other_info, other) = first, second
    if metric.unit not in SPEED_UNITS:
        return _more_answers(info, other_info)
    if sides := _sides(first, second):
        slower = min(metric.estimate.value, other.estimate.value) if metric.unit == "tok/s" else None
        return ab_tells(*sides, slower)
    commands = dict.fromkeys(f"`{_command(info.plan.kind, _target(*own))}`" for own in (first, second))
    seconds = looks * sum(own.seconds or 0.0 for own in (info, other_info))
    takes = f" It takes about {about_time(seconds)}." if seconds else ""
    return f"Measured in turn, {looks} times each, with {' and '.join(commands)}, they tell it.{takes}"


def about_time(seconds: float) -> str:
    """``4 minutes``."""
    minutes = math.ceil(seconds / 60)
    if minutes > 90:
        return f"{math.ceil(minutes / 60)} hours"
    return f"{minutes} minutes" if minutes > 1 else "a minute"


def flag_values(argv: Sequence[str]) -> dict[str, str]:
    """The flags of a command line with their values; ``true`` without one."""
    flags: dict[str, str] = {}
    name = ""
    for word in argv[1:]:
        if word.startswith("-") and not re.match(r"-\d", word):
            name = word
            flags[name] = "true"
        elif name:
            flags[name] = word
    return flags


def _target(info: RunInfo, metric: Metric) -> Target:
    named = [target for target in info.plan.targets if target.name in (metric.group, metric.target)]
    return named[0] if named else Target(metric.target, metric.target)


def _sides(first: tuple[RunInfo, Metric], second: tuple[RunInfo, Metric]) -> tuple[Target, Target] | None:
    """Two targets that ``ab`` can start; ``None``: it has no words for what differs."""
    (one, other) = sides = _target(*first), _target(*second)
    same = (one.url or one.profile) == (other.url or other.profile)
    if one.overrides or other.overrides:
        plain = [side for side in sides if not side.overrides]
        return (plain[0], other if plain[0] is one else one) if same and plain else None
    if not same:
        return sides
    older, newer = sorted((first[0], second[0]), key=lambda info: info.created_at)
    changed = _older_flags(older, newer, one.name)
    return (one, Target("as it was", one.profile, changed)) if changed and not one.url else None


def _older_flags(older: RunInfo, newer: RunInfo, target: str) -> Mapping[str, str]:
    """What a profile had before it was changed: its flags are those of the newer run."""
    argvs = [info.provenance[target].argv if target in info.provenance else () for info in (older, newer)]
    old, new = (flag_values(comparable_argv(argv)) for argv in argvs)
    return {name.lstrip("-"): old.get(name, "") for name in (*old, *new) if old.get(name) != new.get(name)}


def _more_answers(first: RunInfo, second: RunInfo) -> str:
    kind, options = first.plan.kind, first.plan.options
    infos = {info.id: info for info in (first, second)}
    command = _command(kind, *(target for info in infos.values() for target in info.plan.targets))
    times: float = _MORE
    if kind == "suite":
        command += f" --repeats {_MORE * int(options.get('repeats') or 1)}"
    elif kind == "quality":
        command += " --text FILE"
    elif (limit := options.get("limit")) and limit < _PROBLEMS:
        times = _PROBLEMS / limit
    else:  # 108 answers of at most 4096 tokens, in place of 164 of 1024
        command = command.replace(f"bench {kind}", "bench suite", 1) + " --repeats 9"
    seconds = times * sum(info.seconds or 0.0 for info in infos.values())
    text = ", with a text three times as long," if kind == "quality" else ""
    return f"`{command}`{text} tells more{f', in about {about_time(seconds)}' if seconds else ''}."


def _command(kind: str, *targets: Target) -> str:
    words = dict.fromkeys(target.url or target.profile or target.name for target in targets)
    urls = [word for word in words if "://" in word]
    return shlex.join(["gpubox", "bench", kind, *(("--url", urls[0]) if urls else words)])
